//! Decode attention: a few queries per sequence over a paged cache of 16-token blocks, split over the context.
//!
//! Once per step, [`plan`] lists on the device which pieces of which sequences there are to read; all layers that share a window then
//! call [`decode`] with that list. Sequences are cut every [`split_tokens`] tokens, whatever else is in the step, so a sequence's
//! output is the same bits in any company.

use super::countable;
use super::paged::{Batch, PagedKv, Scores};
use crate::cuda::{Args, Cost, Device, Elem, Grid, View};
use crate::{Error, Result};

/// Tokens of a cached block that the kernels know.
const BLOCK_TOKENS: usize = 16;

/// What stays the same through a model's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heads {
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

/// The most that a step has, for which memory is set aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Sequences.
    pub rows: usize,
    /// Queries of a sequence. A sequence with more is left to the kernel for prompts.
    pub queries: usize,
    /// Splits of all sequences together: the sum of [`splits`].
    pub splits: usize,
}

/// Tokens of a split: 1024 bytes of keys and values per feature.
pub const fn split_tokens(cache: Elem) -> usize {
    512 / cache.size()
}

/// How many splits a sequence of `context` keys has at most. A window makes them fewer.
pub const fn splits(cache: Elem, context: usize) -> usize {
    context.div_ceil(split_tokens(cache))
}

/// Whether the kernels can do it: 16-bit activations, a cache of their type, e4m3 or i8 in blocks of 16 tokens, and a head size
/// that is a multiple of 16 and at most 256.
pub fn supports(heads: &Heads, block_size: usize) -> bool {
    let cached = heads.cache == heads.activations || matches!(heads.cache, Elem::E4M3 | Elem::I8);
    matches!(heads.activations, Elem::F16 | Elem::BF16)
        && cached
        && block_size == BLOCK_TOKENS
        && heads.head_dim != 0
        && heads.head_dim.is_multiple_of(16)
        && heads.head_dim <= 256
        && heads.kv_heads != 0
        && heads.heads != 0
        && heads.heads.is_multiple_of(heads.kv_heads)
}

/// i32 elements of a plan's memory.
pub const fn plan_len(limits: &Limits) -> usize {
    2 + 2 * limits.splits + limits.rows + 1
}

/// f32 elements of the memory for partial sums. All layers can share it.
pub fn workspace_len(heads: &Heads, limits: &Limits) -> usize {
    let tiles = Tiles::of(heads, limits.queries);
    limits.splits * heads.kv_heads * tiles.count * tiles.kept * (heads.head_dim + 2)
}

/// How the query rows of a key/value head are cut into what one work item takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Tiles {
    /// Rows of a tile: 8 or 16.
    rows: usize,
    /// Rows of a tile that there can be.
    kept: usize,
    /// Tiles of a key/value head.
    count: usize,
}

impl Tiles {
    fn of(heads: &Heads, queries: usize) -> Tiles {
        let all = heads.heads / heads.kv_heads * queries;
        // Two groups of columns would not fit the registers beside features of these sizes.
        let wide = all > 8 && matches!(padded(heads.head_dim), 64 | 128);
        let rows = if wide { 16 } else { 8 };
        Tiles { rows, kept: all.min(rows), count: all.div_ceil(rows) }
    }
}

/// The features that a kernel for heads of this size works on.
const fn padded(head_dim: usize) -> usize {
    match head_dim {
        0..=64 => 64,
        65..=96 => 96,
        97..=128 => 128,
        _ => 256,
    }
}

/// Threads of a block, and its dynamic shared memory: `Decode::kThreads` and `Decode::kShared`.
fn block_of(heads: &Heads, tiles: Tiles) -> (u32, usize) {
    let features = padded(heads.head_dim);
    let warps = if features > 128 { 2 } else { 4 };
    let tile = BLOCK_TOKENS * features * heads.cache.size();
    let scales = if heads.cache.size() == 1 { BLOCK_TOKENS * 4 } else { 0 };
    let stages = (65536 / (warps * 2 * tile)).min(4);
    let ring = warps * stages * 2 * (tile + scales);
    (warps as u32 * 32, ring + warps * tiles.rows * ((features + 4) * 4 + 8))
}

/// A plan's memory in its parts.
struct Parts<'a> {
    count: View<'a>,
    list: View<'a>,
    starts: View<'a>,
}

fn parts<'a>(plan: View<'a>, limits: &Limits) -> Result<Parts<'a>> {
    countable(&[plan_len(limits), limits.rows * limits.queries])?;
    plan.expect("plan", Elem::I32, plan_len(limits))?;
    if limits.queries == 0 {
        return Err(Error::Shape("decode attention for sequences of no query".to_owned()));
    }
    let starts = 2 + 2 * limits.splits;
    Ok(Parts {
        count: plan.slice(0..1),
        list: plan.slice(2..starts),
        starts: plan.slice(starts..starts + limits.rows + 1),
    })
}

