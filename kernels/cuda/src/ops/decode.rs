//! Decode attention: a few queries per sequence over a paged cache of 16-token blocks, split over
//! the context.
//!
//! Once per step, [`plan`] lists on the device the splits of the step's sequences. All layers that
//! share a window then call [`decode`] with that list. Sequences are cut every [`split_tokens`]
//! tokens, whatever else is in the step, so a sequence's output has the same bits in any batch.

use millrace_backend::{Error, Result};

use super::paged::{AttentionScores, PagedKv, SequenceBatch};
use super::select::kernel;
use super::shared::decode::{DecodePlanParams, PLAN_THREADS};
use super::shared::decode_h::{
    DecodeParams, decode_features, decode_most_rows, decode_shared_bytes, decode_split_tokens, decode_threads,
};
use super::shared::decode_sums_h::DecodeSumParams;
use super::shared::kv_h::BLOCK_TOKENS;
use super::shared::splits_h::DecodeSplitRecord;
use super::sizes::{countable, int};
use crate::params::Kernel;
use crate::{Device, Elem, Grid, View};

/// The most features of a head.
const MAX_FEATURES: usize = 256;
/// The least number of query rows of a tile.
const FEW_ROWS: usize = 8;
/// i32 elements of a split in a plan.
const RECORD_WORDS: usize = size_of::<DecodeSplitRecord>() / 4;
/// i32 elements before the splits in a plan: their number, and what aligns them.
const HEADER_WORDS: usize = 4;
/// f32 elements of the statistics of a row: of its split, and of its group of splits.
const STATS_WORDS: usize = 4;

/// The sizes and types of a model's attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttentionHeads {
    /// Query heads.
    pub heads: usize,
    /// Key/value heads, a divisor of `heads`.
    pub kv_heads: usize,
    /// Features of a head.
    pub head_dim: usize,
    /// Type of queries and output.
    pub activations: Elem,
    /// Type of the cache.
    pub cache: Elem,
}

/// Upper bounds of a step, for which memory is allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecodeLimits {
    /// Sequences.
    pub rows: usize,
    /// Queries of a sequence. A sequence with more queries is left to the prefill kernel.
    pub queries: usize,
    /// Splits of all sequences together: the sum of [`splits`].
    pub splits: usize,
}

/// Tokens of a split: 2048 bytes of keys and values per feature.
pub const fn split_tokens(cache: Elem) -> usize {
    decode_split_tokens(cache.size())
}

/// The most splits of a sequence of `context` keys. With a window there are fewer.
pub const fn splits(cache: Elem, context: usize) -> usize {
    context.div_ceil(split_tokens(cache))
}

/// Whether the kernels take these sizes: 16-bit activations, a cache of their type, e4m3 or i8 in
/// blocks of 16 tokens, and a head size that is a multiple of 16 and at most 256.
pub fn supports(heads: &AttentionHeads, block_size: usize) -> bool {
    let cached = heads.cache == heads.activations || matches!(heads.cache, Elem::E4M3 | Elem::I8);
    matches!(heads.activations, Elem::F16 | Elem::BF16)
        && cached
        && block_size == BLOCK_TOKENS
        && heads.head_dim != 0
        && heads.head_dim.is_multiple_of(16)
        && heads.head_dim <= MAX_FEATURES
        && heads.kv_heads != 0
        && heads.heads != 0
        && heads.heads.is_multiple_of(heads.kv_heads)
}

/// The length of a plan's memory in i32 elements.
pub const fn plan_len(limits: &DecodeLimits) -> usize {
    HEADER_WORDS + RECORD_WORDS * limits.splits + limits.rows + 1
}

