//! MLPs that every token passes through.

use millrace_backend::{Activation, Backend, MlpKind};
use millrace_model::DenseMlp;

use super::step_context::{ByWidth, StepContext};
use super::weights::DenseWeights;
use crate::Error;

/// The size of an MLP, and what it computes between its projections.
#[derive(Debug, Clone, Copy)]
pub(super) struct MlpPlan {
    /// Number of features of up.
    pub(super) width: usize,
    /// The operation between the projections.
    pub(super) kind: MlpKind,
    /// Factor on gate and up.
    pub(super) up_factor: f32,
    /// Factor on the output.
    pub(super) out_factor: f32,
}

impl MlpPlan {
    /// Returns the plan of an MLP without factors.
    pub(super) const fn new(width: usize, kind: MlpKind) -> Self {
        MlpPlan { width, kind, up_factor: 1.0, out_factor: 1.0 }
    }

    /// Returns the plan of an MLP that every token passes through. `act` replaces the activation
    /// function if the layer has one of its own.
    pub(super) fn dense(spec: &DenseMlp, act: Option<Activation>, is_gated: bool) -> Self {
        let kind = match is_gated {
            true => MlpKind::Gated(spec.gating()),
            false => MlpKind::Plain(act.unwrap_or(spec.act)),
        };
        let &DenseMlp { width, up_factor, out_factor, .. } = spec;
        MlpPlan { width, kind, up_factor, out_factor }
    }
}

/// The buffers inside an MLP.
pub(super) struct MlpBuffers<'a, B: Backend> {
    pub(super) gate_up: &'a mut ByWidth<B::Buf>,
    pub(super) activated: &'a mut ByWidth<B::Buf>,
    /// The low-rank features of adapters.
    pub(super) adapter_features: &'a mut ByWidth<B::Buf>,
}

impl<B: Backend> MlpBuffers<'_, B> {
    /// `out = down(gating(gate(x), up(x)))`, or `down(act(up(x)))` without a gate, `[tokens,
    /// hidden]`, with the factors of `plan`.
    pub(super) fn compute(
        self,
        step: &StepContext<'_, B>,
        plan: MlpPlan,
        w: &DenseWeights<B>,
        x: &B::Buf,
        out: &mut B::Buf,
    ) -> Result<(), Error> {
        let (context, &StepContext { backend, tokens: n, .. }) = (step, step);
        let features = self.adapter_features;
        let MlpPlan { width, kind, up_factor, out_factor } = plan;
        let activated = self.activated.of(width);
        let scale =
            |factor: f32, x: &mut B::Buf| if factor == 1.0 { Ok(()) } else { backend.scale(n, factor, x) };
        match kind {
            MlpKind::Gated(gating) => {
                let gate_up = self.gate_up.of(2 * width);
                w.up.compute(context, x, features, gate_up)?; // [n, 2 * width]
                scale(up_factor, gate_up)?;
                backend.gate(n, gating, gate_up, activated)?; // [n, width]
            }
            MlpKind::Plain(act) => {
                w.up.compute(context, x, features, activated)?; // [n, width]
                scale(up_factor, activated)?;
                backend.activate(n, act, activated)?;
            }
        }
        w.down.compute(context, activated, features, out)?; // [n, hidden]
        Ok(scale(out_factor, out)?)
    }
}
