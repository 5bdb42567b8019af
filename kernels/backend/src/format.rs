//! The formats in which a device keeps cached keys and values.

use millrace_numbers::DType;

use crate::{Error, Result};

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