/// The length of the memory for partial sums in f32 elements. All layers can share the memory.
pub fn workspace_len(heads: &AttentionHeads, limits: &DecodeLimits) -> usize {
    // The device decides between tiles of few rows and of many.
    let rows_of = |rows| {
        let tiles = QueryTiles::with_rows(heads, limits.queries, rows);
        tiles.count * tiles.kept
    };
    let rows = rows_of(FEW_ROWS).max(rows_of(decode_most_rows(decode_features(heads.head_dim))));
    limits.splits * heads.kv_heads * rows * (heads.head_dim + STATS_WORDS)
}

/// The length of the counters of parts that are written, in u32 elements. All layers can share the
/// memory.
pub fn arrivals_len(heads: &AttentionHeads, limits: &DecodeLimits) -> usize {
    // Tiles of few rows are the most.
    2 * limits.splits * heads.kv_heads * QueryTiles::with_rows(heads, limits.queries, FEW_ROWS).count
}

/// The tiles that the query rows of a key/value head are cut into. A work item computes one tile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct QueryTiles {
    /// Rows of a tile: 8 or 16.
    rows: usize,
    /// Rows of a tile that can have a query.
    kept: usize,
    /// Tiles of a key/value head.
    count: usize,
}

impl QueryTiles {
    /// The tiles on a device whose blocks have `shared_per_block` bytes of shared memory. The
    /// result of a query does not depend on them.
    fn of(heads: &AttentionHeads, queries: usize, shared_per_block: usize) -> QueryTiles {
        let features = decode_features(heads.head_dim);
        let most = decode_most_rows(features);
        let few = QueryTiles::with_rows(heads, queries, FEW_ROWS);
        let fits = decode_shared_bytes(features, heads.cache.size(), most) <= shared_per_block;
        if few.count > 1 && fits { QueryTiles::with_rows(heads, queries, most) } else { few }
    }

    fn with_rows(heads: &AttentionHeads, queries: usize, rows: usize) -> QueryTiles {
        let all = heads.heads / heads.kv_heads * queries;
        QueryTiles { rows, kept: all.min(rows), count: all.div_ceil(rows) }
    }
}

/// The parts of a plan's memory.
struct PlanParts<'a> {
    count: View<'a>,
    list: View<'a>,
    starts: View<'a>,
}

fn parts<'a>(plan: View<'a>, limits: &DecodeLimits) -> Result<PlanParts<'a>> {
    countable(&[plan_len(limits), limits.rows * limits.queries])?;
    plan.expect("plan", Elem::I32, plan_len(limits))?;
    if limits.queries == 0 {
        return Err(Error::Shape("decode attention for sequences of no query".to_owned()));
    }
    let starts = HEADER_WORDS + RECORD_WORDS * limits.splits;
    Ok(PlanParts {
        count: plan.slice(0..1),
        list: plan.slice(HEADER_WORDS..starts),
        starts: plan.slice(starts..starts + limits.rows + 1),
    })
}

/// The operands of [`plan`].
#[derive(Debug, Clone, Copy)]
pub struct PlanDecode<'a> {
    /// The step's sequences.
    pub batch: SequenceBatch<'a>,
    /// The window and the prefixes; the plan depends on nothing else of the scores.
    pub scores: AttentionScores<'a>,
    /// Type of the cache.
    pub cache: Elem,
    /// Upper bounds of the step.
    pub limits: DecodeLimits,
    /// The most splits that the sequences have by the host's count.
    pub splits: usize,
    /// i32 of [`plan_len`]: the result.
    pub plan: View<'a>,
}

