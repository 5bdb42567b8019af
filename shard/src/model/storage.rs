//! The formats in which a device keeps the weights of a model.

use millrace_kernels::{DType, IntFormat, KFormat, WeightFormat};
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
    /// 8-bit integers with one scale per output feature, on the CPU.
    Int8,
    /// 8-bit integers in groups of 32 columns (GGUF's Q8_0), on the CPU.
    Q8_0,
    /// 4-bit integers in groups of 32 columns (GGUF's Q4_0), on the CPU.
    Q4_0,
    /// 4-bit integers in groups of up to 128 columns with zero points, on the CPU.
    Int4,
    /// 4-bit integers in super-blocks of 256 columns (GGUF's Q4_K), on the CPU.
    Q4K,
    /// 6-bit integers in super-blocks of 256 columns (GGUF's Q6_K), on the CPU.
    Q6K,
    /// 4-bit codes into a table of quantiles, in groups of 64 columns, on the CPU.
    Nf4,
}

impl Quantize {
    /// Returns the name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Quantize::Fp8 => "fp8",
            Quantize::Int8 => IntFormat::Int8.name(),
            Quantize::Q8_0 => IntFormat::Q8_0.name(),
            Quantize::Q4_0 => IntFormat::Q4_0.name(),
            Quantize::Int4 => IntFormat::Int4.name(),
            Quantize::Q4K => KFormat::Q4K.name(),
            Quantize::Q6K => KFormat::Q6K.name(),
            Quantize::Nf4 => "nf4",
        }
    }

    /// Returns the format of the quantized matrices.
    const fn format(self) -> WeightFormat {
        match self {
            Quantize::Fp8 => WeightFormat::Fp8,
            Quantize::Int8 => WeightFormat::Int(IntFormat::Int8),
            Quantize::Q8_0 => WeightFormat::Int(IntFormat::Q8_0),
            Quantize::Q4_0 => WeightFormat::Int(IntFormat::Q4_0),
            Quantize::Int4 => WeightFormat::Int(IntFormat::Int4),
            Quantize::Q4K => WeightFormat::K(KFormat::Q4K),
            Quantize::Q6K => WeightFormat::K(KFormat::Q6K),
            Quantize::Nf4 => WeightFormat::Nf4,
        }
    }

    /// Tells whether only the CPU multiplies by the format.
    pub const fn needs_cpu(self) -> bool {
        !matches!(self, Quantize::Fp8)
    }
}

impl WeightStorage {
    /// Returns the format asked for of the matrix in `slot`, which [`WeightFormat::for_cols`] replaces
    /// where it does not fit. Embedding and head are never quantized, because
    /// they decide which token is chosen.
    pub fn matrix(&self, slot: WeightSlot) -> WeightFormat {
        match (self.quantize, slot.info().kind) {
            (Some(quantize), WeightKind::Matrix { may_quantize: true }) => quantize.format(),
            _ => self.dtype.into(),
        }
    }
}

impl From<DType> for WeightStorage {
    fn from(dtype: DType) -> Self {
        WeightStorage { dtype, quantize: None }
    }
}
