//! Recurrent layers: short convolutions, and recurrences over the tokens of a sequence.
//!
//! A task computes some channels, or some columns of a head's matrix, for all tokens of a row, one
//! token after the other. So a result depends neither on the cuts of a prompt nor on the number of
//! threads.

use millrace_backend::{
    ChannelRecurrence, Convolution, GateFunction, Recurrence, RecurrenceRule, RecurrentHeads, Result,
    StateCopy, StateSpec,
};

use super::memory::{Memory, Shared};
use super::queue::{Queue, Row};
use super::rows::{Activate, MultiplyGates};
use super::simd::{Extension, Kernel, Simd};
use super::{Buf, Cpu};

/// Channels, or columns of a matrix, of a task. All rows of these columns of a usual matrix fit
/// into the first cache.
const COLUMNS: usize = 64;

/// Elements of a task that copies states.
const COPIED: usize = 16 << 10;

/// Added to the square of the length of queries and keys.
const LENGTH_EPS: f32 = 1e-6;

/// The recurrent states of one layer: for each slot and each checkpoint the window of the
/// convolution, `[taps - 1, channels]`, and the matrices, `[heads, key_dim, value_dim]`.
#[derive(Debug)]
pub struct States {
    spec: StateSpec,
    data: Memory<f32>,
}

impl States {
    pub(super) fn new(spec: StateSpec) -> Result<States> {
        let elements = spec.places().saturating_mul(spec.slot_elements());
        Ok(States { spec, data: Memory::zeroed(elements, "recurrent states")? })
    }
}

impl Cpu {
    /// Copies states from place to place. A task copies the same part of all of them, in their
    /// order.
    pub(super) fn copy_places(&self, copies: &[StateCopy], states: &mut States) {
        let (elements, places) = (states.spec.slot_elements(), states.spec.places());
        let copies = || copies.iter().filter(|copy| copy.from != copy.to);
        assert!(copies().all(|copy| copy.from.max(copy.to) < places), "places of states");
        let data = Shared::new(&mut states.data);
        self.parallel(elements.div_ceil(COPIED), copies().count() * elements, |task, _| {
            let (start, len) = (task * COPIED, COPIED.min(elements - task * COPIED));
            for &StateCopy { from, to } in copies() {
                // SAFETY: the places exist and differ, and no other task has this part of them.
                let (from, to) = unsafe {
                    (data.slice(from * elements + start, len), data.slice(to * elements + start, len))
                };
                to.copy_from_slice(from);
            }
        });
    }

    /// Convolves the tokens of the step.
    pub(super) fn convolve_rows(
        &self,
        step: &Queue,
        x: &Buf,
        convolution: &Convolution<'_, Vec<f32>>,
        states: &mut States,
        out: &mut Buf,
    ) {
        let StateSpec { channels, taps, .. } = states.spec;
        let (n, read) = (step.tokens.len(), if convolution.gated { 3 * channels } else { channels });
        step.check_slots(states.spec.slots);
        assert!(taps > 0 && channels > 0, "a convolution");
        assert_eq!(convolution.weight.len(), taps * channels, "weights of the convolution");
        assert!(convolution.bias.is_none_or(|bias| bias.len() == channels), "biases of the channels");
        assert!(x.cols >= read && out.cols == channels, "columns of the convolution");
        let (cols, stride) = (x.cols, states.spec.slot_elements());
        let (x, out) = (x.rows(n), Shared::new(out.rows_mut(n)));
        let states = Shared::new(&mut states.data);
        let pieces = channels.div_ceil(COLUMNS);
        self.parallel(step.rows.len() * pieces, n * channels * (taps + 8), |task, _| {
            let (row, first) = (&step.rows[task / pieces], task % pieces * COLUMNS);
            let piece = Piece { row, first, len: COLUMNS.min(channels - first) };
            let window = states.from(row.slot * stride);
            self.target.dispatch(Convolve { piece, x, cols, convolution, channels, taps, window, out });
        });
    }

