//! Recurrent layers: their states in device memory, and their operations.

use millrace_backend::{
    Convolution, Error, GateFunction, Recurrence, RecurrenceRule, Result, StateCopy, StateSpec,
};

use super::activations::activation_kind;
use super::buffers::{Buf, Vector};
use super::cuda::Cuda;
use super::queue::Queue;
use crate::ops::recurrent::{
    self, Convolve, GateKind, GatedRows, KernelVersion, Recur, RecurRule, SlotStates, StateRows,
};
use crate::{Device, Elem, Memory};

/// The recurrent states of a layer, `[slots + checkpoints, slot_elements]`.
#[derive(Debug)]
pub struct States {
    memory: Memory,
    spec: StateSpec,
}

impl States {
    pub(super) fn new(device: &Device, spec: StateSpec) -> Result<States> {
        let too_many = Error::OutOfMemory { what: "recurrent states", bytes: usize::MAX };
        let len = spec.places().checked_mul(spec.slot_elements()).ok_or(too_many)?;
        let memory = device.allocate(Elem::F32, len)?;
        device.fill(memory.view(Elem::F32), 0)?;
        Ok(States { memory, spec })
    }

    /// Copies states from place to place, in the order of the device's work.
    pub(super) fn copy(&self, device: &Device, copies: &[StateCopy]) -> Result<()> {
        let (elements, states) = (self.spec.slot_elements(), self.memory.view(Elem::F32));
        for &StateCopy { from, to } in copies {
            if from.max(to) >= self.spec.places() {
                return Err(Error::Shape(format!("{from} and {to} of {} states", self.spec.places())));
            }
            let place = |index: usize| states.slice(index * elements..(index + 1) * elements);
            device.copy(place(from), place(to))?;
        }
        Ok(())
    }

    /// Returns the states for the rows of a step, which may be in any slot of the queue.
    fn of_slots(&self, step: &Queue) -> Result<SlotStates<'_>> {
        let StateSpec { slots, .. } = self.spec;
        if step.slot_count() > slots {
            return Err(Error::Shape(format!("states of {slots} slots, not {}", step.slot_count())));
        }
        Ok(SlotStates { spec: self.spec, data: self.memory.view(Elem::F32) })
    }
}

/// Returns the rows of a step.
fn rows(step: &Queue) -> StateRows<'_> {
    let batch = step.batch();
    StateRows {
        rows: batch.rows,
        tokens: batch.tokens,
        max_tokens: batch.max_queries,
        records: step.row_records(),
        query_start: batch.query_start,
    }
}

impl Cuda {
    /// Convolves the tokens of the step.
    pub(super) fn convolve_rows(
        &self,
        step: &Queue,
        x: &Buf,
        convolution: &Convolution<'_, Vector>,
        states: &States,
        out: &Buf,
    ) -> Result<()> {
        if out.cols != states.spec.channels {
            return Err(Error::Shape(format!("{} channels, not {}", out.cols, states.spec.channels)));
        }
        let of_step = Convolve {
            rows: rows(step),
            states: states.of_slots(step)?,
            cols: x.cols,
            x: x.rows(step.tokens()),
            weight: convolution.weight.view(),
            bias: convolution.bias.map(Vector::view),
            act: convolution.act.map(activation_kind).transpose()?,
            gated: convolution.gated,
            out: out.rows(step.tokens()),
        };
        recurrent::convolve(&self.device, KernelVersion::Fast, &of_step)
    }

    /// Applies the recurrence to the tokens of the step.
    pub(super) fn recur_rows(
        &self,
        step: &Queue,
        (x, rates): (&Buf, &Buf),
        recurrence: &Recurrence<'_, Vector>,
        states: &States,
        out: &Buf,
    ) -> Result<()> {
        let heads = recurrence.heads;
        let cols = [x.cols, rates.cols, out.cols];
        if cols != [heads.cols(), recurrence.rate_cols(), heads.value_cols()] {
            return Err(Error::Shape(format!("columns {cols:?} of a recurrence of {heads:?}")));
        }
        let rule = match recurrence.rule {
            RecurrenceRule::Delta => RecurRule::Delta,
            RecurrenceRule::StateSpace { skip, limits } => {
                RecurRule::StateSpace { skip: skip.view(), limits }
            }
        };
        let of_step = Recur {
            rows: rows(step),
            heads,
            states: states.of_slots(step)?,
            x: x.rows(step.tokens()),
            rates: rates.rows(step.tokens()),
            rule,
            decay_log: recurrence.decay_log.view(),
            step_bias: recurrence.step_bias.view(),
            out: out.rows(step.tokens()),
        };
        recurrent::recur(&self.device, KernelVersion::Fast, &of_step)
    }

    /// Multiplies each row of `x` by its gates.
    pub(super) fn multiply_rows(
        &self,
        n: usize,
        (gates, first): (&Buf, usize),
        function: GateFunction,
        x: &Buf,
    ) -> Result<()> {
        let kind = match function {
            GateFunction::Identity => GateKind::IdentityGate,
            GateFunction::Sigmoid => GateKind::SigmoidGate,
            GateFunction::Silu => GateKind::SiluGate,
        };
        let rows = GatedRows {
            rows: n,
            cols: x.cols,
            x: x.rows(n),
            gate_cols: gates.cols,
            first,
            gates: gates.rows(n),
            kind,
        };
        recurrent::multiply_gates(&self.device, KernelVersion::Fast, &rows)
    }
}
