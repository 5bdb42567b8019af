//! Measures the CPU backend against the limits of the machine, and with the feature `faer` against
//! `faer`.
//!
//! `cargo bench -p millrace-cpu --bench cpu [--features faer] -- [--threads N] [--only
//! linear|quantized|packing|attention|decode|prefill|sampling|staging] [--dtype
//! bfloat16|float16|float32] [--kv bfloat16|float16|float32|int8] [--rows 1,8,512] [--format
//! int8|q8_0|q4_0|int4|q4_k|q6_k|fp8|nf4] [--activations rounded|exact] [--isa NAME]`
//!
//! Shapes are those of a Llama with 1.1 billion parameters. The weights are cycled so that every
//! product reads them from memory, as a decoder does. The peak (a loop on registers of the
//! instruction for the weights) and the bandwidth (a read-only stream over the same number of
//! bytes) are measured between the products, because the speed of shared machines varies. With one
//! thread, the measured time is the CPU time of that thread, so that other processes do not count.

#![allow(clippy::unwrap_used, reason = "a failed set-up is a failed benchmark")]

mod attention;
mod packing;
mod quantized;
mod sampling;
mod staging;

use std::time::Instant;

use bytes::Bytes;
use millrace_backend::{
    Backend, DeviceTypes, ForwardOps, ModelLoading, OpenStep, Segment, SeqRow, StepInput, StepQueue, StepSize,
};
use millrace_cpu::limits::{self, Instruction};
use millrace_cpu::{Activations, Cpu, CpuOptions, Isa};
use millrace_numbers::{DType, HostTensor, Part};

/// Inputs and outputs of the products of one layer.
const SHAPES: [(&str, usize, usize); 4] =
    [("qkv", 2048, 2560), ("out", 2048, 2048), ("gate/up", 2048, 11264), ("down", 5632, 2048)];

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let flag = |name: &str| arguments.iter().position(|a| a == name).map(|at| arguments[at + 1].clone());
    let threads = flag("--threads").map(|n| n.parse().unwrap());
    let only = flag("--only");
    let activations = match flag("--activations").as_deref() {
        Some("exact") => Activations::Exact,
        _ => Activations::Rounded,
    };
    let isa = flag("--isa").map(|name| Isa::ALL.into_iter().find(|isa| isa.name() == name).unwrap());
    let cpu = Cpu::new(CpuOptions { threads, activations, isa, ..CpuOptions::default() }).unwrap();
    let rows = flag("--rows").map_or(vec![1, 2, 4, 8, 9, 16, 64, 512], |rows| {
        rows.split(',').map(|n| n.parse().unwrap()).collect()
    });
    let dtype = flag("--dtype");
    let dtypes = [DType::BF16, DType::F16, DType::F32]
        .into_iter()
        .filter(|d| dtype.as_deref().map_or(*d != DType::F16, |name| name == d.name()));
    println!("{}", cpu.name());
    let on = |name: &str| only.as_deref().is_none_or(|o| o == name);
    if on("linear") {
        for dtype in dtypes {
            for shape in SHAPES {
                linear(&cpu, shape, dtype, &rows);
            }
        }
    }
    if on("quantized") {
        quantized::quantized(&cpu, flag("--format").as_deref(), &rows);
    }
    if on("packing") {
        packing::packing(&cpu, flag("--format").as_deref());
    }
    let kv = flag("--kv");
    if on("attention") || on("decode") {
        attention::decode(&cpu, kv.as_deref());
    }
    if on("attention") || on("prefill") {
        attention::prefill(&cpu, kv.as_deref());
    }
    if on("sampling") {
        sampling::sampling(&cpu);
    }
    if on("staging") {
        staging::staging(cpu.threads());
    }
}

/// The median time of a call in seconds. With several threads it is wall time, which includes other
/// processes.
fn time(threads: usize, mut call: impl FnMut(usize)) -> f64 {
    call(0);
    let mut times = Vec::new();
    let begin = Instant::now();
    while times.len() < 5 || (begin.elapsed().as_secs_f64() < 0.6 && times.len() < 400) {
        let start = limits::clock(threads);
        call(times.len() + 1);
        times.push(limits::clock(threads) - start);
    }
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn values(n: usize) -> Vec<f32> {
    let mut state = 1u32;
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1u32 << 23) as f32 - 1.0
    };
    std::iter::repeat_with(next).take(n).collect()
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

fn matrix(cpu: &Cpu, bytes: &Bytes, rows: usize, cols: usize, dtype: DType) -> <Cpu as DeviceTypes>::Matrix {
    let parts = [Part::whole(HostTensor::dense(DType::F32, rows, cols, bytes.clone()))];
    cpu.matrix(&[Segment::new(&parts, dtype)]).unwrap()
}

