//! The bytes and operations that an operation needs at least. Benchmarks compare a measurement with
//! them.

use std::ops::Add;

use millrace_backend::{KeyWindow, QkvLayout, RecurrentHeads, SamplingParams, StateSpec};
use millrace_cuda::Elem;
use millrace_cuda::ops::allreduce::AllReduceForm;
use millrace_cuda::ops::attention::PagedAttention;
use millrace_cuda::ops::decode::AttentionHeads;
use millrace_cuda::ops::grouped::{GroupedGemm, RowOrder};
use millrace_cuda::ops::recurrent::{Convolve, GatedRows, Recur, RecurRule};
use millrace_cuda::weights::PackedFormat;

/// The least work of an operation: every input is read once, every output is written once.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Cost {
    /// Bytes read from and written to device memory.
    pub(crate) bytes: f64,
    /// Floating-point operations; a multiplication and an addition count as two.
    pub(crate) flops: f64,
}

impl Cost {
    /// The cost of an operation that moves `bytes` and computes next to nothing.
    pub(crate) fn moving(bytes: usize) -> Cost {
        Cost { bytes: bytes as f64, flops: 0.0 }
    }
}

impl Add for Cost {
    type Output = Cost;

    fn add(self, other: Cost) -> Cost {
        Cost { bytes: self.bytes + other.bytes, flops: self.flops + other.flops }
    }
}

/// The cost of `gate`, and of `activate` if `gated` is false.
pub(crate) fn activation(elem: Elem, rows: usize, cols: usize, gated: bool) -> Cost {
    Cost::moving(rows * cols * elem.size() * if gated { 3 } else { 2 })
}

/// The cost of an operation that reads `inputs` arrays of `[rows, cols]` and writes one.
pub(crate) fn elementwise(elem: Elem, rows: usize, cols: usize, inputs: usize) -> Cost {
    Cost::moving(rows * cols * elem.size() * (inputs + 1))
}

/// The least that a rank moves through its own memory and its links together: `len` elements in,
/// `len` out, and those of the other ranks.
pub(crate) fn all_reduce(elem: Elem, form: AllReduceForm, world: usize, len: usize) -> Cost {
    let over_links = match form {
        AllReduceForm::OneShot => (world - 1) * len,
        AllReduceForm::TwoShot => 2 * len * (world - 1) / world,
    };
    Cost { flops: (len * (world - 1)) as f64, ..Cost::moving((2 * len + over_links) * elem.size()) }
}

/// The cost of the operation, given each sequence's queries and context: keys and values are
/// read once per sequence, and every pair of a query and a key that it sees takes two products.
/// Windows are considered, prefixes are not.
pub(crate) fn attention(
    attention: &PagedAttention<'_>,
    sequences: impl IntoIterator<Item = (usize, usize)>,
) -> Cost {
    let PagedAttention { heads, kv, scores, qkv, .. } = attention;
    let (mut pairs, mut keys, mut queries) = (0.0, 0, 0);
    for (n, context) in sequences {
        let first = context - n;
        pairs += seen_up_to(context, scores.window) - seen_up_to(first, scores.window);
        keys += if n == 0 { 0 } else { context - scores.window.map_or(0, |window| window.first(first)) };
        queries += n;
    }
    let row = kv.head_dim * kv.keys.elem().size() + if kv.scales.is_some() { 4 } else { 0 };
    let moved = 2 * keys * kv.kv_heads * row + 2 * queries * heads * kv.head_dim * qkv.elem().size();
    Cost { bytes: moved as f64, flops: 4.0 * pairs * (heads * kv.head_dim) as f64 }
}

/// The number of keys that the queries at positions 0 to n - 1 see together.
fn seen_up_to(n: usize, window: Option<KeyWindow>) -> f64 {
    let causal = |n: usize| n as f64 * (n as f64 + 1.0) / 2.0;
    match window {
        None => causal(n),
        Some(KeyWindow::Last(window) | KeyWindow::Around(window)) => {
            causal(n.min(window)) + n.saturating_sub(window) as f64 * (window as f64)
        }
        Some(KeyWindow::Chunk(size)) => (n / size) as f64 * causal(size) + causal(n % size),
    }
}

