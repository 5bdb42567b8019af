//! The conversion of codes to the words that inputs are multiplied with.

use std::marker::PhantomData;

use half::bf16;

use super::super::simd::Simd;
use super::super::step::{Pair, Single, Step};
use crate::quantize::nf4;

/// The reading of eight columns of one vector of outputs as N words.
pub(super) trait Widen<const N: usize>: 'static {
    /// The products of the words with those of inputs.
    type Product: Step;
    /// Whether the steps come from memory rather than from the cache.
    const STREAMED: bool = true;

    /// Returns the words of vector `v` of a panel, 0 or 1, from the step at `p`.
    ///
    /// # Safety
    /// The machine has the instruction set, and the step is valid.
    unsafe fn words<S: Simd>(p: *const u8, v: usize) -> [<Self::Product as Step>::Vector<S>; N];

    /// Returns the bits of a word as numbers, to be stored.
    ///
    /// # Safety
    /// The machine has the instruction set.
    unsafe fn numbers<S: Simd>(word: <Self::Product as Step>::Vector<S>) -> S::V;
}

/// Codes as pairs of bf16 numbers.
pub(super) struct Pairs<C>(PhantomData<C>);
/// Codes as f32 numbers.
pub(super) struct Singles<C>(PhantomData<C>);
/// Words that were widened before.
pub(super) struct Widened<P>(PhantomData<P>);
/// FP8 numbers.
pub(super) struct E4m3;
/// NF4 codes.
pub(super) struct Nf4;

/// Returns the columns `2 * j` and `2 * j + 1` of FP8 numbers as f32. The exponents of both types
/// differ by 120, also for subnormal FP8 numbers, which are subnormal as f32 before the product.
#[inline(always)]
unsafe fn e4m3_pair<S: Simd>(p: *const u8, v: usize, j: usize) -> [S::V; 2] {
    // 2^120
    let exponent = f32::from_bits((127 + 120) << 23);
    // SAFETY: the caller guarantees the instruction set and a valid step.
    unsafe {
        let both = S::load_u16(p.add((2 * j + v) * 2 * S::LANES).cast());
        let number = |sign: S::I, magnitude: S::I| {
            let sign = S::and_i(sign, S::splat_i(i32::MIN));
            let magnitude = S::and_i(magnitude, S::splat_i(0x7f << 20));
            S::mul(S::from_bits(S::or_i(sign, magnitude)), S::splat(exponent))
        };
        [
            number(S::shift_left(both, 24), S::shift_left(both, 20)),
            number(S::shift_left(both, 16), S::shift_left(both, 12)),
        ]
    }
}

impl Widen<8> for Singles<E4m3> {
    type Product = Single<f32>;

    #[inline(always)]
    unsafe fn numbers<S: Simd>(word: S::V) -> S::V {
        word
    }

    #[inline(always)]
    unsafe fn words<S: Simd>(p: *const u8, v: usize) -> [S::V; 8] {
        // SAFETY: the caller guarantees the instruction set and a valid step.
        unsafe {
            let mut words = [S::splat(0.0); 8];
            for j in 0..4 {
                [words[2 * j], words[2 * j + 1]] = e4m3_pair::<S>(p, v, j);
            }
            words
        }
    }
}

impl Widen<4> for Pairs<E4m3> {
    type Product = Pair;

    #[inline(always)]
    unsafe fn numbers<S: Simd>(word: S::I) -> S::V {
        // SAFETY: the caller guarantees the instruction set.
        unsafe { S::from_bits(word) }
    }

    #[inline(always)]
    unsafe fn words<S: Simd>(p: *const u8, v: usize) -> [S::I; 4] {
        // SAFETY: the caller guarantees the instruction set and a valid step.
        unsafe {
            let mut words = [S::splat_i(0); 4];
            for j in 0..4 {
                let [first, second] = e4m3_pair::<S>(p, v, j);
                // The lower half of the f32 numbers is zero.
                words[j] = S::or_i(S::shift_right(S::to_bits(first), 16), S::to_bits(second));
            }
            words
        }
    }
}

impl Widen<8> for Singles<Nf4> {
    type Product = Single<f32>;

    #[inline(always)]
    unsafe fn numbers<S: Simd>(word: S::V) -> S::V {
        word
    }

    #[inline(always)]
    unsafe fn words<S: Simd>(p: *const u8, v: usize) -> [S::V; 8] {
        // SAFETY: the caller guarantees the instruction set and a valid step.
        unsafe {
            let codes = S::load_i(p.add(v * 4 * S::LANES).cast());
            let mut words = [S::splat(0.0); 8];
            for col in 0..8 {
                let shift = 16 * (col % 2) + col / 2 * 4;
                words[col] = S::lookup_f32(&nf4::TABLE, S::shift_right(codes, shift as i32));
            }
            words
        }
    }
}

/// The values of NF4 codes as the bits of bf16 numbers.
const NF4_BF16: [u16; 16] = {
    let mut bits = [0; 16];
    let mut code = 0;
    while code < 16 {
        bits[code] = bf16::from_f32_const(nf4::TABLE[code]).to_bits();
        code += 1;
    }
    bits
};

impl Widen<4> for Pairs<Nf4> {
    type Product = Pair;

    #[inline(always)]
    unsafe fn numbers<S: Simd>(word: S::I) -> S::V {
        // SAFETY: the caller guarantees the instruction set.
        unsafe { S::from_bits(word) }
    }

    #[inline(always)]
    unsafe fn words<S: Simd>(p: *const u8, v: usize) -> [S::I; 4] {
        // SAFETY: the caller guarantees the instruction set and a valid step.
        unsafe {
            let codes = S::load_i(p.add(v * 4 * S::LANES).cast());
            let mut words = [S::splat_i(0); 4];
            for j in 0..4 {
                words[j] = S::lookup_u16(&NF4_BF16, S::shift_right(codes, 4 * j as i32));
            }
            words
        }
    }
}

impl Widen<8> for Widened<Single<f32>> {
    type Product = Single<f32>;
    const STREAMED: bool = false;

    #[inline(always)]
    unsafe fn numbers<S: Simd>(word: S::V) -> S::V {
        word
    }

    #[inline(always)]
    unsafe fn words<S: Simd>(p: *const u8, v: usize) -> [S::V; 8] {
        // SAFETY: the caller guarantees the instruction set and a valid step.
        unsafe {
            let mut words = [S::splat(0.0); 8];
            for (at, word) in words.iter_mut().enumerate() {
                *word = S::load(p.cast::<f32>().add((2 * at + v) * S::LANES));
            }
            words
        }
    }
}

impl Widen<4> for Widened<Pair> {
    type Product = Pair;
    const STREAMED: bool = false;

    #[inline(always)]
    unsafe fn numbers<S: Simd>(word: S::I) -> S::V {
        // SAFETY: the caller guarantees the instruction set.
        unsafe { S::from_bits(word) }
    }

    #[inline(always)]
    unsafe fn words<S: Simd>(p: *const u8, v: usize) -> [S::I; 4] {
        // SAFETY: the caller guarantees the instruction set and a valid step.
        unsafe {
            let mut words = [S::splat_i(0); 4];
            for (at, word) in words.iter_mut().enumerate() {
                *word = S::load_i(p.cast::<i32>().add((2 * at + v) * S::LANES));
            }
            words
        }
    }
}
