//! MLPs that every token passes through.

use millrace_kernels::Backend;

use super::by_width::ByWidth;
use super::step::StageStep;
use super::weights::DenseWeights;
use crate::Error;
use crate::model::DenseMlp;

/// The buffers inside an MLP.
pub(super) struct MlpBuffers<'a, B: Backend> {
    pub(super) gate_up: &'a mut ByWidth<B::Buf>,
    pub(super) activated: &'a mut ByWidth<B::Buf>,
}

impl<B: Backend> MlpBuffers<'_, B> {
    /// `out = down(act(gate(x)) * up(x))`, or `down(act(up(x)))` without a gate, `[tokens,
    /// hidden]`.
    pub(super) fn compute(
        self,
        step: &StageStep<'_, B>,
        (spec, is_gated): (&DenseMlp, bool),
        w: &DenseWeights<B>,
        x: &B::Buf,
        out: &mut B::Buf,
    ) -> Result<(), Error> {
        let &StageStep { backend, tokens: n, .. } = step;
        let activated = self.activated.of(spec.width);
        if is_gated {
            let gate_up = self.gate_up.of(2 * spec.width);
            backend.linear(n, x, &w.up, w.up_bias.as_ref(), gate_up)?; // [n, 2 * width]
            backend.gate(n, spec.act, gate_up, activated)?; // [n, width]
        } else {
            backend.linear(n, x, &w.up, w.up_bias.as_ref(), activated)?; // [n, width]
            backend.activate(n, spec.act, activated)?;
        }
        backend.linear(n, activated, &w.down, w.down_bias.as_ref(), out)?; // [n, hidden]
        Ok(())
    }
}