    /// Applies the recurrence to the tokens of the step.
    pub(super) fn recur_rows(
        &self,
        step: &Queue,
        (x, rates): (&Buf, &Buf),
        recurrence: &Recurrence<'_, Vec<f32>>,
        states: &mut States,
        out: &mut Buf,
    ) {
        let (n, heads) = (step.tokens.len(), recurrence.heads);
        let RecurrentHeads { key_heads, heads: count, key_dim, value_dim, .. } = heads;
        step.check_slots(states.spec.slots);
        assert_eq!(states.spec.heads, Some(heads), "heads of the states");
        assert!(key_heads > 0 && count.is_multiple_of(key_heads), "heads in whole groups");
        assert_eq!((x.cols, out.cols), (heads.cols(), heads.value_cols()), "columns of the recurrence");
        assert_eq!(rates.cols, recurrence.rate_cols(), "columns of the rates");
        let of_heads = [recurrence.decay_log.len(), recurrence.step_bias.len()];
        assert_eq!(of_heads, [count; 2], "numbers of the heads");
        if let RecurrenceRule::StateSpace { skip, .. } = recurrence.rule {
            assert_eq!(skip.len(), count, "factors of the heads");
        }
        let (stride, window) = (states.spec.slot_elements(), states.spec.window_elements());
        let (x, rates) = (x.rows(n), rates.rows(n));
        let (states, out) = (Shared::new(&mut states.data), Shared::new(out.rows_mut(n)));
        let pieces = value_dim.div_ceil(COLUMNS);
        let work = 4 * n * count * key_dim * value_dim;
        self.parallel(step.rows.len() * count * pieces, work, |task, _| {
            let (row, rest) = (&step.rows[task / (count * pieces)], task % (count * pieces));
            let (head, first) = (rest / pieces, rest % pieces * COLUMNS);
            let piece = Piece { row, first, len: COLUMNS.min(value_dim - first) };
            let matrix = states.from(row.slot * stride + window + head * key_dim * value_dim);
            self.target.dispatch(Recur { piece, head, x, rates, recurrence, matrix, out });
        });
    }

    /// Applies the recurrence with a decay of each feature to the tokens of the step.
    pub(super) fn recur_rows_by_channel(
        &self,
        step: &Queue,
        recurrence: &ChannelRecurrence<'_, Vec<f32>, Buf>,
        states: &mut States,
        out: &mut Buf,
    ) {
        let (n, heads) = (step.tokens.len(), recurrence.heads);
        let RecurrentHeads { key_heads, heads: count, key_dim, value_dim, .. } = heads;
        step.check_slots(states.spec.slots);
        assert_eq!(states.spec.heads, Some(heads), "heads of the states");
        assert!(key_heads > 0 && count.is_multiple_of(key_heads), "heads in whole groups");
        let cols = [recurrence.x.cols, recurrence.strengths.cols, recurrence.rates.cols, out.cols];
        let wanted = [heads.cols(), count, recurrence.rate_cols(), heads.value_cols()];
        assert_eq!(cols, wanted, "columns of the recurrence");
        let of_heads = [recurrence.decay_log.len(), recurrence.step_bias.len()];
        assert_eq!(of_heads, [count, recurrence.rate_cols()], "numbers of the heads");
        let (stride, window) = (states.spec.slot_elements(), states.spec.window_elements());
        let (states, out) = (Shared::new(&mut states.data), Shared::new(out.rows_mut(n)));
        let pieces = value_dim.div_ceil(COLUMNS);
        let work = 4 * n * count * key_dim * value_dim;
        self.parallel(step.rows.len() * count * pieces, work, |task, _| {
            let (row, rest) = (&step.rows[task / (count * pieces)], task % (count * pieces));
            let (head, first) = (rest / pieces, rest % pieces * COLUMNS);
            let piece = Piece { row, first, len: COLUMNS.min(value_dim - first) };
            let matrix = states.from(row.slot * stride + window + head * key_dim * value_dim);
            self.target.dispatch(RecurByChannel { piece, head, n, recurrence, matrix, out });
        });
    }

    /// Multiplies each row of `x` by its gates.
    pub(super) fn multiply_rows(
        &self,
        n: usize,
        (gates, first): (&Buf, usize),
        function: GateFunction,
        x: &mut Buf,
    ) {
        let (cols, of_gates) = (x.cols, gates.cols);
        assert!(first + cols <= of_gates, "columns of the gates");
        let (gates, x) = (gates.rows(n), Shared::new(x.rows_mut(n)));
        self.for_rows(n, 4 * cols, |t| {
            let gates = &gates[t * of_gates + first..][..cols];
            // SAFETY: row t belongs to this task alone.
            let x = unsafe { x.slice(t * cols, cols) };
            self.target.dispatch(MultiplyGates { function, gates, x });
        });
    }
}

/// The part of a row's results that a task computes.
#[derive(Clone, Copy)]
struct Piece<'a> {
    row: &'a Row,
    /// The first channel, or the first column of the head's matrix.
    first: usize,
    /// Number of channels or columns, at most [`COLUMNS`].
    len: usize,
}

/// The convolution of some channels over the tokens of a row.
struct Convolve<'a> {
    piece: Piece<'a>,
    /// The rows of the step, of `cols` columns each.
    x: &'a [f32],
    cols: usize,
    convolution: &'a Convolution<'a, Vec<f32>>,
    channels: usize,
    taps: usize,
    /// The window of the row's slot, `[taps - 1, channels]`, oldest token first.
    window: Shared<f32>,
    /// `[tokens, channels]`
    out: Shared<f32>,
}

