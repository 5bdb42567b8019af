//! The inputs of a step's kernels, made on the device.
//!
//! Each slot keeps its tokens and its block table in device memory ([`SlotState`]). A step has four
//! parts in stream order:
//! 1. [`write_ranges`] copies tokens of new sequences into the history, their biases, and new
//!    blocks into the tables.
//! 2. [`prepare`] computes token ids, positions and cache slots of the step's tokens, the
//!    [`super::paged::SequenceBatch`], and the tokens that are sampled from.
//! 3. The model and the sampler run.
//! 4. [`append`] appends the sampled tokens to the slots' tokens, where part 2 of the next step
//!    reads them.
//!
//! So the host can submit the next step before it knows the tokens that this one samples. Counts
//! lie on the device and grids follow upper bounds, so that parts 2 to 4 can be one graph. Places
//! beyond the counts are marked (token -1, slot -1, output -1), and the other kernels skip them.

use millrace_backend::{Error, Result};

use super::select::kernel;
use super::shared::step::{
    AppendSampledParams, PrepareStepParams, STEP_THREADS, SlotWriteRecord, StepOutputParams,
    StepPrefixRecord, WriteRangesParams, prepare_step_shared_bytes,
};
use super::shared::step_rows_h::StepRowRecord;
use super::sizes::{countable, int};
use crate::{Device, Elem, Grid, View};

/// Words of a row.
const ROW_WORDS: usize = size_of::<StepRowRecord>() / 4;
/// Words of a row's prefix.
const PREFIX_WORDS: usize = size_of::<StepPrefixRecord>() / 4;
/// Words of a range.
const RANGE_WORDS: usize = size_of::<SlotWriteRecord>() / 4;
/// Dynamic shared memory that every GPU gives to a kernel beside a little static shared memory.
const SHARED: usize = 47 << 10;

/// The state of all slots.
#[derive(Debug, Clone, Copy)]
pub struct SlotState<'a> {
    /// Number of slots.
    pub slots: usize,
    /// i32 `[slots, history_stride]`: tokens by position.
    pub history: View<'a>,
    /// The most tokens of a slot. Tokens sampled beyond it are only reported.
    pub history_stride: usize,
    /// i32 `[slots, table_stride]`: the block that holds positions `[b * block_size, (b + 1) *
    /// block_size)`.
    pub tables: View<'a>,
    /// The most blocks of a slot.
    pub table_stride: usize,
}

impl<'a> SlotState<'a> {
    /// The tokens as an array to write to.
    pub fn histories(&self) -> SlotArray<'a> {
        SlotArray { slots: self.slots, words: self.history, stride: self.history_stride }
    }

    /// The block tables as an array to write to.
    pub fn block_tables(&self) -> SlotArray<'a> {
        SlotArray { slots: self.slots, words: self.tables, stride: self.table_stride }
    }

    fn check(&self) -> Result<()> {
        countable(&[self.slots, self.history_stride, self.table_stride])?;
        self.history.expect("history", Elem::I32, self.slots * self.history_stride)?;
        self.tables.expect("tables of slots", Elem::I32, self.slots * self.table_stride)
    }
}

/// Copies of words into slots.
#[derive(Debug, Clone, Copy)]
pub struct SlotWrites<'a> {
    /// An upper bound of the number of ranges.
    pub most: usize,
    /// i32 `[1]`: the number of ranges.
    pub count: View<'a>,
    /// i32 `[most, 4]`: the slot, the first position in it, the first word, and the number of
    /// words. No two overlap.
    pub ranges: View<'a>,
    /// i32: the words.
    pub words: View<'a>,
}

/// An array with a row for each slot, i32 `[slots, stride]`.
#[derive(Debug, Clone, Copy)]
pub struct SlotArray<'a> {
    /// Number of slots.
    pub slots: usize,
    /// All rows.
    pub words: View<'a>,
    /// The most words of a slot.
    pub stride: usize,
}

/// Writes words of the host into the slots' rows.
///
/// # Errors
/// [`Error::Shape`] for views that are too short, or an error of the launch.
pub fn write_ranges(device: &Device, to: &SlotArray<'_>, ranges: &SlotWrites<'_>) -> Result<()> {
    countable(&[to.slots, to.stride, ranges.most])?;
    to.words.expect("rows of slots", Elem::I32, to.slots * to.stride)?;
    ranges.count.expect("count of ranges", Elem::I32, 1)?;
    ranges.ranges.expect("ranges", Elem::I32, ranges.most * RANGE_WORDS)?;
    ranges.words.expect("words", Elem::I32, 0)?;
    aligned("ranges", ranges.ranges)?;
    if ranges.most == 0 {
        return Ok(());
    }
    let params = WriteRangesParams {
        to: to.words.into(),
        words: ranges.words.into(),
        ranges: ranges.ranges.into(),
        count: ranges.count.into(),
        stride: int(to.stride),
    };
    let kernel = kernel!(WriteRangesParams, "step", "write_ranges_i32");
    // SAFETY: the views were checked; numbers on the device were validated when the step was
    // uploaded.
    unsafe { device.launch(kernel, Grid::flat(ranges.most, STEP_THREADS as u32), &params) }
}

