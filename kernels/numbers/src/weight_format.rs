//! The formats in which a device keeps weights.

use crate::codes::{CodeType, StoredCodes};
use crate::formats::ggml::SUPER_BLOCK;
use crate::formats::nf4;
use crate::{DType, IntFormat, KFormat};

/// The format in which a device keeps the numbers of a weight matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WeightFormat {
    /// Numbers of this type.
    Dense(DType),
    /// FP8 (e4m3) with one f32 factor per row (output): see [`crate::formats::fp8`].
    Fp8,
    /// NF4 with one f32 factor per 64 columns: see [`crate::formats::nf4`].
    Nf4,
    /// Integers in groups: see [`crate::integers`].
    Int(IntFormat),
    /// Integers in super-blocks: see [`KFormat`].
    K(KFormat),
    /// Codes that stand for numbers, as a checkpoint stores them.
    Codes(StoredCodes),
}

impl WeightFormat {
    /// Returns the format in which a matrix of `cols` columns is kept where this one is asked for.
    /// A matrix whose rows are not whole super-blocks has groups of 32 columns with as many bits,
    /// or more. A matrix whose rows are not whole groups is dense, with numbers of type `dense`.
    pub const fn for_cols(self, cols: usize, dense: DType) -> WeightFormat {
        match self {
            WeightFormat::K(_) if cols.is_multiple_of(SUPER_BLOCK) => self,
            WeightFormat::K(KFormat::Q4K) => WeightFormat::Int(IntFormat::Q4_0).for_cols(cols, dense),
            WeightFormat::K(KFormat::Q5K | KFormat::Q6K) => {
                WeightFormat::Int(IntFormat::Q8_0).for_cols(cols, dense)
            }
            WeightFormat::Int(format) if !format.fits(cols) => WeightFormat::Dense(dense),
            _ => self,
        }
    }

    /// Returns the name on the command line, where the format has one.
    pub const fn name(self) -> &'static str {
        match self {
            WeightFormat::Dense(dtype) => dtype.name(),
            WeightFormat::Fp8 => "fp8",
            WeightFormat::Nf4 => "nf4",
            WeightFormat::Int(format) => format.name(),
            WeightFormat::K(format) => format.name(),
            WeightFormat::Codes(StoredCodes { codes: CodeType::E4m3, .. }) => "stored codes of 8 bits",
            WeightFormat::Codes(StoredCodes { codes: CodeType::FourBits, .. }) => "stored codes of 4 bits",
        }
    }

    /// Returns the bytes of a matrix `[out, cols]` without padding.
    pub const fn bytes(self, out: usize, cols: usize) -> usize {
        match self {
            WeightFormat::Dense(dtype) => out * cols * dtype.size(),
            WeightFormat::Fp8 => out * (cols + size_of::<f32>()),
            WeightFormat::Nf4 => {
                out.saturating_mul(cols.div_ceil(2) + cols.div_ceil(nf4::GROUP) * size_of::<f32>())
            }
            WeightFormat::Int(format) => format.bytes(out, cols),
            WeightFormat::K(format) => format.bytes(out, cols),
            WeightFormat::Codes(format) => format.bytes(out, cols),
        }
    }
}

impl From<DType> for WeightFormat {
    fn from(dtype: DType) -> Self {
        WeightFormat::Dense(dtype)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn super_blocks_are_replaced_where_they_do_not_fit() {
        let [q4_k, q5_k, q6_k] = KFormat::ALL.map(WeightFormat::K);
        let for_cols = |format: WeightFormat, cols| format.for_cols(cols, DType::BF16);
        assert_eq!((for_cols(q4_k, 512), for_cols(q6_k, 512)), (q4_k, q6_k));
        assert_eq!(for_cols(q4_k, 384), WeightFormat::Int(IntFormat::Q4_0));
        assert_eq!(for_cols(q5_k, 384), WeightFormat::Int(IntFormat::Q8_0));
        assert_eq!(for_cols(q6_k, 384), WeightFormat::Int(IntFormat::Q8_0));
        assert_eq!(for_cols(WeightFormat::Fp8, 384), WeightFormat::Fp8);
    }

    #[test]
    fn matrices_that_no_group_divides_are_dense() {
        let in_groups = [IntFormat::Q8_0, IntFormat::Q4_0, IntFormat::Int4].map(WeightFormat::Int);
        for format in KFormat::ALL.map(WeightFormat::K).into_iter().chain(in_groups) {
            assert_eq!(format.for_cols(172, DType::BF16), WeightFormat::Dense(DType::BF16), "{format:?}");
            assert_ne!(format.for_cols(96, DType::BF16), WeightFormat::Dense(DType::BF16), "{format:?}");
        }
        // A row of any length is one group, and the last group of NF4 may be short.
        for format in [WeightFormat::Int(IntFormat::Int8), WeightFormat::Nf4, WeightFormat::Fp8] {
            assert_eq!(format.for_cols(172, DType::BF16), format);
        }
    }
}
