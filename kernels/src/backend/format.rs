//! The formats in which a device keeps weights and cached keys and values.

use crate::encoding::{CodeType, StoredCodes};
use crate::quantize::{SUPER_BLOCK, nf4};
use crate::{DType, Error, IntFormat, KFormat, Result};

/// The format in which a device keeps the numbers of a weight matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WeightFormat {
    /// Numbers of this type.
    Dense(DType),
    /// FP8 (e4m3) with one f32 factor per row (output): see [`crate::fp8`].
    Fp8,
    /// NF4 with one f32 factor per 64 columns: see [`crate::quantize::nf4`].
    Nf4,
    /// Integers in groups: see [`crate::quantize`].
    Int(IntFormat),
    /// Integers in super-blocks: see [`crate::quantize::KFormat`].
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
            WeightFormat::K(KFormat::Q6K) => WeightFormat::Int(IntFormat::Q8_0).for_cols(cols, dense),
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

/// The format in which a device keeps cached keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KvFormat {
    /// Numbers of this type.
    Dense(DType),
    /// Signed bytes with one f32 scale for the key and one for the value of each token and head:
    /// `number = byte * scale`, `scale = max(|numbers|) / 127`.
    Int8,
}

impl KvFormat {
    /// All formats.
    pub const ALL: [KvFormat; 4] = [
        KvFormat::Dense(DType::F32),
        KvFormat::Dense(DType::F16),
        KvFormat::Dense(DType::BF16),
        KvFormat::Int8,
    ];

    /// Returns the name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            KvFormat::Dense(dtype) => dtype.name(),
            KvFormat::Int8 => "int8",
        }
    }

    /// Returns the element type of a dense format.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a format that only other devices have.
    pub fn dense(self) -> Result<DType> {
        match self {
            KvFormat::Dense(dtype) => Ok(dtype),
            KvFormat::Int8 => Err(Error::Unsupported("an int8 KV cache needs the CPU".to_owned())),
        }
    }

    /// Returns the bytes of the key or the value of one token and head, with `dim` features.
    pub const fn head_bytes(self, dim: usize) -> usize {
        match self {
            KvFormat::Dense(dtype) => dim.saturating_mul(dtype.size()),
            KvFormat::Int8 => dim.saturating_add(size_of::<f32>()),
        }
    }
}

impl From<DType> for KvFormat {
    fn from(dtype: DType) -> Self {
        KvFormat::Dense(dtype)
    }
}

/// The shape of one layer's paged KV cache. Keys and values may have heads of different sizes.
#[derive(Debug, Clone, Copy)]
pub struct KvSpec {
    /// Blocks in the pool.
    pub blocks: usize,
    /// Tokens per block.
    pub block_size: usize,
    /// Key/value heads.
    pub heads: usize,
    /// Features per key head.
    pub key_dim: usize,
    /// Features per value head; 0 if values are the last features of the keys.
    pub value_dim: usize,
    /// Format of the cached numbers.
    pub format: KvFormat,
}

impl KvSpec {
    /// Returns the elements of all keys, `blocks * block_size * heads * key_dim`.
    pub const fn key_elements(&self) -> usize {
        self.token_heads().saturating_mul(self.key_dim)
    }

    /// Returns the elements of all values, `blocks * block_size * heads * value_dim`.
    pub const fn value_elements(&self) -> usize {
        self.token_heads().saturating_mul(self.value_dim)
    }

    /// Returns the bytes of the cache without padding.
    pub const fn bytes(&self) -> usize {
        let head =
            self.format.head_bytes(self.key_dim).saturating_add(self.format.head_bytes(self.value_dim));
        self.token_heads().saturating_mul(head)
    }

    const fn token_heads(&self) -> usize {
        self.blocks.saturating_mul(self.block_size).saturating_mul(self.heads)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn super_blocks_are_replaced_where_they_do_not_fit() {
        let [q4_k, q6_k] = KFormat::ALL.map(WeightFormat::K);
        let for_cols = |format: WeightFormat, cols| format.for_cols(cols, DType::BF16);
        assert_eq!((for_cols(q4_k, 512), for_cols(q6_k, 512)), (q4_k, q6_k));
        assert_eq!(for_cols(q4_k, 384), WeightFormat::Int(IntFormat::Q4_0));
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

    #[test]
    fn keys_and_values_are_sized_separately() {
        let spec = KvSpec {
            blocks: 3,
            block_size: 16,
            heads: 2,
            key_dim: 8,
            value_dim: 4,
            format: DType::F16.into(),
        };
        assert_eq!((spec.key_elements(), spec.value_elements()), (768, 384));
        assert_eq!(spec.bytes(), 2 * (768 + 384));
        assert_eq!(KvSpec { format: KvFormat::Int8, ..spec }.bytes(), 96 * (8 + 4 + 4 + 4));
        assert_eq!(KvSpec { blocks: usize::MAX, ..spec }.bytes(), usize::MAX);
    }
}
