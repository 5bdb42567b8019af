//! The paged KV cache of one layer, in the order in which attention reads it.
//!
//! For each block and head, keys are stored feature by feature, so that a vector holds one feature
//! of successive keys; values are stored token by token. Where the instruction set multiplies pairs
//! of bf16 numbers, two features of a key are next to each other, and two tokens of a value.

use half::{bf16, f16};
use millrace_backend::{Error, KvFormat, KvSpec, Result, kv_int8};
use millrace_numbers::DType;

use super::memory::{Memory, Shared};
use super::simd::Element;
use super::step::ProductStep;

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
    /// Pairs for [`Simd::dot_bf16`](super::simd::Simd::dot_bf16).
    Bf16Pairs(Pages<bf16>),
    Int8(BytePages),
}

/// Keys and values of one element type.
#[derive(Debug)]
pub(super) struct Pages<T: Element> {
    /// `[blocks, heads, ceil(key_dim / pack), block_size, pack]`
    pub(super) k: Memory<T>,
    /// `[blocks, heads, block_size / pack, padded value_dim, pack]`
    pub(super) v: Memory<T>,
    layout: PageLayout,
}

/// Keys and values as bytes, and their scales.
#[derive(Debug)]
pub(super) struct BytePages {
    pub(super) bytes: Pages<i8>,
    /// `[blocks, heads, block_size]`
    pub(super) key_scales: Memory<f32>,
    /// `[blocks, heads, block_size]`
    pub(super) value_scales: Memory<f32>,
}

/// The order of the numbers in a cache.
#[derive(Debug, Clone, Copy)]
struct PageLayout {
    heads: usize,
    block_size: usize,
    key_dim: usize,
    /// Features of a value with its padding.
    value_width: usize,
    /// Numbers that are multiplied at once: features of a key, tokens of a value.
    pack: usize,
}

impl PageLayout {
    fn new(spec: &KvSpec, pack: usize) -> PageLayout {
        let KvSpec { heads, block_size, .. } = *spec;
        let key_dim = spec.key_dim.next_multiple_of(pack);
        PageLayout { heads, block_size, key_dim, value_width: padded(spec.value_dim), pack }
    }

    /// Returns the numbers of a block's keys of one head.
    #[inline(always)]
    fn key_block(&self) -> usize {
        self.key_dim * self.block_size
    }

    /// Returns the numbers of a block's values of one head.
    #[inline(always)]
    fn value_block(&self) -> usize {
        self.value_width * self.block_size
    }

    /// Returns the place of feature `d` of the key in `slot` among a block's keys of one head.
    #[inline(always)]
    fn key(&self, slot: usize, d: usize) -> usize {
        (d / self.pack * self.block_size + slot) * self.pack + d % self.pack
    }

    /// Returns the place of feature `d` of the value in `slot` among a block's values of one head.
    #[inline(always)]
    fn value(&self, slot: usize, d: usize) -> usize {
        (slot / self.pack * self.value_width + d) * self.pack + slot % self.pack
    }
}

impl Kv {
    /// Allocates the cache of one layer, with bf16 numbers in pairs if `pairs` says so.
    pub(super) fn new(spec: KvSpec, pairs: bool) -> Result<Kv> {
        if spec.block_size == 0 || !spec.block_size.is_multiple_of(BLOCK_STEP) {
            return Err(Error::Unsupported(format!(
                "blocks of {} tokens; use a multiple of {BLOCK_STEP}",
                spec.block_size
            )));
        }
        if spec.value_dim == 0 && spec.format == KvFormat::Int8 {
            // A key has one scale, and the features of a latent differ too much from the others.
            return Err(Error::Unsupported("an int8 KV cache of latents; use a 16-bit format".to_owned()));
        }
        let cache = match spec.format {
            KvFormat::Dense(DType::F32) => Cache::F32(Pages::new(&spec, 1)?),
            KvFormat::Dense(DType::F16) => Cache::F16(Pages::new(&spec, 1)?),
            KvFormat::Dense(DType::BF16) if pairs => Cache::Bf16Pairs(Pages::new(&spec, 2)?),
            KvFormat::Dense(DType::BF16) => Cache::BF16(Pages::new(&spec, 1)?),
            KvFormat::Int8 => Cache::Int8(BytePages::new(&spec)?),
        };
        Ok(Kv { spec, cache })
    }