impl Convolve<'_> {
    /// Writes the inputs of the row's token `token` to `to`.
    #[inline(always)]
    fn input(&self, token: usize, to: &mut [f32]) {
        let Piece { row, first, len } = self.piece;
        let x = &self.x[(row.token + token) * self.cols..][..self.cols];
        if self.convolution.gated {
            let inner = &x[self.channels + first..][..len];
            let values = &x[2 * self.channels + first..][..len];
            to.iter_mut().zip(inner).zip(values).for_each(|((to, gate), value)| *to = gate * value);
        } else {
            to.copy_from_slice(&x[first..][..len]);
        }
    }
}

impl Kernel for Convolve<'_> {
    const USES: Extension = Extension::None;
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Convolve { piece: Piece { row, first, len }, convolution, channels, taps, window, out, .. } =
            self;
        let history = taps - 1;
        // SAFETY: only this task uses these channels of the slot's window, and each of these pieces
        // of it is used alone.
        let window = |index: usize| unsafe { window.slice(index * channels + first, len) };
        if row.start == 0 {
            (0..history).for_each(|index| window(index).fill(0.0));
        }
        let mut buffer = [0.0; COLUMNS];
        let input = &mut buffer[..len];
        for token in 0..row.count {
            // SAFETY: only this task writes these channels of the row's tokens.
            let out = unsafe { out.slice((row.token + token) * channels + first, len) };
            match convolution.bias {
                Some(bias) => out.copy_from_slice(&bias[first..][..len]),
                None => out.fill(0.0),
            }
            for tap in 0..taps {
                let weights = &convolution.weight[tap * channels + first..][..len];
                match (token + tap).checked_sub(history) {
                    Some(earlier) => self.input(earlier, input),
                    None => input.copy_from_slice(window(token + tap)),
                }
                out.iter_mut().zip(weights).zip(&*input).for_each(|((out, w), u)| *out += w * u);
            }
            if let Some(act) = convolution.act {
                // SAFETY: the caller guarantees the instruction set.
                unsafe { Activate { act, x: &mut *out }.run::<S>() };
            }
            if convolution.gated {
                let gates = &self.x[(row.token + token) * self.cols + first..][..len];
                out.iter_mut().zip(gates).for_each(|(out, gate)| *out *= gate);
            }
        }
        // The window moves to the last tokens. Its rows are overwritten in the order in which they
        // are no longer read.
        for index in 0..history {
            match (index + row.count).checked_sub(history) {
                Some(token) => self.input(token, window(index)),
                None => window(index).copy_from_slice(window(index + row.count)),
            }
        }
    }
}

/// The recurrence of some columns of a head's matrix over the tokens of a row.
struct Recur<'a> {
    piece: Piece<'a>,
    head: usize,
    /// Queries, keys and values, `[tokens, heads.cols()]`.
    x: &'a [f32],
    /// `[tokens, rate_cols]`
    rates: &'a [f32],
    recurrence: &'a Recurrence<'a, Vec<f32>>,
    /// The head's matrix in the row's slot, `[key_dim, value_dim]`.
    matrix: Shared<f32>,
    /// `[tokens, heads * value_dim]`
    out: Shared<f32>,
}

impl Kernel for Recur<'_> {
    const USES: Extension = Extension::None;
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Recur { piece: Piece { row, first, len }, head, x, rates, recurrence, matrix, out } = self;
        let heads = recurrence.heads;
        let RecurrentHeads { heads: count, key_dim, value_dim, .. } = heads;
        let key_head = heads.key_head(head);
        // SAFETY: only this task uses these columns of the matrix, one row of them at a time.
        let matrix = |index: usize| unsafe { matrix.slice(index * value_dim + first, len) };
        if row.start == 0 {
            (0..key_dim).for_each(|index| matrix(index).fill(0.0));
        }
        let speed = recurrence.decay_log[head].exp();
        let mut change = [0.0; COLUMNS];
        let change = &mut change[..len];
        for token in row.token..row.token + row.count {
            let x = &x[token * heads.cols()..][..heads.cols()];
            let query = &x[key_head * key_dim..][..key_dim];
            let key = &x[heads.key_cols() + key_head * key_dim..][..key_dim];
            let values = &x[2 * heads.key_cols() + head * value_dim + first..][..len];
            let rates = &rates[token * recurrence.rate_cols()..][..recurrence.rate_cols()];
            // SAFETY: only this task writes these features of the row's tokens.
            let out = unsafe { out.slice(token * heads.value_cols() + head * value_dim + first, len) };
            out.fill(0.0);
            match recurrence.rule {
                RecurrenceRule::Delta => {
                    let step = softplus(rates[count + head] + recurrence.step_bias[head]);
                    let decay = (-speed * step).exp();
                    let strength = 1.0 / (1.0 + (-rates[head]).exp());
                    let of_query = inverse_length(query) / (key_dim as f32).sqrt();
                    let of_key = inverse_length(key);
                    change.fill(0.0);
                    for (index, key) in key.iter().enumerate() {
                        let key = key * of_key;
                        for (seen, s) in change.iter_mut().zip(matrix(index)) {
                            *s *= decay;
                            *seen += key * *s;
                        }
                    }
                    change
                        .iter_mut()
                        .zip(values)
                        .for_each(|(change, value)| *change = strength * (value - *change));
                    for (index, (key, query)) in key.iter().zip(query).enumerate() {
                        let (key, query) = (key * of_key, query * of_query);
                        for ((out, s), change) in out.iter_mut().zip(matrix(index)).zip(&*change) {
                            *s += key * change;
                            *out += query * *s;
                        }
                    }
                }
                RecurrenceRule::StateSpace { skip, limits: (least, most) } => {
                    let step = softplus(rates[head] + recurrence.step_bias[head]).clamp(least, most);
                    let decay = (-speed * step).exp();
                    change.iter_mut().zip(values).for_each(|(change, value)| *change = step * value);
                    for (index, (key, query)) in key.iter().zip(query).enumerate() {
                        for ((out, s), change) in out.iter_mut().zip(matrix(index)).zip(&*change) {
                            *s = decay * *s + key * change;
                            *out += query * *s;
                        }
                    }
                    out.iter_mut().zip(values).for_each(|(out, value)| *out += skip[head] * value);
                }
            }
        }
    }
}

