//! Recurrent layers: short convolutions, recurrences over the tokens of a sequence, and products
//! with gates.
//!
//! The states lie in slots, in f32 (see [`StateSpec`]). The kernels compute token by token: results
//! depend neither on the chunks of a prompt nor on the other rows of a step.

use millrace_backend::{Error, RecurrentHeads, Result, StateSpec};

pub use super::activation::KernelVersion;
pub use super::shared::recurrent::GateKind;

use super::activation::ActivationKind;
use super::select::typed;
use super::shared::recurrent::{
    CONVOLVE_TAPS, CONVOLVE_THREADS, CONVOLVE_TOKENS, ConvolveParams, LARGE_KEYS, MultiplyGatesParams,
    RECUR_COLUMNS, RECUR_THREADS, RecurParams, SMALL_KEYS,
};
use super::shared::step_rows_h::StepRowRecord;
use super::sizes::{MAX_BLOCKS, countable, int, rowwise_grid, vectorizable};
use crate::{Device, Elem, Grid, View};

/// Words that describe a row.
const ROW_WORDS: usize = size_of::<StepRowRecord>() / 4;

/// The most blocks of a convolution for each piece of its channels. Longer rows are convolved by
/// fewer blocks, one group of tokens after the other.
const MAX_GROUPS: usize = 4096;

/// The rows of a step as recurrent layers need them.
///
/// The numbers on the device were validated when the step was uploaded; the kernels trust them. No
/// two rows with tokens have the same slot.
#[derive(Debug, Clone, Copy)]
pub struct StateRows<'a> {
    /// Rows; a row may have no token.
    pub rows: usize,
    /// Tokens of the step.
    pub tokens: usize,
    /// An upper bound of a row's tokens.
    pub max_tokens: usize,
    /// i32 `[rows, 4]`: the slot, the first position, the number of tokens, and a number that is
    /// not read.
    pub records: View<'a>,
    /// i32 `[rows + 1]`: index of each row's first token in the step, ascending.
    pub query_start: View<'a>,
}

impl StateRows<'_> {
    fn check(&self) -> Result<()> {
        countable(&[self.rows, self.tokens, self.max_tokens])?;
        if self.rows > MAX_BLOCKS {
            return Err(Error::Shape(format!("{} rows with recurrent states", self.rows)));
        }
        self.records.expect("records of rows", Elem::I32, self.rows * ROW_WORDS)?;
        if !self.records.address().is_multiple_of(16) {
            return Err(Error::Shape("records do not begin at a multiple of 16 bytes".to_owned()));
        }
        self.query_start.expect("query_start", Elem::I32, self.rows + 1)
    }

    fn is_empty(&self) -> bool {
        self.rows == 0 || self.tokens == 0
    }
}

/// The recurrent states of a layer.
#[derive(Debug, Clone, Copy)]
pub struct SlotStates<'a> {
    /// The shape.
    pub spec: StateSpec,
    /// f32 `[slots, slot_elements]`.
    pub data: View<'a>,
}

impl SlotStates<'_> {
    fn check(&self) -> Result<()> {
        let StateSpec { slots, channels, taps, .. } = self.spec;
        countable(&[slots, channels, taps, self.spec.window_elements()])?;
        self.data.expect("states", Elem::F32, slots.saturating_mul(self.spec.slot_elements()))
    }
}

/// The number of elements as kernels take strides. [`View::expect`] has compared it with memory.
fn stride(elements: usize) -> i64 {
    elements as i64
}

/// A convolution of the tokens of a step. See `ForwardOps::convolve`.
#[derive(Debug, Clone, Copy)]
pub struct Convolve<'a> {
    /// The rows.
    pub rows: StateRows<'a>,
    /// The states, whose windows are read and moved.
    pub states: SlotStates<'a>,
    /// Columns of a row of x.
    pub cols: usize,
    /// `[tokens, cols]`: the channels first, or if `gated` outer gates, inner gates and values.
    pub x: View<'a>,
    /// f32 `[taps, channels]`.
    pub weight: View<'a>,
    /// f32 `[channels]`.
    pub bias: Option<View<'a>>,
    /// The activation function.
    pub act: Option<ActivationKind>,
    /// Whether the convolution is between two gates.
    pub gated: bool,
    /// `[tokens, channels]`, of the type of x. Must not overlap it.
    pub out: View<'a>,
}

impl Convolve<'_> {}

