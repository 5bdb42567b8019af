//! Activation functions in the terms of the kernels.

use millrace_backend::{Activation, Error, Gating, Result};

use super::buffers::Buf;
use super::cuda::Cuda;
use crate::ops::activation::{self, ActivationKind, ActivationRows, GateClamp, KernelVersion};

/// Returns the function in the terms of the kernels, if they have it.
pub(super) fn activation_kind(act: Activation) -> Result<ActivationKind> {
    match act {
        Activation::Silu => Ok(ActivationKind::Silu),
        Activation::Gelu => Ok(ActivationKind::Gelu),
        Activation::GeluTanh => Ok(ActivationKind::GeluTanh),
        Activation::Relu => Ok(ActivationKind::Relu),
        Activation::ReluSquared => {
            Err(Error::Unsupported("the squared ReLU on a GPU; use --device cpu".to_owned()))
        }
        Activation::Xielu(_) => Err(Error::Unsupported("xIELU on a GPU; use --device cpu".to_owned())),
    }
}

impl Cuda {
    /// `out = gating(gate, up)` over the first `n` rows.
    pub(super) fn gate_rows(&self, n: usize, gating: Gating, x: &Buf, out: &Buf) -> Result<()> {
        let rows = ActivationRows { rows: n, cols: out.cols, x: x.rows(n), out: out.rows(n) };
        match gating {
            Gating::Product(act) => {
                activation::gate(&self.device, KernelVersion::Fast, activation_kind(act)?, &rows)
            }
            Gating::Clamped { alpha, limit } => {
                let clamp = GateClamp { alpha, limit };
                activation::gate_clamped(&self.device, KernelVersion::Fast, clamp, &rows)
            }
        }
    }
}
