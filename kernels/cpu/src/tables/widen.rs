//! The conversion of codes to the words that inputs are multiplied with.

use std::marker::PhantomData;

use super::super::simd::Simd;
use super::super::step::{Pair, ProductStep, Single};
use super::pack::Table;

/// The reading of eight columns of one vector of outputs as N words.
pub(super) trait Widen<const N: usize>: 'static {
    /// The products of the words with those of inputs.
    type Product: ProductStep;
    /// Whether the steps come from memory rather than from the cache.
    const STREAMED: bool = true;

    /// Returns the words of vector `v` of a panel, 0 or 1, from the step at `p`.
    ///
    /// # Safety
    /// The machine has the instruction set, and the step is valid.
    unsafe fn words<S: Simd>(
        p: *const u8,
        v: usize,
        table: &Table,
    ) -> [<Self::Product as ProductStep>::Vector<S>; N];
}

/// Words that can be stored, to be read as [`Widened`].
pub(super) trait Storable<const N: usize>: Widen<N> {
    /// Returns the bits of a word as numbers.
    ///
    /// # Safety
    /// The machine has the instruction set.
    unsafe fn numbers<S: Simd>(word: <Self::Product as ProductStep>::Vector<S>) -> S::V;
}

/// A type of codes.
pub(super) trait Codes: 'static {
    /// Returns eight columns as f32 numbers.
    ///
    /// # Safety
    /// As [`Widen::words`].
    unsafe fn singles<S: Simd>(p: *const u8, v: usize, table: &Table) -> [S::V; 8];
    /// Returns eight columns as pairs of bf16 numbers.
    ///
    /// # Safety
    /// As [`Widen::words`].
    unsafe fn pairs<S: Simd>(p: *const u8, v: usize, table: &Table) -> [S::I; 4];
}

/// Codes as pairs of bf16 numbers.
pub(super) struct Pairs<C>(PhantomData<C>);
/// Codes as f32 numbers.
pub(super) struct Singles<C>(PhantomData<C>);
/// Words that were widened before.
pub(super) struct Widened<P>(PhantomData<P>);
/// FP8 numbers.
pub(super) struct E4m3;
/// Codes of four bits.
pub(super) struct FourBits;

// SAFETY of the functions: the callers guarantee the instruction set and valid pointers.
#[allow(clippy::undocumented_unsafe_blocks, reason = "every block has the safety conditions of the trait")]
impl<C: Codes> Widen<8> for Singles<C> {
    type Product = Single<f32>;

    #[inline(always)]
    unsafe fn words<S: Simd>(p: *const u8, v: usize, table: &Table) -> [S::V; 8] {
        unsafe { C::singles::<S>(p, v, table) }
    }
}

impl<C: Codes> Storable<8> for Singles<C> {
    #[inline(always)]
    unsafe fn numbers<S: Simd>(word: S::V) -> S::V {
        word
    }
}

// SAFETY of the functions: the callers guarantee the instruction set and valid pointers.
#[allow(clippy::undocumented_unsafe_blocks, reason = "every block has the safety conditions of the trait")]
impl<C: Codes> Widen<4> for Pairs<C> {
    type Product = Pair;

    #[inline(always)]
    unsafe fn words<S: Simd>(p: *const u8, v: usize, table: &Table) -> [S::I; 4] {
        unsafe { C::pairs::<S>(p, v, table) }
    }
}

// SAFETY of the functions: the callers guarantee the instruction set.
#[allow(clippy::undocumented_unsafe_blocks, reason = "every block has the safety conditions of the trait")]
impl<C: Codes> Storable<4> for Pairs<C> {
    #[inline(always)]
    unsafe fn numbers<S: Simd>(word: S::I) -> S::V {
        unsafe { S::from_bits(word) }
    }
}

impl<P: ProductStep, const N: usize> Widen<N> for Widened<P> {
    type Product = P;
    const STREAMED: bool = false;

    #[inline(always)]
    unsafe fn words<S: Simd>(p: *const u8, v: usize, _table: &Table) -> [P::Vector<S>; N] {
        let at = |at: usize| p.cast::<P::Weight>().wrapping_add((2 * at + v) * S::LANES);
        // SAFETY: the caller guarantees the instruction set and a valid step.
        unsafe {
            let mut words = [P::weights::<S>(at(0)); N];
            for index in 1..N {
                words[index] = P::weights::<S>(at(index));
            }
            words
        }
    }
}

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

impl Codes for E4m3 {
    #[inline(always)]
    unsafe fn singles<S: Simd>(p: *const u8, v: usize, _table: &Table) -> [S::V; 8] {
        // SAFETY: the caller guarantees the instruction set and a valid step.
        unsafe {
            let mut words = [S::splat(0.0); 8];
            for j in 0..4 {
                [words[2 * j], words[2 * j + 1]] = e4m3_pair::<S>(p, v, j);
            }
            words
        }
    }

    #[inline(always)]
    unsafe fn pairs<S: Simd>(p: *const u8, v: usize, _table: &Table) -> [S::I; 4] {
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

impl Codes for FourBits {
    #[inline(always)]
    unsafe fn singles<S: Simd>(p: *const u8, v: usize, table: &Table) -> [S::V; 8] {
        // SAFETY: the caller guarantees the instruction set and a valid step.
        unsafe {
            let codes = S::load_i(p.add(v * 4 * S::LANES).cast());
            let mut words = [S::splat(0.0); 8];
            for col in 0..8 {
                let shift = 16 * (col % 2) + col / 2 * 4;
                words[col] = S::lookup_f32(&table.numbers, S::shift_right(codes, shift as i32));
            }
            words
        }
    }

    #[inline(always)]
    unsafe fn pairs<S: Simd>(p: *const u8, v: usize, table: &Table) -> [S::I; 4] {
        // SAFETY: the caller guarantees the instruction set and a valid step.
        unsafe {
            let codes = S::load_i(p.add(v * 4 * S::LANES).cast());
            let mut words = [S::splat_i(0); 4];
            for j in 0..4 {
                words[j] = S::lookup_u16(&table.bf16, S::shift_right(codes, 4 * j as i32));
            }
            words
        }
    }
}
