//! Prefill attention of Llama 8B, 70B on eight GPUs, Qwen3-8B and 0.6B, ChatGLM2: whole prompts,
//! the last chunk of a long one, and many short ones.

use millrace_cuda::ops::attention::PagedAttention;
use millrace_cuda::ops::paged::{AttentionScores, PagedKv, SequenceBatch};
use millrace_cuda::ops::prefill::{PrefillKernel, prefill_by};
use millrace_cuda::{Device, Elem, Memory};

use crate::cost;
use crate::harness::{Bench, Result};

/// Name, heads, key/value heads, features per head.
const MODELS: [(&str, usize, usize, usize); 6] = [
    ("llama-8b", 32, 8, 128),
    ("llama-70b/8", 8, 1, 128),
    ("qwen3-8b", 32, 8, 128),
    ("qwen3-0.6b", 16, 8, 128),
    ("chatglm2", 32, 2, 128),
    ("head 64", 32, 8, 64),
];
const BLOCK: usize = 16;

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    // Sequences, their queries, their keys.
    let steps: &[(usize, usize, usize)] = if bench.is_simulated() {
        &[(2, 20, 40)]
    } else {
        &[(1, 2048, 2048), (1, 8192, 8192), (1, 2048, 32768), (32, 256, 256)]
    };
    let hopper = bench.device.properties().runs_hopper_kernels;
    for (model, heads, kv_heads, head_dim) in MODELS {
        for &(rows, queries, context) in steps {
            for kernel in [PrefillKernel::Mma, PrefillKernel::Hopper] {
                if kernel == PrefillKernel::Hopper && !hopper {
                    continue;
                }
                let case = Case::new(&bench.device, heads, kv_heads, head_dim, rows, queries, context)?;
                let attention = case.attention();
                let name = format!("prefill {kernel:?} {model} {rows} x {queries} of {context}");
                let cost = cost::attention(&attention, vec![(queries, context); rows]);
                bench.measure(&name, cost, |device| prefill_by(device, kernel, &attention))?;
            }
        }
    }
    Ok(())
}

struct Case {
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    rows: usize,
    queries: usize,
    context: usize,
    qkv: Memory,
    out: Memory,
    cache: [Memory; 2],
    numbers: [Memory; 3],
}

impl Case {
    fn new(
        device: &Device,
        heads: usize,
        kv_heads: usize,
        head_dim: usize,
        rows: usize,
        queries: usize,
        context: usize,
    ) -> Result<Case> {
        let per_row = context.div_ceil(BLOCK);
        let upload = |numbers: Vec<u32>| {
            device.upload(&numbers.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<u8>>())
        };
        let tokens = rows * queries;
        // The numbers have every size, so that power and exponentials are as in real use.
        let values = |len: usize| {
            let mut state = 1u32;
            let bytes: Vec<u8> = (0..len)
                .flat_map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    let value = (state >> 8) as f32 / (1u32 << 23) as f32 - 1.0;
                    half::bf16::from_f32(value).to_le_bytes()
                })
                .collect();
            device.upload(&bytes)
        };
        let cached = rows * per_row * BLOCK * kv_heads * head_dim;
        Ok(Case {
            heads,
            kv_heads,
            head_dim,
            rows,
            queries,
            context,
            qkv: values(tokens * (heads + 2 * kv_heads) * head_dim)?,
            out: device.allocate(Elem::BF16, tokens * heads * head_dim)?,
            cache: [values(cached)?, values(cached)?],
            numbers: [
                upload((0..=rows).map(|r| (r * queries) as u32).collect())?,
                upload(vec![context as u32; rows])?,
                // A permutation, so that neighbors in the sequence are not neighbors in memory.
                upload((0..rows * per_row).map(|b| (rows * per_row - 1 - b) as u32).collect())?,
            ],
        })
    }

    fn attention(&self) -> PagedAttention<'_> {
        let [keys, values] = &self.cache;
        let [query_start, context, tables] = &self.numbers;
        let per_row = self.context.div_ceil(BLOCK);
        PagedAttention {
            heads: self.heads,
            qkv: self.qkv.view(Elem::BF16),
            stride: (self.heads + 2 * self.kv_heads) * self.head_dim,
            kv: PagedKv {
                keys: keys.view(Elem::BF16),
                values: values.view(Elem::BF16),
                scales: None,
                blocks: self.rows * per_row,
                block_size: BLOCK,
                kv_heads: self.kv_heads,
                head_dim: self.head_dim,
            },
            batch: SequenceBatch {
                rows: self.rows,
                tokens: self.rows * self.queries,
                query_start: query_start.view(Elem::I32),
                context: context.view(Elem::I32),
                tables: tables.view(Elem::I32),
                table_stride: per_row,
                max_queries: self.queries,
                max_context: self.context,
            },
            scores: AttentionScores {
                scale: 1.0 / (self.head_dim as f32).sqrt(),
                soft_cap: None,
                window: None,
                alibi: None,
                sinks: None,
                prefix: None,
            },
            out: self.out.view(Elem::BF16),
        }
    }
}