/// Lists the splits of the step's sequences. A sequence without queries, or with more than the
/// limits allow, has none.
///
/// # Errors
/// [`Error::Shape`] for a step beyond the limits or views that are too short, or an error
/// of the launch.
pub fn plan(device: &Device, p: &PlanDecode<'_>) -> Result<()> {
    let &PlanDecode { batch, scores, cache, limits, splits, plan } = p;
    batch.check()?;
    let parts = parts(plan, &limits)?;
    check_rows(&batch, &limits)?;
    check_window(&scores)?;
    if splits > limits.splits {
        return Err(Error::Shape(format!(
            "{splits} splits of sequences where memory is for {}",
            limits.splits
        )));
    }
    if let Some(prefix) = scores.prefix {
        prefix.expect("prefix", Elem::I32, batch.rows)?;
    }
    let params = DecodePlanParams {
        split_count: parts.count.into(),
        list: parts.list.into(),
        starts: parts.starts.into(),
        sequences: batch.params(&scores),
        max_queries: int(limits.queries),
        split_tokens: int(split_tokens(cache)),
        capacity: int(limits.splits),
    };
    let kernel = kernel!(DecodePlanParams, "decode", "decode_plan");
    // SAFETY: the views were checked to be as long as the limits and the batch say, and the kernel
    // writes no split beyond them.
    unsafe { device.launch(kernel, Grid::flat(1, PLAN_THREADS as u32), &params) }
}

fn check_rows(batch: &SequenceBatch<'_>, limits: &DecodeLimits) -> Result<()> {
    if batch.rows > limits.rows {
        return Err(Error::Shape(format!("{} sequences where memory is for {}", batch.rows, limits.rows)));
    }
    Ok(())
}

fn check_window(scores: &AttentionScores<'_>) -> Result<()> {
    match scores.window {
        Some(window) if window.is_empty() => Err(Error::Shape("a window of no keys".to_owned())),
        _ => Ok(()),
    }
}

/// The operands of one layer's decode attention.
#[derive(Debug, Clone, Copy)]
pub struct DecodeAttention<'a> {
    /// The model's sizes and types.
    pub heads: AttentionHeads,
    /// The limits that the plan was made with.
    pub limits: DecodeLimits,
    /// Queries, `[tokens, query_stride]`, the heads of a token first in its row.
    pub queries: View<'a>,
    /// Elements from one token's queries to the next one's.
    pub query_stride: usize,
    /// Keys and values.
    pub kv: PagedKv<'a>,
    /// The step's sequences.
    pub batch: SequenceBatch<'a>,
    /// The scores, with the window and the prefixes that the plan was made with.
    pub scores: AttentionScores<'a>,
    /// The result of [`plan`].
    pub plan: View<'a>,
    /// f32 of [`workspace_len`].
    pub workspace: View<'a>,
    /// u32 of [`arrivals_len`]: zeros before the first layer and after each one.
    pub arrivals: View<'a>,
    /// `[tokens, heads * head_dim]`. Rows of sequences that the plan left out stay as they are.
    pub out: View<'a>,
}

/// Computes `out = softmax(scores) · values` for the sequences in the plan.
///
/// # Errors
/// [`Error::Unsupported`] for sizes that [`supports`] refuses, [`Error::Shape`] for views
/// that are too short, of another type or misaligned, or an error of the launches.
pub fn decode(device: &Device, d: &DecodeAttention<'_>) -> Result<()> {
    let DecodeAttention { heads, limits, batch, .. } = d;
    let plan = check(d)?;
    if batch.rows == 0 || batch.tokens == 0 || limits.splits == 0 {
        return Ok(());
    }
    let tiles = QueryTiles::of(heads, limits.queries, device.properties().shared_per_block);
    let items = limits.splits * heads.kv_heads * tiles.count;
    countable(&[items])?;
    launch(device, d, &plan, tiles, items)
}

/// Returns the parts of the memory in which splits are added up, for `items` work items.
fn sum_params(d: &DecodeAttention<'_>, tiles: QueryTiles, items: usize) -> DecodeSumParams {
    let rows = items * tiles.kept;
    let values = rows * d.heads.head_dim;
    let stats = |i: usize| d.workspace.slice(values + 2 * i * rows..values + 2 * (i + 1) * rows).into();
    DecodeSumParams {
        partials: d.workspace.slice(0..values).into(),
        stats: stats(0),
        group_stats: stats(1),
        group_arrivals: d.arrivals.slice(0..items).into(),
        row_arrivals: d.arrivals.slice(items..2 * items).into(),
    }
}