/// Lists the splits of the step's sequences in `plan`, i32 of [`plan_len`]. `splits` is how many they are at most by the host's count; a
/// sequence without queries, or with more than the limits say, has none.
///
/// The plan depends on the window and the prefixes of `scores` and on nothing else of it.
///
/// # Errors
/// [`Error::Shape`] for a step beyond the limits or views that are too short, or what the launch fails with.
pub fn plan(
    device: &Device,
    batch: &Batch<'_>,
    scores: &Scores<'_>,
    cache: Elem,
    limits: &Limits,
    splits: usize,
    plan: View<'_>,
) -> Result<()> {
    batch.check()?;
    let parts = parts(plan, limits)?;
    within(batch, limits)?;
    if splits > limits.splits {
        return Err(Error::Shape(format!(
            "{splits} splits of sequences where memory is for {}",
            limits.splits
        )));
    }
    if let Some(prefix) = scores.prefix {
        prefix.expect("prefix", Elem::I32, batch.rows)?;
    }
    let args = Args::new().with(parts.count).with(parts.list).with(parts.starts);
    let args = args.with(batch.query_start).with(batch.context).with(scores.prefix);
    let args = args.with(batch.rows).with(limits.queries).with(window(scores)?);
    let args = args.with(split_tokens(cache)).with(limits.splits);
    // SAFETY: the views were checked to be as long as the limits and the batch say, and the kernel writes no split beyond them.
    unsafe { device.launch("decode", "decode_plan", Grid::flat(1, 1024), &args) }
}

fn within(batch: &Batch<'_>, limits: &Limits) -> Result<()> {
    if batch.rows > limits.rows {
        return Err(Error::Shape(format!("{} sequences where memory is for {}", batch.rows, limits.rows)));
    }
    Ok(())
}

/// The window as the kernels take it.
fn window(scores: &Scores<'_>) -> Result<i32> {
    match scores.window {
        Some(0) => Err(Error::Shape("a window of no keys".to_owned())),
        Some(window) => Ok(i32::try_from(window).unwrap_or(i32::MAX)),
        None => Ok(i32::MAX),
    }
}

/// One layer's decode attention.
#[derive(Debug, Clone, Copy)]
pub struct Decode<'a> {
    /// The model's sizes and types.
    pub heads: Heads,
    /// The step's limits, those that the plan was made with.
    pub limits: Limits,
    /// Queries, `[tokens, query_stride]`, the heads of a token first in its row.
    pub queries: View<'a>,
    /// Elements from one token's queries to the next one's.
    pub query_stride: usize,
    /// Keys and values.
    pub kv: PagedKv<'a>,
    /// The step's sequences.
    pub batch: Batch<'a>,
    /// The softmax. Window and prefixes are those that the plan was made with.
    pub scores: Scores<'a>,
    /// What [`plan`] wrote.
    pub plan: View<'a>,
    /// f32 of [`workspace_len`].
    pub workspace: View<'a>,
    /// `[tokens, heads * head_dim]`. Rows of sequences that the plan left out stay as they are.
    pub out: View<'a>,
}

/// `out = softmax(scores) · values` for the sequences in the plan.
///
/// # Errors
/// [`Error::Unsupported`] for what [`supports`] denies, [`Error::Shape`] for views that are too short, of another type or
/// misaligned, or what the launches fail with.
pub fn decode(device: &Device, d: &Decode<'_>) -> Result<()> {
    let Decode { heads, limits, batch, scores, kv, .. } = d;
    let parts = check(d)?;
    if batch.rows == 0 || batch.tokens == 0 || limits.splits == 0 {
        return Ok(());
    }
    let tiles = Tiles::of(heads, limits.queries);
    let (threads, shared) = block_of(heads, tiles);
    let properties = device.properties();
    // A multiprocessor has 1 KiB more than one block of it can have, and keeps 1 KiB of it for each block. Registers are for three.
    let at_once = ((properties.shared_per_block + 1024) / (shared + 1024)).clamp(1, 3);
    let items = limits.splits * heads.kv_heads * tiles.count;
    countable(&[items])?;
    let blocks = items.min(properties.multiprocessors as usize * at_once);
    let slots = items * tiles.kept;
    let partials = d.workspace.slice(0..slots * heads.head_dim);
    let stats = d.workspace.slice(slots * heads.head_dim..slots * (heads.head_dim + 2));
    let (key_scales, value_scales) = kv.scales.unzip();

    let (module, name) = kernel(heads, tiles)?;
    let args = Args::new().with(d.out).with(partials).with(stats).with(d.queries);
    let args = args.with(kv.keys).with(kv.values).with(key_scales).with(value_scales);
    let args = args.with(parts.count).with(parts.list).with(batch.query_start).with(batch.context);
    let args = args.with(batch.tables).with(scores.alibi).with(scores.sinks).with(scores.prefix);
    let args = args.with(d.query_stride).with(batch.table_stride).with(heads.heads).with(heads.kv_heads);
    let args = args.with(heads.head_dim).with(tiles.count).with(tiles.kept).with(window(scores)?);
    let args = args.with(scores.scale).with(scores.soft_cap.unwrap_or(0.0));
    // SAFETY: `check` compared all views with the shapes; the plan's items lie within the limits that the workspace was checked for.
    unsafe { device.launch(module, name, Grid::flat(blocks, threads).with_shared(shared), &args)? };

    let name = match heads.activations {
        Elem::F16 => "decode_combine_f16",
        _ => "decode_combine_bf16",
    };
    let args = Args::new().with(d.out).with(partials).with(stats).with(parts.starts).with(batch.query_start);
    let args = args.with(scores.sinks).with(heads.heads).with(heads.kv_heads).with(heads.head_dim);
    let args =
        args.with(tiles.count).with(tiles.kept).with(tiles.rows).with(limits.queries).with(limits.splits);
    let grid =
        Grid { blocks: [heads.heads as u32, (batch.rows * limits.queries) as u32, 1], ..Grid::flat(1, 128) };
    // SAFETY: as above.
    unsafe { device.launch("decode", name, grid, &args) }
}

