//! The element types of weights and caches.

use half::{bf16, f16};

use super::vector::Simd;
use crate::memory::Plain;

/// An element type of weights and caches.
pub(crate) trait Element: Plain {
    /// Bytes per element.
    const SIZE: usize = size_of::<Self>();
    /// Returns the nearest value; ties go to the even one.
    fn from_f32(x: f32) -> Self;
    /// Returns the exact value.
    fn to_f32(self) -> f32;
    /// Loads `S::LANES` elements as f32.
    ///
    /// # Safety
    /// As [`Memory::load`](super::vector::Memory::load).
    unsafe fn load<S: Simd>(p: *const Self) -> S::V;
}

impl Element for f32 {
    #[inline(always)]
    fn from_f32(x: f32) -> f32 {
        x
    }
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const f32) -> S::V {
        // SAFETY: the caller guarantees what `Simd` requires.
        unsafe { S::load(p) }
    }
}

impl Element for f16 {
    #[inline(always)]
    fn from_f32(x: f32) -> f16 {
        f16::from_f32(x)
    }
    #[inline(always)]
    fn to_f32(self) -> f32 {
        f16::to_f32(self)
    }
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const f16) -> S::V {
        // SAFETY: the caller guarantees what `Memory::load` requires; f16 is a transparent u16.
        unsafe { S::load_f16(p.cast()) }
    }
}

impl Element for bf16 {
    #[inline(always)]
    fn from_f32(x: f32) -> bf16 {
        bf16::from_f32(x)
    }
    #[inline(always)]
    fn to_f32(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const bf16) -> S::V {
        // SAFETY: the caller guarantees what `Memory::load` requires; bf16 is a transparent u16.
        unsafe { S::load_bf16(p.cast()) }
    }
}

impl Element for i8 {
    #[inline(always)]
    fn from_f32(x: f32) -> i8 {
        x.round_ties_even() as i8
    }
    #[inline(always)]
    fn to_f32(self) -> f32 {
        f32::from(self)
    }
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const i8) -> S::V {
        // SAFETY: the caller guarantees what `Memory::load` requires.
        unsafe { S::load_i8(p) }
    }
}