fn launch(
    device: &Device,
    d: &DecodeAttention<'_>,
    plan: &PlanParts<'_>,
    tiles: QueryTiles,
    items: usize,
) -> Result<()> {
    let DecodeAttention { heads, limits, batch, scores, kv, .. } = d;
    let features = decode_features(heads.head_dim);
    let shared = decode_shared_bytes(features, heads.cache.size(), tiles.rows);
    let properties = device.properties();
    // A multiprocessor has 1 KiB more than one block of it can have, and keeps 1 KiB of it for each
    // block. There are registers for three blocks.
    let at_once = ((properties.shared_per_block + 1024) / (shared + 1024)).clamp(1, 3);
    let blocks = items.min(properties.multiprocessors as usize * at_once);
    let (key_scales, value_scales) = kv.scales.unzip();
    let params = DecodeParams {
        out: d.out.into(),
        queries: d.queries.into(),
        keys: kv.keys.into(),
        values: kv.values.into(),
        key_scales: key_scales.into(),
        value_scales: value_scales.into(),
        split_count: plan.count.into(),
        list: plan.list.into(),
        sums: sum_params(d, tiles, items),
        sequences: batch.params(scores),
        scores: scores.params(),
        query_stride: int(d.query_stride),
        heads: int(heads.heads),
        kv_heads: int(heads.kv_heads),
        head_dim: int(heads.head_dim),
        row_tiles: int(tiles.count),
        kept_rows: int(tiles.kept),
        capacity: int(limits.splits),
    };
    let grid = Grid::flat(blocks, decode_threads(features) as u32).with_shared(shared);
    // SAFETY: `check` compared all views with the shapes; the plan's items lie within the limits
    // that the workspace was checked for.
    unsafe { device.launch(decode_kernel(heads, tiles)?, grid, &params) }
}

fn check<'a>(d: &DecodeAttention<'a>) -> Result<PlanParts<'a>> {
    let DecodeAttention { heads, limits, batch, scores, kv, .. } = d;
    let AttentionHeads { heads: n, head_dim, activations, cache, .. } = *heads;
    kv.check()?;
    batch.check()?;
    if !supports(heads, kv.block_size) {
        return Err(Error::Unsupported(format!(
            "decode attention of {heads:?} in blocks of {}",
            kv.block_size
        )));
    }
    if kv.keys.elem() != cache || kv.kv_heads != heads.kv_heads || kv.head_dim != head_dim {
        return Err(Error::Shape(format!("a cache of another shape than {heads:?}")));
    }
    check_rows(batch, limits)?;
    check_window(scores)?;
    countable(&[d.query_stride, n * head_dim])?;
    let width = n * head_dim;
    if d.query_stride < width {
        return Err(Error::Shape(format!("rows of {} for queries of {width}", d.query_stride)));
    }
    let rows_before_last = batch.tokens.saturating_sub(1) * d.query_stride;
    d.queries.expect("queries", activations, if batch.tokens == 0 { 0 } else { rows_before_last + width })?;
    d.out.expect("out", activations, batch.tokens * width)?;
    d.workspace.expect("workspace", Elem::F32, workspace_len(heads, limits))?;
    d.arrivals.expect("arrivals", Elem::U32, arrivals_len(heads, limits))?;
    for (what, view) in [("alibi", scores.alibi), ("sinks", scores.sinks)] {
        if let Some(view) = view {
            view.expect(what, Elem::F32, n)?;
        }
    }
    if let Some(prefix) = scores.prefix {
        prefix.expect("prefix", Elem::I32, batch.rows)?;
    }
    let scales = kv.scales.map(|(keys, values)| [keys, values]);
    let rows = [kv.keys, kv.values, d.workspace, d.plan].into_iter().chain(scales.into_iter().flatten());
    let aligned = rows.into_iter().all(|view| view.is_vectorizable(16))
        && d.queries.is_vectorizable(d.query_stride)
        && d.out.is_vectorizable(width);
    if !aligned {
        return Err(Error::Shape(
            "decode attention on views that do not start at multiples of 16 bytes".to_owned(),
        ));
    }
    parts(d.plan, limits)
}