/// Convolves the tokens of a step, and moves the windows of its rows to their last tokens.
///
/// # Errors
/// [`Error::Shape`] for views that are too short or of another type, [`Error::Unsupported`] for a
/// type other than f32, f16 and bf16, or an error of the launch.
pub fn convolve(device: &Device, version: KernelVersion, c: &Convolve<'_>) -> Result<()> {
    let &Convolve { rows, states, cols, x, weight, bias, act, gated, out } = c;
    let StateSpec { channels, taps, .. } = states.spec;
    rows.check()?;
    states.check()?;
    countable(&[cols])?;
    let read = if gated { 3 * channels } else { channels };
    if channels == 0 || taps == 0 || cols < read {
        return Err(Error::Shape(format!("{taps} taps of {channels} channels of {cols} columns")));
    }
    x.expect("x", x.elem(), rows.tokens * cols)?;
    out.expect("out", x.elem(), rows.tokens * channels)?;
    weight.expect("weight", Elem::F32, taps * channels)?;
    bias.map_or(Ok(()), |bias| bias.expect("bias", Elem::F32, channels))?;
    let is_fast = version == KernelVersion::Fast && taps <= CONVOLVE_TAPS;
    let kernel = match is_fast {
        true => typed!(ConvolveParams, "recurrent", "convolve", x.elem())?,
        false => typed!(ConvolveParams, "recurrent", "convolve_plain", x.elem())?,
    };
    if rows.is_empty() {
        return Ok(());
    }
    let groups = if is_fast { groups(&rows) } else { 1 };
    let blocks = [channels.div_ceil(CONVOLVE_THREADS) as u32, rows.rows as u32, groups as u32];
    let params = ConvolveParams {
        out: out.into(),
        states: states.data.into(),
        x: x.into(),
        weight: weight.into(),
        bias: bias.into(),
        rows: rows.records.into(),
        query_start: rows.query_start.into(),
        slot_elements: stride(states.spec.slot_elements()),
        channels: int(channels),
        cols: int(cols),
        taps: int(taps),
        activates: i32::from(act.is_some()),
        act: act.unwrap_or(ActivationKind::Silu),
        gated: i32::from(gated),
    };
    let grid = Grid { blocks, threads: [CONVOLVE_THREADS as u32, 1, 1], shared: 0 };
    // SAFETY: the views were checked to be as long as the kernel takes them to be.
    unsafe { device.launch(kernel, grid, &params) }
}

/// Returns the number of blocks that share the tokens of a row.
fn groups(rows: &StateRows<'_>) -> usize {
    let most = (MAX_GROUPS / rows.rows.max(1)).max(1);
    rows.max_tokens.div_ceil(CONVOLVE_TOKENS).clamp(1, most)
}

/// The rule of a recurrence. See `RecurrenceRule`.
#[derive(Debug, Clone, Copy)]
pub enum RecurRule<'a> {
    /// The gated delta rule.
    Delta,
    /// The state space of Mamba-2.
    StateSpace {
        /// f32 `[heads]`.
        skip: View<'a>,
        /// The bounds of the steps.
        limits: (f32, f32),
    },
}

/// A recurrence over the tokens of a step. See `ForwardOps::recur`.
#[derive(Debug, Clone, Copy)]
pub struct Recur<'a> {
    /// The rows.
    pub rows: StateRows<'a>,
    /// The heads.
    pub heads: RecurrentHeads,
    /// The states, which have a matrix for each of the heads.
    pub states: SlotStates<'a>,
    /// `[tokens, heads.cols()]`: queries, keys, and values.
    pub x: View<'a>,
    /// `[tokens, 2 * heads]` for the delta rule, `[tokens, heads]` for a state space; of the type
    /// of x.
    pub rates: View<'a>,
    /// The rule.
    pub rule: RecurRule<'a>,
    /// f32 `[heads]`.
    pub decay_log: View<'a>,
    /// f32 `[heads]`.
    pub step_bias: View<'a>,
    /// `[tokens, heads, value_dim]`, of the type of x. Must not overlap it.
    pub out: View<'a>,
}

impl Recur<'_> {
    fn rate_cols(&self) -> usize {
        match self.rule {
            RecurRule::Delta => 2 * self.heads.heads,
            RecurRule::StateSpace { .. } => self.heads.heads,
        }
    }

    fn check(&self) -> Result<()> {
        let RecurrentHeads { key_heads, heads, key_dim, value_dim, .. } = self.heads;
        self.rows.check()?;
        self.states.check()?;
        countable(&[key_heads, heads, key_dim, value_dim, self.heads.cols()])?;
        let is_whole = key_heads > 0 && heads > 0 && heads.is_multiple_of(key_heads);
        if !is_whole || key_dim == 0 || value_dim == 0 || heads > MAX_BLOCKS {
            return Err(Error::Shape(format!("a recurrence of {:?}", self.heads)));
        }
        if self.states.spec.heads != Some(self.heads) {
            return Err(Error::Shape(format!(
                "states of {:?}, not {:?}",
                self.states.spec.heads, self.heads
            )));
        }
        let (tokens, elem) = (self.rows.tokens, self.x.elem());
        self.x.expect("x", elem, tokens * self.heads.cols())?;
        self.rates.expect("rates", elem, tokens * self.rate_cols())?;
        self.out.expect("out", elem, tokens * self.heads.value_cols())?;
        self.decay_log.expect("decay_log", Elem::F32, heads)?;
        self.step_bias.expect("step_bias", Elem::F32, heads)?;
        match self.rule {
            RecurRule::Delta => Ok(()),
            RecurRule::StateSpace { skip, .. } => skip.expect("skip", Elem::F32, heads),
        }
    }
}

