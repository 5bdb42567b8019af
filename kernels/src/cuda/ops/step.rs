//! What a step needs to know, made on the device.
//!
//! Each slot keeps its tokens and its block table in device memory ([`Slots`]). Per step, in stream order:
//! 1. [`write_ranges`]: tokens of new sequences into the history, their biases, new blocks into the tables;
//! 2. [`prepare`]: token ids, positions and places of the step's tokens, the [`super::paged::Batch`], and which tokens are sampled from;
//! 3. the model and the sampler;
//! 4. [`append`]: what was sampled goes to the end of the slots' tokens, where step 2 of the next step finds it.
//!
//! So the host can ask for the next step before it knows what this one sampled. Counts lie on the device and grids follow upper bounds, so
//! that 2 to 4 can be one graph; what lies beyond the counts is marked (token -1, slot -1, output -1), which the other kernels skip.

use super::countable;
use crate::cuda::{Args, Cost, Device, Elem, Grid, View};
use crate::{Error, Result};

const THREADS: u32 = 256;
/// Words of a row and of a range.
const WORDS: usize = 4;
/// Shared memory that every kernel can have.
const SHARED: usize = 48 << 10;

/// The state of all slots.
#[derive(Debug, Clone, Copy)]
pub struct Slots<'a> {
    /// Number of slots.
    pub slots: usize,
    /// i32 `[slots, history_stride]`: tokens by position.
    pub history: View<'a>,
    /// The most tokens of a slot. What is sampled beyond is only reported.
    pub history_stride: usize,
    /// i32 `[slots, table_stride]`: the block that holds positions `[b * block_size, (b + 1) * block_size)`.
    pub tables: View<'a>,
    /// The most blocks of a slot.
    pub table_stride: usize,
}

impl<'a> Slots<'a> {
    /// The tokens as a list to write to.
    pub fn histories(&self) -> List<'a> {
        List { slots: self.slots, words: self.history, stride: self.history_stride }
    }

    /// The block tables likewise.
    pub fn block_tables(&self) -> List<'a> {
        List { slots: self.slots, words: self.tables, stride: self.table_stride }
    }

    fn check(&self) -> Result<()> {
        countable(&[self.slots, self.history_stride, self.table_stride])?;
        self.history.expect("history", Elem::I32, self.slots * self.history_stride)?;
        self.tables.expect("tables of slots", Elem::I32, self.slots * self.table_stride)
    }
}

/// Words for some slots.
#[derive(Debug, Clone, Copy)]
pub struct Ranges<'a> {
    /// There are no more ranges than this.
    pub most: usize,
    /// i32 `[1]`: how many there are.
    pub count: View<'a>,
    /// i32 `[most, 4]`: the slot, the first position in it, the first of the words, and how many. No two overlap.
    pub ranges: View<'a>,
    /// i32: the words.
    pub words: View<'a>,
}

/// A list that each slot has, i32 `[slots, stride]`.
#[derive(Debug, Clone, Copy)]
pub struct List<'a> {
    /// Number of slots.
    pub slots: usize,
    /// All lists.
    pub words: View<'a>,
    /// The most words of a slot.
    pub stride: usize,
}

/// Writes words of the host into the slots' lists.
///
/// # Errors
/// [`Error::Shape`] for views that are too short, or what the launch fails with.
pub fn write_ranges(device: &Device, to: &List<'_>, ranges: &Ranges<'_>) -> Result<()> {
    countable(&[to.slots, to.stride, ranges.most])?;
    to.words.expect("lists of slots", Elem::I32, to.slots * to.stride)?;
    ranges.count.expect("count of ranges", Elem::I32, 1)?;
    ranges.ranges.expect("ranges", Elem::I32, ranges.most * WORDS)?;
    ranges.words.expect("words", Elem::I32, 0)?;
    aligned("ranges", ranges.ranges)?;
    if ranges.most == 0 {
        return Ok(());
    }
    let args = Args::new().with(to.words).with(ranges.words).with(ranges.ranges);
    let args = args.with(ranges.count).with(to.stride);
    // SAFETY: the views were checked; numbers on the device were validated when the step was taken in.
    unsafe { device.launch("step", "write_ranges_i32", Grid::flat(ranges.most, THREADS), &args) }
}

/// What the host says of a step.
#[derive(Debug, Clone, Copy)]
pub struct Rows<'a> {
    /// There are no more rows than this.
    pub most: usize,
    /// i32 `[1]`: how many there are.
    pub count: View<'a>,
    /// i32 `[most, 4]`: the slot, the first position, how many positions (at least 1), and whether a token is sampled after the last.
    pub rows: View<'a>,
}

/// What the kernels of a step read.
#[derive(Debug, Clone, Copy)]
pub struct Prepared<'a> {
    /// There are no more tokens than this.
    pub most_tokens: usize,
    /// i32 `[most_rows + 1]`: as in [`super::paged::Batch`]; rows beyond the count are empty.
    pub query_start: View<'a>,
    /// i32 `[most_rows]`; 0 beyond the count.
    pub context: View<'a>,
    /// i32 `[most_rows, table_stride]`, filled as far as the context goes.
    pub tables: View<'a>,
    /// i32 `[most_tokens]`: ids; -1 beyond the count.
    pub tokens: View<'a>,
    /// i32 `[most_tokens]`; 0 beyond the count.
    pub positions: View<'a>,
    /// i32 `[most_tokens]`: places in the cache as the prologue takes them; -1 beyond the count.
    pub slots: View<'a>,
    /// i32 `[most_rows]`: the tokens that are sampled from; -1 beyond the count.
    pub outputs: View<'a>,
    /// i32 `[most_rows]`: the slot of each output.
    pub output_slots: View<'a>,
    /// i32 `[most_rows]`: the position that the sampled token gets.
    pub output_at: View<'a>,
    /// i32 `[2]`: tokens, outputs.
    pub counts: View<'a>,
}

