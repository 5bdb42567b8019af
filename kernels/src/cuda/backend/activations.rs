//! Activation functions in the terms of the kernels.

use super::buffers::Buf;
use super::cuda::Cuda;
use crate::Result;
use crate::backend::{Activation, Gating};
use crate::cuda::ops::activation::{self, ActivationKind, ActivationRows, GateClamp, KernelVersion};

pub(super) fn activation_kind(act: Activation) -> ActivationKind {
    match act {
        Activation::Silu => ActivationKind::Silu,
        Activation::Gelu => ActivationKind::Gelu,
        Activation::GeluTanh => ActivationKind::GeluTanh,
        Activation::Relu => ActivationKind::Relu,
    }
}

impl Cuda {
    /// `out = gating(gate, up)` over the first `n` rows.
    pub(super) fn gate_rows(&self, n: usize, gating: Gating, x: &Buf, out: &Buf) -> Result<()> {
        let rows = ActivationRows { rows: n, cols: out.cols, x: x.rows(n), out: out.rows(n) };
        match gating {
            Gating::Product(act) => {
                activation::gate(&self.device, KernelVersion::Fast, activation_kind(act), &rows)
            }
            Gating::Clamped { alpha, limit } => {
                let clamp = GateClamp { alpha, limit };
                activation::gate_clamped(&self.device, KernelVersion::Fast, clamp, &rows)
            }
        }
    }
}
