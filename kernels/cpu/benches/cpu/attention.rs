//! Attention over long contexts, with few and with many queries.

use millrace_backend::{
    AttentionOps, AttentionSpec, DeviceTypes, KvFormat, KvSpec, ModelLoading, Prologue, QkvLayout, ScoreTerms,
};
use millrace_cpu::Cpu;
use millrace_cpu::limits::{self, Instruction};
use millrace_numbers::DType;

use crate::harness::{activations, opened, queue, time};

const LAYOUT: QkvLayout = QkvLayout { heads: 32, kv_heads: 4, head_dim: 64 };
const SPEC: AttentionSpec =
    AttentionSpec { layout: LAYOUT, scale: 0.125, window: None, soft_cap: None, bidirectional: false };
/// Tokens that are written to a cache at once.
const WRITTEN: usize = 4096;

/// Returns the formats of caches to measure.
fn formats(only: Option<&str>) -> impl Iterator<Item = KvFormat> {
    [DType::BF16.into(), DType::F16.into(), DType::F32.into(), KvFormat::Int8]
        .into_iter()
        .filter(move |format| only.is_none_or(|name| name == format.name()))
}

/// Measures the bytes read per second, and the operations, with one query per sequence.
pub(crate) fn decode(cpu: &Cpu, only: Option<&str>) {
    for format in formats(only) {
        for (sequences, context) in [(1, 2048), (32, 2048), (8, 4096), (1, 32768)] {
            decode_one(cpu, format, sequences, context);
        }
    }
}

/// Returns the instruction that attention consists of.
fn instruction(cpu: &Cpu, format: KvFormat) -> Instruction {
    Instruction::of(cpu.isa(), format.dense().unwrap_or(DType::F32))
}

/// Measures the operations per second with a prompt.
pub(crate) fn prefill(cpu: &Cpu, only: Option<&str>) {
    for format in formats(only) {
        for start in [0, 1536, 4096] {
            prefill_one(cpu, format, start, 512);
        }
    }
}

/// A KV cache in which every sequence has `tokens` tokens, and the block tables of the sequences.
fn cache(
    cpu: &Cpu,
    format: KvFormat,
    sequences: usize,
    tokens: usize,
) -> (Vec<Vec<u32>>, <Cpu as DeviceTypes>::Kv) {
    let per = tokens.div_ceil(16);
    let blocks = sequences * per;
    let spec = KvSpec {
        blocks,
        block_size: 16,
        heads: LAYOUT.kv_heads,
        key_dim: LAYOUT.head_dim,
        value_dim: LAYOUT.head_dim,
        format,
    };
    let mut kv = cpu.kv(spec).unwrap();
    // Neighboring blocks are far apart in memory, as in a server that has run for hours.
    let tables: Vec<Vec<u32>> = (0..sequences)
        .map(|s| (0..per).map(|b| (b * sequences + (s + b) % sequences) as u32).collect())
        .collect();
    let mut qkv = activations(cpu, tokens.min(WRITTEN), LAYOUT.cols());
    for table in &tables {
        for start in (0..tokens).step_by(WRITTEN) {
            let count = WRITTEN.min(tokens - start);
            let mut queue = queue(cpu, count, 1);
            let step = opened(cpu, &mut queue, &vec![0; count], &[(start, count, table)]);
            let prologue = Prologue { layout: LAYOUT, head_norm: None, rope: None, query_scale: None };
            cpu.prologue(&step, &mut qkv, &prologue, &mut kv).unwrap();
        }
    }
    (tables, kv)
}

fn decode_one(cpu: &Cpu, format: KvFormat, sequences: usize, context: usize) {
    let size = sequences * context * 2 * LAYOUT.kv_heads * format.head_bytes(LAYOUT.head_dim);
    let layers = (200 << 20) / size + 1; // far more than any cache
    let (tables, first) = cache(cpu, format, sequences, context);
    let mut caches = vec![first];
    caches.extend((1..layers).map(|_| cache(cpu, format, sequences, context).1));
    let rows: Vec<(usize, usize, &[u32])> = tables.iter().map(|t| (context - 1, 1, t.as_slice())).collect();
    let mut queue = queue(cpu, sequences, sequences);
    let step = opened(cpu, &mut queue, &vec![0; sequences], &rows);
    let qkv = activations(cpu, sequences, LAYOUT.cols());
    let mut out = cpu.buf(sequences, LAYOUT.heads * LAYOUT.head_dim).unwrap();
    let bandwidth = limits::bandwidth(cpu.threads(), cpu.isa());
    let seconds = time(cpu.threads(), |i| {
        cpu.attention(&step, &qkv, &caches[i % layers], &SPEC, ScoreTerms::NONE, &mut out).unwrap();
    });
    let gbs = 1e-9 * size as f64 / seconds;
    let peak = limits::peak(cpu.threads(), instruction(cpu, format));
    let gflops = 4e-9 * (sequences * context * LAYOUT.heads * LAYOUT.head_dim) as f64 / seconds;
    println!(
        "decode   {:8} {sequences:3} x {context:5} {:7.3} ms  {gflops:6.1} GFLOP/s ({:3.0}% of {peak:.0})  {gbs:5.1} GB/s ({:3.0}% of {bandwidth:.1})",
        format.name(),
        1e3 * seconds,
        100.0 * gflops / peak,
        100.0 * gbs / bandwidth
    );
}

fn prefill_one(cpu: &Cpu, format: KvFormat, start: usize, count: usize) {
    let (tables, kv) = cache(cpu, format, 1, start + count);
    let mut queue = queue(cpu, count, 1);
    let step = opened(cpu, &mut queue, &vec![0; count], &[(start, count, &tables[0])]);
    let qkv = activations(cpu, count, LAYOUT.cols());
    let mut out = cpu.buf(count, LAYOUT.heads * LAYOUT.head_dim).unwrap();
    let peak = limits::peak(cpu.threads(), instruction(cpu, format));
    let seconds =
        time(cpu.threads(), |_| cpu.attention(&step, &qkv, &kv, &SPEC, ScoreTerms::NONE, &mut out).unwrap());
    let pairs = count * start + count * (count + 1) / 2;
    let gflops = 4e-9 * (pairs * LAYOUT.heads * LAYOUT.head_dim) as f64 / seconds;
    println!(
        "prefill  {:8} {count} at {start:5} {:7.2} ms  {gflops:6.1} GFLOP/s ({:3.0}% of {peak:.0})",
        format.name(),
        1e3 * seconds,
        100.0 * gflops / peak
    );
}