impl Prepared<'_> {
    fn check(&self, most_rows: usize, table_stride: usize) -> Result<()> {
        countable(&[self.most_tokens, most_rows, table_stride])?;
        let views = [
            ("query_start", self.query_start, most_rows + 1),
            ("context", self.context, most_rows),
            ("tables", self.tables, most_rows * table_stride),
            ("tokens", self.tokens, self.most_tokens),
            ("positions", self.positions, self.most_tokens),
            ("slots", self.slots, self.most_tokens),
            ("outputs", self.outputs, most_rows),
            ("output_slots", self.output_slots, most_rows),
            ("output_at", self.output_at, most_rows),
            ("counts", self.counts, 2),
        ];
        views.into_iter().try_for_each(|(what, view, len)| view.expect(what, Elem::I32, len))
    }
}

/// Makes what the kernels of a step read from its rows and the slots.
///
/// # Errors
/// [`Error::Shape`] for views that are too short or more rows than a block can look through, or what the launch fails with.
pub fn prepare(
    device: &Device,
    slots: &Slots<'_>,
    rows: &Rows<'_>,
    block_size: usize,
    out: &Prepared<'_>,
) -> Result<()> {
    check(slots, rows, block_size, out)?;
    let shared = (rows.most + 1) * size_of::<i32>();
    if shared > SHARED - 1024 {
        return Err(Error::Shape(format!("a step of {} rows", rows.most)));
    }
    let blocks = out.most_tokens.div_ceil(THREADS as usize) + rows.most;
    let grid = Grid::flat(blocks, THREADS).with_shared(shared);
    // SAFETY: the views were checked; numbers on the device were validated when the step was taken in.
    unsafe { device.launch("step", "prepare_step_i32", grid, &arguments(slots, rows, block_size, out)) }
}

/// The same by one thread that goes from row to row: what [`prepare`] is compared with.
///
/// # Errors
/// As for [`prepare`].
pub fn prepare_plain(
    device: &Device,
    slots: &Slots<'_>,
    rows: &Rows<'_>,
    block_size: usize,
    out: &Prepared<'_>,
) -> Result<()> {
    check(slots, rows, block_size, out)?;
    let args = arguments(slots, rows, block_size, out);
    // SAFETY: as above.
    unsafe { device.launch("step", "prepare_step_plain_i32", Grid::flat(1, 1), &args) }
}

fn check(slots: &Slots<'_>, rows: &Rows<'_>, block_size: usize, out: &Prepared<'_>) -> Result<()> {
    slots.check()?;
    out.check(rows.most, slots.table_stride)?;
    countable(&[block_size])?;
    rows.count.expect("count of rows", Elem::I32, 1)?;
    rows.rows.expect("rows", Elem::I32, rows.most * WORDS)?;
    aligned("rows", rows.rows)?;
    if block_size == 0 || out.most_tokens == 0 {
        return Err(Error::Shape(format!("a step of {} tokens in blocks of {block_size}", out.most_tokens)));
    }
    Ok(())
}

fn arguments(slots: &Slots<'_>, rows: &Rows<'_>, block_size: usize, out: &Prepared<'_>) -> Args {
    Args::new()
        .with(out.query_start)
        .with(out.context)
        .with(out.tables)
        .with(out.tokens)
        .with(out.positions)
        .with(out.slots)
        .with(out.outputs)
        .with(out.output_slots)
        .with(out.output_at)
        .with(out.counts)
        .with(rows.rows)
        .with(rows.count)
        .with(slots.history)
        .with(slots.history_stride)
        .with(slots.tables)
        .with(slots.table_stride)
        .with(rows.most)
        .with(out.most_tokens)
        .with(block_size)
}

/// Appends what was sampled, i32 `[most_rows]` in the order of the outputs, to the tokens of the slots.
///
/// # Errors
/// [`Error::Shape`] for views that are too short, or what the launch fails with.
pub fn append(
    device: &Device,
    slots: &Slots<'_>,
    prepared: &Prepared<'_>,
    most_rows: usize,
    sampled: View<'_>,
) -> Result<()> {
    slots.check()?;
    prepared.check(most_rows, slots.table_stride)?;
    sampled.expect("sampled", Elem::I32, most_rows)?;
    if most_rows == 0 {
        return Ok(());
    }
    let args = Args::new().with(slots.history).with(sampled).with(prepared.output_slots);
    let args = args.with(prepared.output_at).with(prepared.counts).with(slots.history_stride);
    let grid = Grid::flat(most_rows.div_ceil(THREADS as usize), THREADS);
    // SAFETY: as above.
    unsafe { device.launch("step", "append_sampled_i32", grid, &args) }
}

/// What the preparation of `tokens` tokens in `rows` rows with tables of `blocks` blocks costs.
pub fn cost(rows: usize, tokens: usize, blocks: usize) -> Cost {
    Cost::moving(rows * (16 + 2 * 4 + 3 * 4 + 2 * 4 * blocks) + tokens * (2 * 4 + 3 * 4))
}

/// The kernels read four words at once.
fn aligned(what: &str, view: View<'_>) -> Result<()> {
    if view.address().is_multiple_of(16) {
        return Ok(());
    }
    Err(Error::Shape(format!("{what} do not begin at a multiple of 16 bytes")))
}
