//! The paged cache of one layer, in the order in which attention reads it: for each block and head the keys feature by feature,
//! so that a vector holds one feature of successive keys, and the values token by token.

use half::{bf16, f16};

use super::memory::Memory;
use super::simd::Element;
use crate::backend::KvSpec;
use crate::{DType, Error, Result};

/// Block sizes are multiples of the longest vector, so that no vector of keys has two blocks in it.
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
    /// `[blocks, kv_heads, head_dim, block_size]`
    pub(super) k: Memory<T>,
    /// `[blocks, kv_heads, block_size, padded head_dim]`
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
        let cache = match spec.dtype {
            DType::F32 => Cache::F32(Pages::new(&spec)?),
            DType::F16 => Cache::F16(Pages::new(&spec)?),
            DType::BF16 => Cache::BF16(Pages::new(&spec)?),
        };
        Ok(Kv { spec, cache })
    }

    /// Bytes of a cache.
    pub(super) fn bytes(spec: &KvSpec) -> usize {
        let features = spec.kv_heads * (spec.head_dim + padded(spec.head_dim)) * spec.dtype.size();
        spec.blocks.saturating_mul(spec.block_size).saturating_mul(features)
    }
}

impl<T: Element> Pages<T> {
    fn new(spec: &KvSpec) -> Result<Pages<T>> {
        let rows = spec.blocks.saturating_mul(spec.block_size).saturating_mul(spec.kv_heads);
        Ok(Pages {
            k: Memory::zeroed(rows.saturating_mul(spec.head_dim), "the KV cache")?,
            v: Memory::zeroed(rows.saturating_mul(padded(spec.head_dim)), "the KV cache")?,
        })
    }
}

/// Features of a value with its padding.
#[inline(always)]
pub(super) const fn padded(head_dim: usize) -> usize {
    head_dim.next_multiple_of(VALUE_STEP)
}

/// Index of feature 0 of the key in `slot` of a block; the next feature is `block_size` further.
#[inline(always)]
pub(super) fn key_at(spec: &KvSpec, block: u32, head: usize, slot: usize) -> usize {
    (block as usize * spec.kv_heads + head) * spec.head_dim * spec.block_size + slot
}

/// Index of feature 0 of the value in `slot` of a block.
#[inline(always)]
pub(super) fn value_at(spec: &KvSpec, block: u32, head: usize, slot: usize) -> usize {
    ((block as usize * spec.kv_heads + head) * spec.block_size + slot) * padded(spec.head_dim)
}