/// The rows of a step, as the host uploads them.
#[derive(Debug, Clone, Copy)]
pub struct StepRows<'a> {
    /// An upper bound of the number of rows.
    pub most: usize,
    /// i32 `[1]`: the number of rows.
    pub count: View<'a>,
    /// i32 `[most, 4]`: the slot, the first position, the number of positions (at least 1), and
    /// whether a token is sampled after the last.
    pub rows: View<'a>,
    /// i32 `[most, 2]`: the length of the sequence's prefix, whose tokens attend to each other in
    /// both directions, and the position that stands for all later tokens on the first axis of a
    /// rotation with two axes.
    pub prefixes: View<'a>,
}

/// The inputs of a step's kernels.
#[derive(Debug, Clone, Copy)]
pub struct PreparedStep<'a> {
    /// An upper bound of the number of tokens.
    pub max_tokens: usize,
    /// i32 `[max_rows + 1]`: as in [`super::paged::SequenceBatch`]; rows beyond the count are
    /// empty.
    pub query_start: View<'a>,
    /// i32 `[max_rows]`; 0 beyond the count.
    pub context: View<'a>,
    /// i32 `[max_rows]`: the length of each sequence's prefix; 0 beyond the count.
    pub prefix: View<'a>,
    /// i32 `[max_rows, table_stride]`, filled as far as the context goes.
    pub tables: View<'a>,
    /// i32 `[max_tokens]`: ids; -1 beyond the count.
    pub tokens: View<'a>,
    /// i32 `[max_tokens]`; 0 beyond the count.
    pub positions: View<'a>,
    /// i32 `[2, max_tokens]`: positions on the axes of a rotation that has two; 0 beyond the count.
    pub axes: View<'a>,
    /// i32 `[max_tokens]`: cache slots as the prologue takes them; -1 beyond the count.
    pub slots: View<'a>,
    /// i32 `[max_rows]`: the tokens that are sampled from; -1 beyond the count.
    pub outputs: View<'a>,
    /// i32 `[max_rows]`: the slot of each output.
    pub output_slots: View<'a>,
    /// i32 `[max_rows]`: the position that the sampled token gets.
    pub output_at: View<'a>,
    /// i32 `[2]`: tokens, outputs.
    pub counts: View<'a>,
}

impl PreparedStep<'_> {
    fn check(&self, max_rows: usize, table_stride: usize) -> Result<()> {
        countable(&[self.max_tokens, max_rows, table_stride])?;
        let views = [
            ("query_start", self.query_start, max_rows + 1),
            ("context", self.context, max_rows),
            ("prefix", self.prefix, max_rows),
            ("tables", self.tables, max_rows * table_stride),
            ("tokens", self.tokens, self.max_tokens),
            ("positions", self.positions, self.max_tokens),
            ("axes", self.axes, 2 * self.max_tokens),
            ("slots", self.slots, self.max_tokens),
            ("outputs", self.outputs, max_rows),
            ("output_slots", self.output_slots, max_rows),
            ("output_at", self.output_at, max_rows),
            ("counts", self.counts, 2),
        ];
        views.into_iter().try_for_each(|(what, view, len)| view.expect(what, Elem::I32, len))
    }
}

/// Computes the inputs of a step's kernels from its rows and the slots.
///
/// # Errors
/// [`Error::Shape`] for views that are too short or more rows than a block can look
/// through, or an error of the launch.
pub fn prepare(
    device: &Device,
    slots: &SlotState<'_>,
    rows: &StepRows<'_>,
    block_size: usize,
    out: &PreparedStep<'_>,
) -> Result<()> {
    check(slots, rows, block_size, out)?;
    let shared = prepare_step_shared_bytes(rows.most);
    if shared > SHARED {
        return Err(Error::Shape(format!("a step of {} rows", rows.most)));
    }
    let blocks = out.max_tokens.div_ceil(STEP_THREADS) + rows.most;
    let grid = Grid::flat(blocks, STEP_THREADS as u32).with_shared(shared);
    let kernel = kernel!(PrepareStepParams, "step", "prepare_step_i32");
    // SAFETY: the views were checked; numbers on the device were validated when the step was
    // uploaded.
    unsafe { device.launch(kernel, grid, &prepare_params(slots, rows, block_size, out)) }
}