    /// Returns the bytes of a cache with its padding.
    pub(super) fn bytes(spec: &KvSpec, pairs: bool) -> usize {
        let pack = if pairs && spec.format == KvFormat::Dense(DType::BF16) { 2 } else { 1 };
        let (key_dim, value_dim) = (spec.key_dim.next_multiple_of(pack), padded(spec.value_dim));
        KvSpec { key_dim, value_dim, ..*spec }.bytes()
    }
}

impl<T: Element> Pages<T> {
    fn new(spec: &KvSpec, pack: usize) -> Result<Pages<T>> {
        let layout = PageLayout::new(spec, pack);
        let of = |block: usize| spec.blocks.saturating_mul(spec.heads).saturating_mul(block);
        let what = "the KV cache";
        let (k, v) = (of(layout.key_block()), of(layout.value_block()));
        Ok(Pages { k: Memory::zeroed(k, what)?, v: Memory::zeroed(v, what)?, layout })
    }

    /// Returns the numbers in the form in which steps `F` read them.
    #[inline(always)]
    pub(super) fn view<F: ProductStep>(&self) -> View<F> {
        debug_assert_eq!(size_of::<F::Weight>(), self.layout.pack * T::SIZE, "numbers of a word");
        View { k: self.k.as_ptr().cast(), v: self.v.as_ptr().cast(), scales: None, layout: self.layout }
    }

    pub(super) fn writer(&mut self) -> PageWriter<T> {
        PageWriter { k: Shared::new(&mut self.k), v: Shared::new(&mut self.v), layout: self.layout }
    }
}

impl BytePages {
    fn new(spec: &KvSpec) -> Result<BytePages> {
        let scales = spec.blocks.saturating_mul(spec.heads).saturating_mul(spec.block_size);
        Ok(BytePages {
            bytes: Pages::new(spec, 1)?,
            key_scales: Memory::zeroed(scales, "the KV cache")?,
            value_scales: Memory::zeroed(scales, "the KV cache")?,
        })
    }

    #[inline(always)]
    pub(super) fn view<F: ProductStep>(&self) -> View<F> {
        let scales = Scales { keys: self.key_scales.as_ptr(), values: self.value_scales.as_ptr() };
        View { scales: Some(scales), ..self.bytes.view() }
    }

    pub(super) fn writer(&mut self) -> ByteWriter {
        ByteWriter {
            bytes: self.bytes.writer(),
            key_scales: Shared::new(&mut self.key_scales),
            value_scales: Shared::new(&mut self.value_scales),
        }
    }
}

/// The numbers of a cache as the words that steps `F` multiply by.
pub(super) struct View<F: ProductStep> {
    k: *const F::Weight,
    v: *const F::Weight,
    scales: Option<Scales>,
    layout: PageLayout,
}

/// The factors on keys and values, `[blocks, heads, block_size]`.
#[derive(Clone, Copy)]
struct Scales {
    keys: *const f32,
    values: *const f32,
}

impl<F: ProductStep> View<F> {
    /// Returns the address of the first word of the key at a place: a block and a slot.
    #[inline(always)]
    pub(super) fn key(&self, (block, slot): (u32, usize), head: usize) -> *const F::Weight {
        let blocks = block as usize * self.layout.heads + head;
        self.k.wrapping_add(blocks * self.layout.key_block() / F::INPUTS + slot)
    }

    #[inline(always)]
    pub(super) fn has_scales(&self) -> bool {
        self.scales.is_some()
    }

    /// Returns the addresses of the scales of the key and the value at a place, if the format has
    /// scales. Those of the block's later slots follow.
    #[inline(always)]
    pub(super) fn scales(&self, (block, slot): (u32, usize), head: usize) -> Option<[*const f32; 2]> {
        let Scales { keys, values } = self.scales?;
        let at = (block as usize * self.layout.heads + head) * self.layout.block_size + slot;
        Some([keys.wrapping_add(at), values.wrapping_add(at)])
    }

