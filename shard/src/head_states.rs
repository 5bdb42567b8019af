//! The states that a head which predicts further tokens reads between two steps.

use millrace_backend::Backend;
use millrace_model::KEPT_STATES;

use crate::Error;
use crate::decoder::Decoder;
use crate::state::{PassStates, StepStates};

/// The states that are kept for a head.
pub(crate) struct HeadStates<B: Backend> {
    /// Those of the model, `[sequences * KEPT_STATES, hidden]`: that of position p of the sequence
    /// in slot s is in row `s * KEPT_STATES + p % KEPT_STATES`.
    kept: B::Buf,
    /// The head's own last state of each sequence, `[sequences, hidden]`.
    own: B::Buf,
}

impl<B: Backend> HeadStates<B> {
    /// Allocates the states of so many sequences, with `hidden` features each.
    ///
    /// # Errors
    /// If the device has not enough memory.
    pub(crate) fn new(backend: &B, sequences: usize, hidden: usize) -> Result<Self, Error> {
        Ok(HeadStates {
            kept: backend.buf(sequences * KEPT_STATES, hidden)?,
            own: backend.buf(sequences, hidden)?,
        })
    }

    /// Gives `head` the states for `count` positions of the sequence in `slot`, as those of its
    /// tokens from `to` on in the next step. `model` has computed the step.
    ///
    /// # Errors
    /// If the device fails.
    pub(crate) fn give(
        &self,
        backend: &B,
        head: &mut Decoder<B>,
        model: &Decoder<B>,
        (slot, count): (usize, usize),
        states: PassStates,
        to: usize,
    ) -> Result<(), Error> {
        match states {
            PassStates::OfStep(at) => head.set_states(backend, (model.last_states(), at), count, to),
            PassStates::Own => head.set_states(backend, (&self.own, slot), 1, to),
            PassStates::Kept(start) => (0..count).try_for_each(|index| {
                head.set_states(backend, (&self.kept, place(slot, start + index)), 1, to + index)
            }),
        }
    }

    /// Keeps the states of a step of `model` that the head has not read.
    ///
    /// # Errors
    /// If the device fails.
    pub(crate) fn keep(&mut self, backend: &B, model: &Decoder<B>, of_row: &StepStates) -> Result<(), Error> {
        let StepStates { slot, at, ref positions, ref kept, .. } = *of_row;
        for position in kept.clone() {
            let index = at + position - positions.start;
            backend.copy_rows(model.last_states(), index, 1, &mut self.kept, place(slot, position))?;
        }
        Ok(())
    }

    /// Keeps the state of token `index` of the last step of `head` as that of the sequence in
    /// `slot`.
    ///
    /// # Errors
    /// If the device fails.
    pub(crate) fn keep_own(
        &mut self,
        backend: &B,
        head: &Decoder<B>,
        index: usize,
        slot: usize,
    ) -> Result<(), Error> {
        Ok(backend.copy_rows(head.last_states(), index, 1, &mut self.own, slot)?)
    }
}

/// Returns the row of a kept state.
fn place(slot: usize, position: usize) -> usize {
    slot * KEPT_STATES + position % KEPT_STATES
}