fn check<'a>(d: &Decode<'a>) -> Result<Parts<'a>> {
    let Decode { heads, limits, batch, scores, kv, .. } = d;
    let Heads { heads: n, head_dim, activations, cache, .. } = *heads;
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
    within(batch, limits)?;
    countable(&[d.query_stride, n * head_dim])?;
    let width = n * head_dim;
    if d.query_stride < width {
        return Err(Error::Shape(format!("rows of {} for queries of {width}", d.query_stride)));
    }
    let rows_before_last = batch.tokens.saturating_sub(1) * d.query_stride;
    d.queries.expect("queries", activations, if batch.tokens == 0 { 0 } else { rows_before_last + width })?;
    d.out.expect("out", activations, batch.tokens * width)?;
    d.workspace.expect("workspace", Elem::F32, workspace_len(heads, limits))?;
    for (what, view) in [("alibi", scores.alibi), ("sinks", scores.sinks)] {
        if let Some(view) = view {
            view.expect(what, Elem::F32, n)?;
        }
    }
    if let Some(prefix) = scores.prefix {
        prefix.expect("prefix", Elem::I32, batch.rows)?;
    }
    if batch.rows * limits.queries > usize::from(u16::MAX) {
        return Err(Error::Shape(format!("{} rows of up to {} queries", batch.rows, limits.queries)));
    }
    let scales = kv.scales.map(|(keys, values)| [keys, values]);
    let rows = [kv.keys, kv.values, d.workspace].into_iter().chain(scales.into_iter().flatten());
    let aligned = rows.into_iter().all(|view| view.is_vectorisable(16))
        && d.queries.is_vectorisable(d.query_stride)
        && d.out.is_vectorisable(width);
    if !aligned || !d.plan.address().is_multiple_of(8) {
        return Err(Error::Shape(
            "decode attention on views that do not start at multiples of 16 bytes".to_owned(),
        ));
    }
    parts(d.plan, limits)
}

/// Module and name of the kernel.
fn kernel(heads: &Heads, tiles: Tiles) -> Result<(&'static str, &'static str)> {
    macro_rules! names {
        ($($features:literal $rows:literal $columns:literal),*) => {
            match (padded(heads.head_dim), tiles.rows, heads.cache, heads.activations) {
                $(
                    ($features, $rows, Elem::BF16, Elem::BF16) => Some(concat!("decode_", $features, "_", $columns, "_bf16_bf16")),
                    ($features, $rows, Elem::E4M3, Elem::BF16) => Some(concat!("decode_", $features, "_", $columns, "_e4m3_bf16")),
                    ($features, $rows, Elem::I8, Elem::BF16) => Some(concat!("decode_", $features, "_", $columns, "_i8_bf16")),
                    ($features, $rows, Elem::F16, Elem::F16) => Some(concat!("decode_", $features, "_", $columns, "_f16_f16")),
                    ($features, $rows, Elem::E4M3, Elem::F16) => Some(concat!("decode_", $features, "_", $columns, "_e4m3_f16")),
                    ($features, $rows, Elem::I8, Elem::F16) => Some(concat!("decode_", $features, "_", $columns, "_i8_f16")),
                )*
                _ => None,
            }
        };
    }
    let name = names!(64 8 1, 64 16 2, 96 8 1, 128 8 1, 128 16 2, 256 8 1);
    let module = if heads.activations == Elem::F16 { "decode_f16" } else { "decode_bf16" };
    name.map(|name| (module, name))
        .ok_or_else(|| Error::Unsupported(format!("no kernel for decode attention of {heads:?}")))
}

/// What a layer's decode attention costs at least for sequences of `queries` queries that see so many keys each: keys, values and queries
/// read, the output written. Partial sums are the kernel's own affair and not counted.
pub fn cost(heads: &Heads, queries: usize, contexts: &[usize]) -> Cost {
    let scales = if heads.cache.size() == 1 { 4 } else { 0 };
    let keys: usize = contexts.iter().sum();
    let kv = keys * heads.kv_heads * 2 * (heads.head_dim * heads.cache.size() + scales);
    let width = heads.heads * heads.head_dim;
    let moved = kv + contexts.len() * queries * 2 * width * heads.activations.size();
    Cost { flops: (keys * queries * width * 4) as f64, ..Cost::moving(moved) }
}
