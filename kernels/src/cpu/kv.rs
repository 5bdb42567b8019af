//! The paged KV cache of one layer, in the order in which attention reads it. For each block and
//! head, keys are stored feature by feature, so that a vector holds one feature of successive keys;
//! values are stored token by token.

use half::{bf16, f16};

use super::memory::Memory;
use super::simd::Element;
use crate::backend::{KvFormat, KvSpec};
use crate::{DType, Error, Result};

/// Block sizes are multiples of the longest vector, so that no vector of keys spans two blocks.
const BLOCK_STEP: usize = 16;
/// The features of a value are padded with zeros to a multiple of the longest vector.
const VALUE_STEP: usize = 16;

/// One layer's keys and values.
#[derive(Debug)]
pub struct Kv {
    pub(super) spec: KvSpec,
    pub(super) cache: Cache,
}

#[derive(Debug)]
pub(super) enum Cache {
    F32(Pages<f32>),
    F16(Pages<f16>),
    BF16(Pages<bf16>),
}

/// Keys and values of one element type.
#[derive(Debug)]
pub(super) struct Pages<T: Element> {
    /// `[blocks, heads, key_dim, block_size]`
    pub(super) k: Memory<T>,
    /// `[blocks, heads, block_size, padded value_dim]`
    pub(super) v: Memory<T>,
}

impl Kv {
    pub(super) fn new(spec: KvSpec) -> Result<Kv> {
        if spec.block_size == 0 || !spec.block_size.is_multiple_of(BLOCK_STEP) {
            return Err(Error::Unsupported(format!(
                "blocks of {} tokens; use a multiple of {BLOCK_STEP}",
                spec.block_size
            )));
        }
        let cache = match spec.format {
            KvFormat::Dense(DType::F32) => Cache::F32(Pages::new(&spec)?),
            KvFormat::Dense(DType::F16) => Cache::F16(Pages::new(&spec)?),
            KvFormat::Dense(DType::BF16) => Cache::BF16(Pages::new(&spec)?),
        };
        Ok(Kv { spec, cache })
    }

    /// Returns the bytes of a cache, with the padding of the values.
    pub(super) fn bytes(spec: &KvSpec) -> usize {
        KvSpec { value_dim: padded(spec.value_dim), ..*spec }.bytes()
    }
}

impl<T: Element> Pages<T> {
    fn new(spec: &KvSpec) -> Result<Pages<T>> {
        let padded = KvSpec { value_dim: padded(spec.value_dim), ..*spec };
        Ok(Pages {
            k: Memory::zeroed(spec.key_elements(), "the KV cache")?,
            v: Memory::zeroed(padded.value_elements(), "the KV cache")?,
        })
    }
}

/// Returns the features of a value with its padding.
#[inline(always)]
pub(super) const fn padded(value_dim: usize) -> usize {
    value_dim.next_multiple_of(VALUE_STEP)
}

/// Returns the index of feature 0 of the key in `slot` of a block. The next feature is `block_size`
/// elements further.
#[inline(always)]
pub(super) fn key_at(spec: &KvSpec, block: u32, head: usize, slot: usize) -> usize {
    (block as usize * spec.heads + head) * spec.key_dim * spec.block_size + slot
}

/// Returns the index of feature 0 of the value in `slot` of a block.
#[inline(always)]
pub(super) fn value_at(spec: &KvSpec, block: u32, head: usize, slot: usize) -> usize {
    ((block as usize * spec.heads + head) * spec.block_size + slot) * padded(spec.value_dim)
}
