//! The formats in which a device keeps the weights of a model.

use millrace_kernels::{DType, WeightFormat};
use serde::{Deserialize, Serialize};

use super::slots::{WeightKind, WeightSlot};

/// The formats in which a device keeps the weights of a model. Vectors are always in single
/// precision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WeightStorage {
    /// Element type of matrices, and on GPUs also of activations.
    pub dtype: DType,
    /// Quantization of the matrices that may be quantized.
    pub quantize: Option<Quantize>,
}

/// A way to quantize matrices while they are loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Quantize {
    /// FP8 (e4m3) with one scale per output feature.
    Fp8,
}

impl Quantize {
    /// Returns the name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Quantize::Fp8 => "fp8",
        }
    }
}

impl WeightStorage {
    /// Returns the format of the matrix in `slot`. Embedding and head are never quantized, because
    /// they decide which token is chosen.
    pub fn matrix(&self, slot: WeightSlot) -> WeightFormat {
        match (self.quantize, slot.info().kind) {
            (Some(Quantize::Fp8), WeightKind::Matrix { may_quantize: true }) => WeightFormat::Fp8,
            _ => self.dtype.into(),
        }
    }
}

impl From<DType> for WeightStorage {
    fn from(dtype: DType) -> Self {
        WeightStorage { dtype, quantize: None }
    }
}