/// A queue for a step of `tokens` tokens in `rows` rows.
fn queue(cpu: &Cpu, tokens: usize, rows: usize) -> <Cpu as DeviceTypes>::Queue {
    let size = StepSize {
        tokens,
        rows,
        sequence_tokens: 1,
        blocks: 0,
        block_size: 16,
        kv_format: DType::F32.into(),
        vocab: 1,
        attention: &[],
    };
    cpu.queue(&size).unwrap()
}

/// Opens a step of these tokens in rows of (start, count, blocks).
fn opened<'q>(
    cpu: &Cpu,
    queue: &'q mut <Cpu as DeviceTypes>::Queue,
    tokens: &[u32],
    rows: &[(usize, usize, &[u32])],
) -> OpenStep<'q, <Cpu as DeviceTypes>::Queue> {
    let rows: Vec<SeqRow<'_>> = (0..)
        .zip(rows)
        .map(|(slot, &(start, count, blocks))| SeqRow::prefill(slot, start..start + count, blocks))
        .collect();
    let input = StepInput { tokens, rows: &rows, outputs: &[], samples: &[] };
    cpu.prepare(cpu.begin(queue, &input).unwrap()).unwrap()
}

/// Activations that hold random rows.
fn activations(cpu: &Cpu, n: usize, cols: usize) -> <Cpu as DeviceTypes>::Buf {
    let table = matrix(cpu, &bytes(&values(16 * cols)).into(), 16, cols, DType::F32);
    let tokens: Vec<u32> = (0..n as u32).map(|t| t % 16).collect();
    let mut queue = queue(cpu, n, 1);
    let blocks = vec![0; n];
    let step = opened(cpu, &mut queue, &tokens, &[(0, n, &blocks)]);
    let mut buf = cpu.buf(n, cols).unwrap();
    cpu.embed(&step, &table, 0, 1.0, &mut buf).unwrap();
    buf
}

fn linear(cpu: &Cpu, (name, cols, out): (&str, usize, usize), dtype: DType, rows: &[usize]) {
    let size = out * cols * dtype.size();
    let copies = (400 << 20) / size + 1; // far more than any cache
    let data = values(out * cols);
    let raw = Bytes::from(bytes(&data));
    let weights: Vec<_> = (0..copies).map(|_| matrix(cpu, &raw, out, cols, dtype)).collect();
    for &n in rows {
        let x = activations(cpu, n, cols);
        let mut y = cpu.buf(n, out).unwrap();
        let peak = limits::peak(cpu.threads(), Instruction::of(cpu.isa(), dtype));
        let bandwidth = limits::bandwidth(cpu.threads(), cpu.isa());
        let seconds = time(cpu.threads(), |i| cpu.linear(n, &x, &weights[i % copies], None, &mut y).unwrap());
        let (gflops, gbs) = (2e-9 * (n * cols * out) as f64 / seconds, 1e-9 * size as f64 / seconds);
        print!(
            "{name:8} {:8} m={n:<4} {:7.2} ms {gflops:7.1} GFLOP/s ({:3.0}% of {peak:.0})  {gbs:5.1} GB/s ({:3.0}% of {bandwidth:.1})",
            dtype.name(),
            1e3 * seconds,
            100.0 * gflops / peak,
            100.0 * gbs / bandwidth,
        );
        #[cfg(feature = "faer")]
        if dtype == DType::F32 {
            let seconds = faer(cpu.threads(), n, cols, out, &data);
            print!(
                "  faer {:7.2} ms {:7.1} GFLOP/s",
                1e3 * seconds,
                2e-9 * (n * cols * out) as f64 / seconds
            );
        }
        println!();
    }
}

#[cfg(feature = "faer")]
fn faer(threads: usize, n: usize, cols: usize, out: usize, w: &[f32]) -> f64 {
    use faer::{MatMut, MatRef, Par, linalg::matmul::matmul};
    let copies = 4;
    let weights: Vec<Vec<f32>> = (0..copies).map(|_| w.to_vec()).collect();
    let x = values(n * cols);
    let mut y = vec![0f32; n * out];
    let par = if threads > 1 { Par::rayon(threads) } else { Par::Seq };
    time(threads, |i| {
        let w = MatRef::from_row_major_slice(&weights[i % copies], out, cols).transpose();
        let x = MatRef::from_row_major_slice(&x, n, cols);
        matmul(MatMut::from_row_major_slice_mut(&mut y, n, out), faer::Accum::Replace, x, w, 1.0, par);
    })
}