/// The recurrence of some columns of a head's matrix, each row of which has a decay of its own,
/// over the tokens of a row.
struct RecurByChannel<'a> {
    piece: Piece<'a>,
    head: usize,
    /// Tokens of the step.
    n: usize,
    recurrence: &'a ChannelRecurrence<'a, Vec<f32>, Buf>,
    /// The head's matrix in the row's slot, `[key_dim, value_dim]`.
    matrix: Shared<f32>,
    /// `[tokens, heads * value_dim]`
    out: Shared<f32>,
}

impl Kernel for RecurByChannel<'_> {
    const USES: Extension = Extension::None;
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let RecurByChannel { piece: Piece { row, first, len }, head, n, recurrence, matrix, out } = self;
        let heads = recurrence.heads;
        let RecurrentHeads { heads: count, key_dim, value_dim, .. } = heads;
        let key_head = heads.key_head(head);
        let [x, strengths, rates] =
            [recurrence.x, recurrence.strengths, recurrence.rates].map(|buf| buf.rows(n));
        // SAFETY: only this task uses these columns of the matrix, one row of them at a time.
        let matrix = |index: usize| unsafe { matrix.slice(index * value_dim + first, len) };
        if row.start == 0 {
            (0..key_dim).for_each(|index| matrix(index).fill(0.0));
        }
        let speed = recurrence.decay_log[head].exp();
        let biases = &recurrence.step_bias[head * key_dim..][..key_dim];
        let mut change = [0.0; COLUMNS];
        let change = &mut change[..len];
        for token in row.token..row.token + row.count {
            let x = &x[token * heads.cols()..][..heads.cols()];
            let query = &x[key_head * key_dim..][..key_dim];
            let key = &x[heads.key_cols() + key_head * key_dim..][..key_dim];
            let values = &x[2 * heads.key_cols() + head * value_dim + first..][..len];
            let rates = &rates[token * recurrence.rate_cols() + head * key_dim..][..key_dim];
            let strength = 1.0 / (1.0 + (-strengths[token * count + head]).exp());
            let of_query = inverse_length(query) / (key_dim as f32).sqrt();
            let of_key = inverse_length(key);
            // SAFETY: only this task writes these features of the row's tokens.
            let out = unsafe { out.slice(token * heads.value_cols() + head * value_dim + first, len) };
            out.fill(0.0);
            change.fill(0.0);
            for (index, ((key, rate), bias)) in key.iter().zip(rates).zip(biases).enumerate() {
                let (key, decay) = (key * of_key, (-speed * softplus(rate + bias)).exp());
                for (seen, s) in change.iter_mut().zip(matrix(index)) {
                    *s *= decay;
                    *seen += key * *s;
                }
            }
            change.iter_mut().zip(values).for_each(|(change, value)| *change = strength * (value - *change));
            for (index, (key, query)) in key.iter().zip(query).enumerate() {
                let (key, query) = (key * of_key, query * of_query);
                for ((out, s), change) in out.iter_mut().zip(matrix(index)).zip(&*change) {
                    *s += key * change;
                    *out += query * *s;
                }
            }
        }
    }
}

/// Returns `ln(1 + e^x)`.
fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

/// Returns the inverse of a vector's length.
#[inline(always)]
fn inverse_length(x: &[f32]) -> f32 {
    1.0 / (x.iter().map(|x| x * x).sum::<f32>() + LENGTH_EPS).sqrt()
}