fn decode_kernel(heads: &AttentionHeads, tiles: QueryTiles) -> Result<Kernel<DecodeParams>> {
    macro_rules! kernels {
        ($($features:literal $rows:literal $columns:literal),*) => {
            match (decode_features(heads.head_dim), tiles.rows, heads.cache, heads.activations) {
                $(
                    ($features, $rows, Elem::BF16, Elem::BF16) => Ok(kernel!(
                        DecodeParams, "decode_bf16", concat!("decode_", $features, "_", $columns, "_bf16_bf16")
                    )),
                    ($features, $rows, Elem::E4M3, Elem::BF16) => Ok(kernel!(
                        DecodeParams, "decode_bf16", concat!("decode_", $features, "_", $columns, "_e4m3_bf16")
                    )),
                    ($features, $rows, Elem::I8, Elem::BF16) => Ok(kernel!(
                        DecodeParams, "decode_bf16", concat!("decode_", $features, "_", $columns, "_i8_bf16")
                    )),
                    ($features, $rows, Elem::F16, Elem::F16) => Ok(kernel!(
                        DecodeParams, "decode_f16", concat!("decode_", $features, "_", $columns, "_f16_f16")
                    )),
                    ($features, $rows, Elem::E4M3, Elem::F16) => Ok(kernel!(
                        DecodeParams, "decode_f16", concat!("decode_", $features, "_", $columns, "_e4m3_f16")
                    )),
                    ($features, $rows, Elem::I8, Elem::F16) => Ok(kernel!(
                        DecodeParams, "decode_f16", concat!("decode_", $features, "_", $columns, "_i8_f16")
                    )),
                )*
                _ => Err(Error::Unsupported(format!("no kernel for decode attention of {heads:?}"))),
            }
        };
    }
    kernels!(64 8 1, 64 16 2, 96 8 1, 128 8 1, 128 16 2, 256 8 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks of smaller Ampere and Ada GPUs have 99 KiB, which is too little for tiles of 16 rows
    /// beside a cache of bytes.
    #[test]
    fn tiles_fit_the_shared_memory_of_the_device() {
        for head_dim in [64, 96, 128, 256] {
            for cache in [Elem::BF16, Elem::E4M3, Elem::I8] {
                for queries in [1, 2, 5] {
                    let heads =
                        AttentionHeads { heads: 12, kv_heads: 2, head_dim, activations: Elem::BF16, cache };
                    let limits = DecodeLimits { rows: 1, queries, splits: 1 };
                    for shared_per_block in [99 << 10, 163 << 10] {
                        let tiles = QueryTiles::of(&heads, queries, shared_per_block);
                        let shared = decode_shared_bytes(head_dim, cache.size(), tiles.rows);
                        assert!(shared <= shared_per_block, "{heads:?}: {shared}");
                        assert!(tiles.rows * tiles.count >= 6 * queries);
                        let sums = 2 * tiles.count * tiles.kept * (head_dim + STATS_WORDS);
                        assert!(sums <= workspace_len(&heads, &limits), "{heads:?} of {queries}");
                        assert!(4 * tiles.count <= arrivals_len(&heads, &limits), "{heads:?} of {queries}");
                    }
                }
            }
        }
        let heads = AttentionHeads {
            heads: 16,
            kv_heads: 1,
            head_dim: 128,
            activations: Elem::BF16,
            cache: Elem::I8,
        };
        assert_eq!(QueryTiles::of(&heads, 1, 99 << 10).rows, 8);
        assert_eq!(QueryTiles::of(&heads, 1, 163 << 10).rows, 16);
    }
}
