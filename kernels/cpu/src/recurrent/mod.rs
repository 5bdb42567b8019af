//! Recurrent layers: short convolutions, and recurrences over the tokens of a sequence.
//!
//! A task computes some channels, or some columns of a head's matrix, for all tokens of a row, one
//! token after the other. So a result depends neither on the cuts of a prompt nor on the number of
//! threads.

mod convolve;
mod recur;
mod rules;

use convolve::{CHANNELS, Convolve, Inputs, MoveWindow, TOKENS};
use millrace_backend::{
    ChannelRecurrence, Convolution, GateFunction, Recurrence, RecurrenceRule, RecurrentHeads, Result,
    StateCopy, StateSpec,
};
use recur::{COLUMNS, Recur};
use rules::{ChannelDelta, Delta, Rule, StateSpace};

use super::memory::{Memory, Shared};
use super::queue::Queue;
use super::rows::MultiplyGates;
use super::{Buf, Cpu};

/// Elements of a task that copies states.
const COPIED: usize = 16 << 10;

/// Tasks of a recurrence for each thread, if there are as many pieces of matrices.
const TASKS_PER_THREAD: usize = 4;

/// The recurrent states of one layer: for each slot and each checkpoint the window of the
/// convolution, `[taps - 1, channels]`, and the matrices of the heads. Each is cut into
/// pieces of columns that follow each other.
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
        let pieces = channels.div_ceil(CHANNELS);
        let inputs = |row: usize, piece: usize| {
            let (row, first) = (&step.rows[row], piece * CHANNELS);
            let (len, window) = (CHANNELS.min(channels - first), states.from(row.slot * stride));
            Inputs { row, first, len, x, cols, convolution, channels, taps, window }
        };
        // The row and the first token of each part.
        let firsts = |row: usize| (0..step.rows[row].count).step_by(TOKENS).map(move |first| (row, first));
        let parts: Vec<(usize, usize)> = (0..step.rows.len()).flat_map(firsts).collect();
        self.parallel(parts.len() * pieces, n * channels * (taps + 8), |task, _| {
            let (row, first) = parts[task / pieces];
            let inputs = inputs(row, task % pieces);
            let tokens = first..inputs.row.count.min(first + TOKENS);
            self.target.dispatch(Convolve { inputs, tokens, out });
        });
        self.parallel(step.rows.len() * pieces, step.rows.len() * channels * taps, |task, _| {
            self.target.dispatch(MoveWindow(inputs(task / pieces, task % pieces)));
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
        assert_eq!(rates.cols, recurrence.rate_cols(), "columns of the rates");
        let of_heads = [recurrence.decay_log.len(), recurrence.step_bias.len()];
        assert_eq!(of_heads, [heads.heads; 2], "numbers of the heads");
        let rates = rates.rows(n);
        match recurrence.rule {
            RecurrenceRule::Delta => {
                self.recur_by(step, heads, Delta { recurrence, rates }, x, states, out);
            }
            RecurrenceRule::StateSpace { skip, limits } => {
                assert_eq!(skip.len(), heads.heads, "factors of the heads");
                self.recur_by(step, heads, StateSpace { recurrence, skip, limits, rates }, x, states, out);
            }
        }
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
        let cols = [recurrence.strengths.cols, recurrence.rates.cols];
        assert_eq!(cols, [heads.heads, recurrence.rate_cols()], "columns of the rates");
        let of_heads = [recurrence.decay_log.len(), recurrence.step_bias.len()];
        assert_eq!(of_heads, [heads.heads, recurrence.rate_cols()], "numbers of the heads");
        let (strengths, rates) = (recurrence.strengths.rows(n), recurrence.rates.rows(n));
        let rule = ChannelDelta { recurrence, strengths, rates };
        self.recur_by(step, heads, rule, recurrence.x, states, out);
    }

    /// Applies a recurrence to the tokens of the step. A task has some pieces of a head's matrix:
    /// all of them, where there are enough heads for the threads, because the factors of the tokens
    /// are computed for each task.
    fn recur_by<R: Rule>(
        &self,
        step: &Queue,
        heads: RecurrentHeads,
        rule: R,
        x: &Buf,
        states: &mut States,
        out: &mut Buf,
    ) {
        let RecurrentHeads { key_heads, heads: count, key_dim, value_dim, .. } = heads;
        step.check_slots(states.spec.slots);
        assert_eq!(states.spec.heads, Some(heads), "heads of the states");
        assert!(key_heads > 0 && count.is_multiple_of(key_heads), "heads in whole groups");
        assert_eq!((x.cols, out.cols), (heads.cols(), heads.value_cols()), "columns of the recurrence");
        let (n, stride) = (step.tokens.len(), states.spec.slot_elements());
        let window = states.spec.window_elements();
        let (x, out) = (x.rows(n), Shared::new(out.rows_mut(n)));
        let states = Shared::new(&mut states.data);
        let (pieces, in_step) = (value_dim.div_ceil(COLUMNS), step.rows.len() * count);
        let wanted = (TASKS_PER_THREAD * self.threads()).div_ceil(in_step.max(1)).clamp(1, pieces.max(1));
        let at_once = pieces.div_ceil(wanted).max(1);
        let tasks = pieces.div_ceil(at_once);
        self.parallel(in_step * tasks, 4 * n * count * key_dim * value_dim, |task, _| {
            let (row, rest) = (&step.rows[task / (count * tasks)], task % (count * tasks));
            let (head, first) = (rest / tasks, rest % tasks * at_once);
            let pieces = first..pieces.min(first + at_once);
            let matrix = states.from(row.slot * stride + window + head * key_dim * value_dim);
            self.target.dispatch(Recur { rule, row, heads, head, pieces, x, matrix, out });
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