/// Applies a recurrence to the tokens of a step, and updates the matrices of its rows.
///
/// # Errors
/// [`Error::Shape`] for views that are too short or of another type, [`Error::Unsupported`] for a
/// type other than f32, f16 and bf16, or an error of the launch.
pub fn recur(device: &Device, version: KernelVersion, r: &Recur<'_>) -> Result<()> {
    r.check()?;
    let RecurrentHeads { key_heads, heads, key_dim, value_dim, .. } = r.heads;
    let elem = r.x.elem();
    let size = match version {
        KernelVersion::Fast if key_dim <= SMALL_KEYS => Some(true),
        KernelVersion::Fast if key_dim <= LARGE_KEYS => Some(false),
        _ => None,
    };
    let kernel = match (r.rule, size) {
        (RecurRule::Delta, Some(true)) => typed!(RecurParams, "recurrent", "delta_small", elem),
        (RecurRule::Delta, Some(false)) => typed!(RecurParams, "recurrent", "delta_large", elem),
        (RecurRule::Delta, None) => typed!(RecurParams, "recurrent", "delta_plain", elem),
        (RecurRule::StateSpace { .. }, Some(true)) => {
            typed!(RecurParams, "recurrent", "state_space_small", elem)
        }
        (RecurRule::StateSpace { .. }, Some(false)) => {
            typed!(RecurParams, "recurrent", "state_space_large", elem)
        }
        (RecurRule::StateSpace { .. }, None) => typed!(RecurParams, "recurrent", "state_space_plain", elem),
    }?;
    if r.rows.is_empty() {
        return Ok(());
    }
    let (skip, (least, most)) = match r.rule {
        RecurRule::Delta => (None, (0.0, f32::INFINITY)),
        RecurRule::StateSpace { skip, limits } => (Some(skip), limits),
    };
    let params = RecurParams {
        out: r.out.into(),
        states: r.states.data.into(),
        x: r.x.into(),
        rates: r.rates.into(),
        decay_log: r.decay_log.into(),
        step_bias: r.step_bias.into(),
        skip: skip.into(),
        rows: r.rows.records.into(),
        query_start: r.rows.query_start.into(),
        slot_elements: stride(r.states.spec.slot_elements()),
        window: stride(r.states.spec.window_elements()),
        key_heads: int(key_heads),
        neighbors: int(r.heads.neighbors()),
        heads: int(heads),
        key_dim: int(key_dim),
        value_dim: int(value_dim),
        least,
        most,
    };
    // A block of the plain kernel has a thread for each column.
    let columns = if size.is_some() { RECUR_COLUMNS } else { RECUR_THREADS };
    let blocks = [value_dim.div_ceil(columns) as u32, heads as u32, r.rows.rows as u32];
    let grid = Grid { blocks, threads: [RECUR_THREADS as u32, 1, 1], shared: 0 };
    // SAFETY: the views were checked to be as long as the kernel takes them to be.
    unsafe { device.launch(kernel, grid, &params) }
}

/// The operands of [`multiply_gates`].
#[derive(Debug, Clone, Copy)]
pub struct GatedRows<'a> {
    /// Number of rows; 0 is allowed and does nothing.
    pub rows: usize,
    /// Features of a row of x.
    pub cols: usize,
    /// `[rows, cols]`.
    pub x: View<'a>,
    /// Columns of a row of `gates`.
    pub gate_cols: usize,
    /// The column of the first gate.
    pub first: usize,
    /// `[rows, gate_cols]`, of the type of x.
    pub gates: View<'a>,
    /// The function of the gates.
    pub kind: GateKind,
}

impl GatedRows<'_> {}

/// Computes `x[t, f] *= kind(gates[t, first + f])`.
///
/// # Errors
/// As for [`convolve`].
pub fn multiply_gates(device: &Device, version: KernelVersion, g: &GatedRows<'_>) -> Result<()> {
    let &GatedRows { rows, cols, x, gate_cols, first, gates, kind } = g;
    countable(&[rows, cols, gate_cols])?;
    if gate_cols < cols || gate_cols - cols < first {
        return Err(Error::Shape(format!("{cols} gates from column {first} of {gate_cols}")));
    }
    let elem = x.elem();
    x.expect("x", elem, rows * cols)?;
    gates.expect("gates", elem, rows * gate_cols)?;
    let is_fast = version == KernelVersion::Fast
        && vectorizable(&[x, gates], cols)
        && vectorizable(&[gates], gate_cols)
        && vectorizable(&[gates], first);
    let kernel = match is_fast {
        true => typed!(MultiplyGatesParams, "recurrent", "multiply_gates", elem)?,
        false => typed!(MultiplyGatesParams, "recurrent", "multiply_gates_plain", elem)?,
    };
    if rows == 0 || cols == 0 {
        return Ok(());
    }
    let params = MultiplyGatesParams {
        x: x.into(),
        gates: gates.into(),
        cols: int(cols),
        gate_cols: int(gate_cols),
        first: int(first),
        kind,
    };
    let units = cols / if is_fast { elem.per_vector() } else { 1 };
    // SAFETY: the views were checked to be as long as the kernel takes them to be.
    unsafe { device.launch(kernel, rowwise_grid(rows, units), &params) }
}
