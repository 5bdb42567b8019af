//! The step of the inner loops of matrix products and attention, for each format of weights and
//! caches.

use std::marker::PhantomData;

use super::simd::{Element, Extension, Simd};

/// One step of a product: a 32-bit word of inputs is multiplied by the weights of a vector of
/// outputs, and added to their sums.
pub(super) trait ProductStep: 'static {
    /// Inputs in a word.
    const INPUTS: usize;
    /// The instructions that the step uses.
    const USES: Extension;
    /// The weights of one output.
    type Weight: Copy;
    /// A vector of weights, or of copies of one word of inputs.
    type Vector<S: Simd>: Copy;

    /// Loads the weights of `S::LANES` outputs.
    ///
    /// # Safety
    /// As `S::load`.
    unsafe fn weights<S: Simd>(p: *const Self::Weight) -> Self::Vector<S>;
    /// Loads a word of inputs into all lanes.
    ///
    /// # Safety
    /// The machine has the instruction set, and the word is valid.
    unsafe fn input<S: Simd>(p: *const u32) -> Self::Vector<S>;
    /// Returns the sums with the products of this step.
    ///
    /// # Safety
    /// The machine has the instruction set.
    unsafe fn add<S: Simd>(sums: S::V, input: Self::Vector<S>, weights: Self::Vector<S>) -> S::V;
}

/// One input per step in f32, with weights of type `T`.
pub(super) struct Single<T>(PhantomData<T>);

// SAFETY of the functions: the callers guarantee the instruction set and valid pointers.
#[allow(clippy::undocumented_unsafe_blocks, reason = "every block has the safety conditions of the trait")]
impl<T: Element> ProductStep for Single<T> {
    const INPUTS: usize = 1;
    const USES: Extension = Extension::None;
    type Weight = T;
    type Vector<S: Simd> = S::V;

    #[inline(always)]
    unsafe fn weights<S: Simd>(p: *const T) -> S::V {
        unsafe { T::load::<S>(p) }
    }
    #[inline(always)]
    unsafe fn input<S: Simd>(p: *const u32) -> S::V {
        unsafe { S::splat(f32::from_bits(*p)) }
    }
    #[inline(always)]
    unsafe fn add<S: Simd>(sums: S::V, input: S::V, weights: S::V) -> S::V {
        unsafe { S::fma(input, weights, sums) }
    }
}

/// Two inputs per step, rounded to bf16, with bf16 weights. Weight and word of inputs are the bits
/// of two bf16 numbers, of which the first is in the lower half.
///
/// The instruction of AVX-512 treats denormal inputs, weights and sums as zeros. The error is
/// below 1.2e-38 times the other factor for each product.
pub(super) struct Pair;

// SAFETY of the functions: the callers guarantee the instruction set and valid pointers.
#[allow(clippy::undocumented_unsafe_blocks, reason = "every block has the safety conditions of the trait")]
impl ProductStep for Pair {
    const INPUTS: usize = 2;
    const USES: Extension = Extension::Bf16;
    type Weight = i32;
    type Vector<S: Simd> = S::I;

    #[inline(always)]
    unsafe fn weights<S: Simd>(p: *const i32) -> S::I {
        unsafe { S::load_i(p) }
    }
    #[inline(always)]
    unsafe fn input<S: Simd>(p: *const u32) -> S::I {
        unsafe { S::splat_i((*p).cast_signed()) }
    }
    #[inline(always)]
    unsafe fn add<S: Simd>(sums: S::V, input: S::I, weights: S::I) -> S::V {
        unsafe { S::dot_bf16(sums, weights, input) }
    }
}