/// The least cost of a layer's decode attention for sequences of `queries` queries that see so many
/// keys each: keys, values and queries are read, the output is written. Partial sums are not
/// counted.
pub(crate) fn decode(heads: &AttentionHeads, queries: usize, contexts: &[usize]) -> Cost {
    let scales = if heads.cache.size() == 1 { 4 } else { 0 };
    let keys: usize = contexts.iter().sum();
    let kv = keys * heads.kv_heads * 2 * (heads.head_dim * heads.cache.size() + scales);
    let width = heads.heads * heads.head_dim;
    let moved = kv + contexts.len() * queries * 2 * width * heads.activations.size();
    Cost { flops: (keys * queries * width * 4) as f64, ..Cost::moving(moved) }
}

/// The cost of the embeddings of `tokens` different tokens.
pub(crate) fn embed(table: Elem, out: Elem, tokens: usize, cols: usize) -> Cost {
    Cost::moving(tokens * (cols * (table.size() + out.size()) + 4))
}

/// The cost of the selection of `rows` different rows.
pub(crate) fn gather_rows(elem: Elem, rows: usize, cols: usize) -> Cost {
    Cost::moving(rows * (2 * cols * elem.size() + 4))
}

/// The cost of the quantization of rows.
pub(crate) fn quantize(elem: Elem, rows: usize, cols: usize) -> Cost {
    Cost { flops: (rows * cols * 2) as f64, ..Cost::moving(rows * cols * (elem.size() + 1) + rows * 4) }
}

/// The cost of the product.
pub(crate) fn gemv(elem: Elem, rows: usize, inputs: usize, outputs: usize) -> Cost {
    let bytes = outputs * inputs * elem.size() + rows * (inputs + outputs) * elem.size();
    Cost { flops: 2.0 * rows as f64 * inputs as f64 * outputs as f64, ..Cost::moving(bytes) }
}

/// The cost of the product by weights of `bits` bits if `used` experts have rows.
pub(crate) fn grouped(g: &GroupedGemm<'_>, bits: f64, used: usize) -> Cost {
    let pairs = g.rows * g.top_k;
    let rows_of_x = if g.x_order == RowOrder::Sorted { pairs } else { g.rows };
    let activations = (rows_of_x * g.inputs + pairs * g.outputs) * g.x.elem().size();
    let weights = (used * g.outputs * g.inputs) as f64 * bits / 8.0;
    let bytes = weights as usize + activations + pairs * 4;
    Cost { flops: 2.0 * pairs as f64 * g.inputs as f64 * g.outputs as f64, ..Cost::moving(bytes) }
}

/// The cost of `route`.
pub(crate) fn route(elem: Elem, tokens: usize, experts: usize, top_k: usize) -> Cost {
    Cost::moving(tokens * (experts * elem.size() + top_k * 8))
}

/// The least cost of `sort`.
pub(crate) fn sort(pairs: usize, experts: usize) -> Cost {
    Cost::moving(3 * 4 * pairs + 4 * experts)
}

/// The cost of `combine`.
pub(crate) fn combine(elem: Elem, tokens: usize, cols: usize, top_k: usize, with_base: bool) -> Cost {
    let rows = top_k + 1 + usize::from(with_base);
    let bytes = tokens * (rows * cols * elem.size() + top_k * 8);
    Cost { flops: (2 * tokens * top_k * cols) as f64, ..Cost::moving(bytes) }
}

/// The cost of `norm`.
pub(crate) fn norm(elem: Elem, rows: usize, cols: usize, with_residual: bool) -> Cost {
    let per_element = elem.size() * if with_residual { 4 } else { 2 };
    Cost { flops: (rows * cols * 4) as f64, ..Cost::moving(rows * cols * per_element + cols * 4) }
}

