//! Decode attention of a layer: equal lengths and lengths of real traffic, in the shapes of
//! models from 0.6 to 70 billion parameters.

use millrace_cuda::ops::decode::{
    AttentionHeads, DecodeAttention, DecodeLimits, PlanDecode, arrivals_len, decode, plan, plan_len, splits,
    workspace_len,
};
use millrace_cuda::ops::paged::{AttentionScores, PagedKv, SequenceBatch};
use millrace_cuda::{Elem, Memory};

use crate::cost;
use crate::harness::{Bench, Result};

const BLOCK: usize = 16;

/// The model's name, its query heads, key/value heads and features per head on one GPU.
const MODELS: [(&str, usize, usize, usize); 4] = [
    ("llama-8b", 32, 8, 128),
    ("llama-70b/tp8", 8, 1, 128),
    ("qwen3-0.6b", 16, 8, 128),
    ("chatglm2-6b", 32, 2, 128),
];

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    for (model, heads, kv_heads, head_dim) in MODELS {
        let of = |cache| AttentionHeads { heads, kv_heads, head_dim, activations: Elem::BF16, cache };
        if bench.is_simulated() {
            measure(bench, &format!("{model} bf16"), of(Elem::BF16), &[300, 20])?;
            continue;
        }
        for (context, batches) in [(1 << 10, &[1, 8, 32, 128, 256][..]), (8 << 10, &[1, 8, 32, 64])] {
            for &rows in batches {
                let name = format!("{model} bf16 {rows} x {context}");
                measure(bench, &name, of(Elem::BF16), &vec![context; rows])?;
            }
        }
        measure(bench, &format!("{model} bf16 1 x 131072"), of(Elem::BF16), &[128 << 10])?;
        for cache in [Elem::BF16, Elem::E4M3, Elem::I8] {
            measure(bench, &format!("{model} {cache:?} 64 skewed"), of(cache), &skewed(64))?;
        }
        for cache in [Elem::E4M3, Elem::I8] {
            measure(bench, &format!("{model} {cache:?} 128 x 1024"), of(cache), &[1 << 10; 128])?;
        }
    }
    Ok(())
}

/// Lengths from 100 to 32,000 of which the r-th longest is about the longest divided by r (Zipf),
/// in an order that mixes them.
fn skewed(rows: usize) -> Vec<usize> {
    (0..rows).map(|i| 100 + 32_000 / (1 + i * 37 % rows)).collect()
}

fn words(bench: &Bench, values: impl Iterator<Item = usize>) -> Result<Memory> {
    Ok(bench.device.upload(&values.flat_map(|x| (x as u32).to_le_bytes()).collect::<Vec<u8>>())?)
}

fn measure(bench: &mut Bench, name: &str, heads: AttentionHeads, contexts: &[usize]) -> Result<()> {
    let rows = contexts.len();
    let blocks: usize = contexts.iter().map(|c| c.div_ceil(BLOCK)).sum();
    let len = blocks * heads.kv_heads * BLOCK * heads.head_dim;
    let keys = bench.device.allocate(heads.cache, len)?;
    let values = bench.device.allocate(heads.cache, len)?;
    let scales = bench.device.allocate(Elem::F32, 2 * blocks * heads.kv_heads * BLOCK)?;
    for memory in [&keys, &values, &scales] {
        bench.device.fill(memory.view(Elem::U8), 0)?;
    }
    let per_kind = blocks * heads.kv_heads * BLOCK;
    let scaled = scales.view(Elem::F32);
    let scales =
        (heads.cache.size() == 1).then(|| (scaled.slice(0..per_kind), scaled.slice(per_kind..2 * per_kind)));

    let query_start = words(bench, 0..=rows)?;
    let context = words(bench, contexts.iter().copied())?;
    // As after some time of serving, the blocks of a sequence lie far apart.
    let stride = contexts.iter().map(|c| c.div_ceil(BLOCK)).max().unwrap_or(0);
    let step = coprime(blocks);
    let mut tables = vec![0; rows * stride];
    let mut next = 0;
    for (row, context) in contexts.iter().enumerate() {
        for entry in &mut tables[row * stride..][..context.div_ceil(BLOCK)] {
            *entry = next * step % blocks;
            next += 1;
        }
    }
    let tables = words(bench, tables.into_iter())?;
    let queries = bench.device.allocate(Elem::BF16, rows * heads.heads * heads.head_dim)?;
    let out = bench.device.allocate(Elem::BF16, rows * heads.heads * heads.head_dim)?;
    bench.device.fill(queries.view(Elem::U8), 0)?;

    let batch = SequenceBatch {
        rows,
        tokens: rows,
        query_start: query_start.view(Elem::I32),
        context: context.view(Elem::I32),
        tables: tables.view(Elem::I32),
        table_stride: stride,
        max_queries: 1,
        max_context: stride * BLOCK,
    };
    let scores =
        AttentionScores { scale: 0.1, soft_cap: None, window: None, alibi: None, sinks: None, prefix: None };
    let limits =
        DecodeLimits { rows, queries: 1, splits: contexts.iter().map(|&c| splits(heads.cache, c)).sum() };
    let list = bench.device.allocate(Elem::I32, plan_len(&limits))?;
    let workspace = bench.device.allocate(Elem::F32, workspace_len(&heads, &limits))?;
    let arrivals = bench.device.allocate(Elem::U32, arrivals_len(&heads, &limits))?;
    bench.device.fill(arrivals.view(Elem::U32), 0)?;
    let list = list.view(Elem::I32);
    let splits = limits.splits;
    plan(&bench.device, &PlanDecode { batch, scores, cache: heads.cache, limits, splits, plan: list })?;
    let layer = DecodeAttention {
        heads,
        limits,
        queries: queries.view(Elem::BF16),
        query_stride: heads.heads * heads.head_dim,
        kv: PagedKv {
            keys: keys.view(heads.cache),
            values: values.view(heads.cache),
            scales,
            blocks,
            block_size: BLOCK,
            kv_heads: heads.kv_heads,
            head_dim: heads.head_dim,
        },
        batch,
        scores,
        plan: list,
        workspace: workspace.view(Elem::F32),
        arrivals: arrivals.view(Elem::U32),
        out: out.view(Elem::BF16),
    };
    bench.measure(&format!("decode {name}"), cost::decode(&heads, 1, contexts), |device| {
        decode(device, &layer)
    })
}

/// A step that visits every number below `n`, about 0.6 n.
fn coprime(n: usize) -> usize {
    let gcd = |mut a: usize, mut b: usize| {
        while b != 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    (n * 618 / 1000 + 1..).find(|&step| gcd(step, n) == 1).unwrap_or(1)
}
