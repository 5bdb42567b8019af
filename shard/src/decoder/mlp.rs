//! MLPs that every token passes through.

use millrace_kernels::{Activation, Backend, Gating};

use super::by_width::ByWidth;
use super::step::StageStep;
use super::weights::DenseWeights;
use crate::Error;

/// The operation between the projections of an MLP.
#[derive(Debug, Clone, Copy)]
pub(super) enum MlpKind {
    /// `gating(gate(x), up(x))`.
    Gated(Gating),
    /// `act(up(x))`.
    Plain(Activation),
}

/// The buffers inside an MLP.
pub(super) struct MlpBuffers<'a, B: Backend> {
    pub(super) gate_up: &'a mut ByWidth<B::Buf>,
    pub(super) activated: &'a mut ByWidth<B::Buf>,
}

impl<B: Backend> MlpBuffers<'_, B> {
    /// `out = down(gating(gate(x), up(x)))`, or `down(act(up(x)))` without a gate, `[tokens,
    /// hidden]`. Up has `width` features.
    pub(super) fn compute(
        self,
        step: &StageStep<'_, B>,
        (width, kind): (usize, MlpKind),
        w: &DenseWeights<B>,
        x: &B::Buf,
        out: &mut B::Buf,
    ) -> Result<(), Error> {
        let &StageStep { backend, tokens: n, .. } = step;
        let activated = self.activated.of(width);
        match kind {
            MlpKind::Gated(gating) => {
                let gate_up = self.gate_up.of(2 * width);
                backend.linear(n, x, &w.up, w.up_bias.as_ref(), gate_up)?; // [n, 2 * width]
                backend.gate(n, gating, gate_up, activated)?; // [n, width]
            }
            MlpKind::Plain(act) => {
                backend.linear(n, x, &w.up, w.up_bias.as_ref(), activated)?; // [n, width]
                backend.activate(n, act, activated)?;
            }
        }
        backend.linear(n, activated, &w.down, w.down_bias.as_ref(), out)?; // [n, hidden]
        Ok(())
    }
}