/// Does the same by the plain kernel, in one thread that goes from row to row. It is the reference
/// of [`prepare`].
///
/// # Errors
/// As for [`prepare`].
pub fn prepare_plain(
    device: &Device,
    slots: &SlotState<'_>,
    rows: &StepRows<'_>,
    block_size: usize,
    out: &PreparedStep<'_>,
) -> Result<()> {
    check(slots, rows, block_size, out)?;
    let kernel = kernel!(PrepareStepParams, "step", "prepare_step_plain_i32");
    // SAFETY: the views were checked; numbers on the device were validated when the step was
    // uploaded.
    unsafe { device.launch(kernel, Grid::flat(1, 1), &prepare_params(slots, rows, block_size, out)) }
}

fn check(
    slots: &SlotState<'_>,
    rows: &StepRows<'_>,
    block_size: usize,
    out: &PreparedStep<'_>,
) -> Result<()> {
    slots.check()?;
    out.check(rows.most, slots.table_stride)?;
    countable(&[block_size])?;
    rows.count.expect("count of rows", Elem::I32, 1)?;
    rows.rows.expect("rows", Elem::I32, rows.most * ROW_WORDS)?;
    aligned("rows", rows.rows)?;
    rows.prefixes.expect("prefixes of rows", Elem::I32, rows.most * PREFIX_WORDS)?;
    aligned("prefixes of rows", rows.prefixes)?;
    if block_size == 0 || out.max_tokens == 0 {
        return Err(Error::Shape(format!("a step of {} tokens in blocks of {block_size}", out.max_tokens)));
    }
    Ok(())
}

fn prepare_params(
    slots: &SlotState<'_>,
    rows: &StepRows<'_>,
    block_size: usize,
    out: &PreparedStep<'_>,
) -> PrepareStepParams {
    PrepareStepParams {
        out: StepOutputParams {
            query_start: out.query_start.into(),
            context: out.context.into(),
            prefix: out.prefix.into(),
            tables: out.tables.into(),
            tokens: out.tokens.into(),
            positions: out.positions.into(),
            axes: out.axes.into(),
            slots: out.slots.into(),
            outputs: out.outputs.into(),
            output_slots: out.output_slots.into(),
            output_at: out.output_at.into(),
            counts: out.counts.into(),
        },
        rows: rows.rows.into(),
        prefixes: rows.prefixes.into(),
        row_count: rows.count.into(),
        history: slots.history.into(),
        slot_tables: slots.tables.into(),
        history_stride: int(slots.history_stride),
        table_stride: int(slots.table_stride),
        max_rows: int(rows.most),
        max_tokens: int(out.max_tokens),
        block_size: int(block_size),
    }
}

/// Appends the sampled tokens, i32 `[max_rows]` in the order of the outputs, to the tokens of the
/// slots.
///
/// # Errors
/// [`Error::Shape`] for views that are too short, or an error of the launch.
pub fn append(
    device: &Device,
    slots: &SlotState<'_>,
    prepared: &PreparedStep<'_>,
    max_rows: usize,
    sampled: View<'_>,
) -> Result<()> {
    slots.check()?;
    prepared.check(max_rows, slots.table_stride)?;
    sampled.expect("sampled", Elem::I32, max_rows)?;
    if max_rows == 0 {
        return Ok(());
    }
    let params = AppendSampledParams {
        history: slots.history.into(),
        sampled: sampled.into(),
        output_slots: prepared.output_slots.into(),
        output_at: prepared.output_at.into(),
        counts: prepared.counts.into(),
        history_stride: int(slots.history_stride),
    };
    let grid = Grid::flat(max_rows.div_ceil(STEP_THREADS), STEP_THREADS as u32);
    let kernel = kernel!(AppendSampledParams, "step", "append_sampled_i32");
    // SAFETY: the views were checked; `prepare` computed the numbers on the device.
    unsafe { device.launch(kernel, grid, &params) }
}

/// Refuses a view that the kernels cannot read in units of four words.
fn aligned(what: &str, view: View<'_>) -> Result<()> {
    if view.address().is_multiple_of(16) {
        return Ok(());
    }
    Err(Error::Shape(format!("{what} do not begin at a multiple of 16 bytes")))
}