    /// Returns the distance of two words of a key.
    #[inline(always)]
    pub(super) fn key_stride(&self) -> usize {
        self.layout.block_size
    }

    /// Returns the bytes of a block's keys of one head.
    #[inline(always)]
    pub(super) fn key_block_bytes(&self) -> usize {
        self.layout.key_block() / F::INPUTS * size_of::<F::Weight>()
    }

    /// Returns the address of feature 0 of the word that holds the value at a place.
    #[inline(always)]
    pub(super) fn value(&self, (block, slot): (u32, usize), head: usize) -> *const F::Weight {
        let blocks = block as usize * self.layout.heads + head;
        let word = slot / F::INPUTS * self.layout.value_width;
        self.v.wrapping_add(blocks * self.layout.value_block() / F::INPUTS + word)
    }

    /// Returns the distance of the same feature of two successive words of values.
    #[inline(always)]
    pub(super) fn value_stride(&self) -> usize {
        self.layout.value_width
    }

    #[inline(always)]
    pub(super) fn block_size(&self) -> usize {
        self.layout.block_size
    }
}

/// The place of a token in a cache.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) block: u32,
    pub(super) slot: usize,
    pub(super) head: usize,
}

/// Writes keys and values to a cache that the tasks of a parallel loop share.
pub(super) trait WriteKv: Copy + Sync {
    /// Writes the key and the value of one token and head.
    ///
    /// # Safety
    /// The place is inside the cache, and no other task writes or reads it.
    unsafe fn write(self, at: Place, key: &[f32], value: &[f32]);
}

/// Writes to [`Pages`].
#[derive(Debug, Clone, Copy)]
pub(super) struct PageWriter<T> {
    k: Shared<T>,
    v: Shared<T>,
    layout: PageLayout,
}

impl<T: Element> WriteKv for PageWriter<T> {
    #[inline(always)]
    unsafe fn write(self, at: Place, key: &[f32], value: &[f32]) {
        let layout = self.layout;
        let block = at.block as usize * layout.heads + at.head;
        // SAFETY: the caller guarantees that the place is inside the cache and belongs to it alone.
        unsafe {
            let k = self.k.as_ptr().add(block * layout.key_block());
            for (d, x) in key.iter().enumerate() {
                *k.add(layout.key(at.slot, d)) = T::from_f32(*x);
            }
            let v = self.v.as_ptr().add(block * layout.value_block());
            for (d, x) in value.iter().enumerate() {
                *v.add(layout.value(at.slot, d)) = T::from_f32(*x);
            }
        }
    }
}

/// Writes to [`BytePages`].
#[derive(Debug, Clone, Copy)]
pub(super) struct ByteWriter {
    bytes: PageWriter<i8>,
    key_scales: Shared<f32>,
    value_scales: Shared<f32>,
}

impl WriteKv for ByteWriter {
    #[inline(always)]
    unsafe fn write(self, at: Place, key: &[f32], value: &[f32]) {
        let layout = self.bytes.layout;
        let block = at.block as usize * layout.heads + at.head;
        // SAFETY: the caller guarantees that the place is inside the cache and belongs to it alone.
        unsafe {
            let k = self.bytes.k.as_ptr().add(block * layout.key_block());
            let scale = kv_int8::quantize(key, |d, code| *k.add(layout.key(at.slot, d)) = code);
            *self.key_scales.as_ptr().add(block * layout.block_size + at.slot) = scale;
            let v = self.bytes.v.as_ptr().add(block * layout.value_block());
            let scale = kv_int8::quantize(value, |d, code| *v.add(layout.value(at.slot, d)) = code);
            *self.value_scales.as_ptr().add(block * layout.block_size + at.slot) = scale;
        }
    }
}

/// Returns the features of a value with its padding.
#[inline(always)]
pub(super) const fn padded(value_dim: usize) -> usize {
    value_dim.next_multiple_of(VALUE_STEP)
}
