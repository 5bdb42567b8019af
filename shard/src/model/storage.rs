//! How a device keeps the weights of a model.

use millrace_kernels::{DType, MatrixFormat};

use super::{LayerSlot, Slot};

/// How a device keeps the weights of a model; vectors are always in single precision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Storage {
    /// The type of matrices, and on cards of activations.
    pub dtype: DType,
    /// What becomes of the matrices of the layers' products.
    pub quantize: Option<Quantize>,
}

/// A way to keep matrices in fewer bits, which is found while they are loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quantize {
    /// FP8 (e4m3) with a factor per output.
    Fp8,
}

impl Quantize {
    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Quantize::Fp8 => "fp8",
        }
    }
}

impl Storage {
    /// How the matrix in `slot` is kept. Embedding and head decide which token it is, and stay as they are.
    pub fn matrix(&self, slot: Slot) -> MatrixFormat {
        use LayerSlot::{Down, GateUp, Out, Qkv};
        match (self.quantize, slot) {
            (Some(Quantize::Fp8), Slot::Layer(_, Qkv | Out | GateUp | Down)) => MatrixFormat::Fp8,
            _ => self.dtype.into(),
        }
    }
}

impl From<DType> for Storage {
    fn from(dtype: DType) -> Self {
        Storage { dtype, quantize: None }
    }
}