/// The cost of the prologue of `tokens` tokens: queries read and written, keys and values read and
/// cached.
pub(crate) fn prologue(elem: Elem, cache: Elem, layout: QkvLayout, tokens: usize) -> Cost {
    let QkvLayout { heads, kv_heads, head_dim } = layout;
    let scales = if cache.size() == 1 { 4 } else { 0 };
    let of_queries = heads * head_dim * 2 * elem.size();
    let of_keys = 2 * kv_heads * (head_dim * (elem.size() + cache.size()) + scales);
    Cost::moving(tokens * (of_queries + of_keys))
}

/// The cost of the product. `group` is the number of columns that share a scale.
pub(crate) fn packed(
    format: PackedFormat,
    elem: Elem,
    rows: usize,
    inputs: usize,
    outputs: usize,
    group: usize,
) -> Cost {
    let weight = outputs * inputs * format.bits() / 8 + outputs * inputs.div_ceil(group) * 4;
    let bytes = weight + rows * (inputs + outputs) * elem.size();
    Cost { flops: 2.0 * rows as f64 * inputs as f64 * outputs as f64, ..Cost::moving(bytes) }
}

/// The least cost of one row: its logits are read once, and once more if the row draws from all
/// tokens or changes them.
pub(crate) fn sample(params: &SamplingParams, vocab: usize, tokens: usize, mask: bool) -> Cost {
    let logits = vocab * Elem::F32.size();
    let penalised =
        params.repetition_penalty != 1.0 || params.frequency_penalty != 0.0 || params.presence_penalty != 0.0;
    let adjusted = penalised || mask || !params.logit_bias.is_empty();
    let again = params.do_sample && params.top_k == 0;
    let mut bytes = logits * (1 + usize::from(adjusted) + usize::from(again));
    bytes += if penalised { tokens * Elem::U32.size() } else { 0 };
    bytes += if mask { vocab.div_ceil(8) } else { 0 };
    // An exponential or so per token and pass.
    Cost { flops: (vocab * 8 * (1 + usize::from(again))) as f64, ..Cost::moving(bytes) }
}

/// The least cost of one row: its logits are read.
pub(crate) fn score(vocab: usize) -> Cost {
    Cost { flops: (vocab * 8) as f64, ..Cost::moving(vocab * Elem::F32.size()) }
}

/// The cost of the preparation of `tokens` tokens in `rows` rows with tables of `blocks` blocks.
pub(crate) fn prepare(rows: usize, tokens: usize, blocks: usize) -> Cost {
    Cost::moving(rows * (16 + 8 + 3 * 4 + 3 * 4 + 2 * 4 * blocks) + tokens * (2 * 4 + 5 * 4))
}

/// The cost of the operation for rows that do not start at position 0.
pub(crate) fn convolve(of: &Convolve<'_>) -> Cost {
    let StateSpec { channels, taps, .. } = of.states.spec;
    let read = if of.gated { 3 } else { 1 };
    let of_tokens = of.rows.tokens * channels * (read + 1) * of.x.elem().size();
    let windows = 2 * of.rows.rows * of.states.spec.window_elements() * Elem::F32.size();
    let flops = 2.0 * (of.rows.tokens * channels) as f64 * taps as f64;
    Cost { bytes: (of_tokens + windows + taps * channels * Elem::F32.size()) as f64, flops }
}

/// The cost of the operation for rows that do not start at position 0. Each row reads and
/// writes the matrices of all heads once.
pub(crate) fn recur(of: &Recur<'_>) -> Cost {
    let RecurrentHeads { heads, key_dim, value_dim, .. } = of.heads;
    let rates = if matches!(of.rule, RecurRule::Delta) { 2 * heads } else { heads };
    let matrices = heads * key_dim * value_dim;
    let of_token = (of.heads.cols() + rates + of.heads.value_cols()) * of.x.elem().size();
    let bytes = 2 * of.rows.rows * matrices * Elem::F32.size() + of.rows.tokens * of_token;
    let operations = if matches!(of.rule, RecurRule::Delta) { 7.0 } else { 5.0 };
    Cost { bytes: bytes as f64, flops: operations * (of.rows.tokens * matrices) as f64 }
}

/// The cost of the operation.
pub(crate) fn multiply_gates(of: &GatedRows<'_>) -> Cost {
    Cost::moving(3 * of.rows * of.cols * of.x.elem().size())
}
