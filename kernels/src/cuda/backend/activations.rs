//! Activation functions in the terms of the kernels.

use super::buffers::Buf;
use super::cuda::Cuda;
use crate::Result;
use crate::backend::Activation;
use crate::cuda::ops::activation::{self, ActivationKind, ActivationRows, KernelVersion};

pub(super) fn activation_kind(act: Activation) -> ActivationKind {
    match act {
        Activation::Silu => ActivationKind::Silu,
        Activation::Gelu => ActivationKind::Gelu,
        Activation::GeluTanh => ActivationKind::GeluTanh,
        Activation::Relu => ActivationKind::Relu,
    }
}

impl Cuda {
    /// `out = act(gate) * up` over the first `n` rows.
    pub(super) fn gate_rows(&self, n: usize, act: Activation, x: &Buf, out: &Buf) -> Result<()> {
        let act = activation_kind(act);
        let rows = ActivationRows { rows: n, cols: out.cols, x: x.rows(n), out: out.rows(n) };
        activation::gate(&self.device, KernelVersion::Fast, act, &rows)
    }
}
