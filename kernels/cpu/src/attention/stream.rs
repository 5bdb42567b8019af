//! The inner loop of both products of attention.

use super::super::simd::Simd;
use super::super::step::ProductStep;

/// The numbers of the cache that [`accumulate`] reads, and those that it prefetches.
pub(super) struct Stream<F: ProductStep, const NV: usize> {
    /// The first address of each vector.
    pub(super) w: [*const F::Weight; NV],
    /// Elements between a vector and its successor.
    pub(super) stride: usize,
    pub(super) ahead: Ahead,
}

/// The addresses to prefetch: two in each step. They need not be valid.
#[derive(Clone, Copy)]
pub(super) struct Ahead {
    pub(super) first: [*const u8; 2],
    /// Bytes by which both advance in a step.
    pub(super) step: usize,
}

/// The words that [`accumulate`] multiplies the stream by. Word `k` of query `i` is at
/// `start + i * row + k * step`.
#[derive(Clone, Copy)]
pub(super) struct Factors {
    pub(super) start: *const u32,
    pub(super) row: usize,
    pub(super) step: usize,
}

/// Adds the products of M rows of factors with NV vectors of the stream, for `steps` steps in
/// ascending order. Each element is one chain, independent of M, of NV, and of how the steps are
/// divided into calls.
///
/// # Safety
/// The machine has the instruction set, and all elements are valid to read.
#[inline(always)]
pub(super) unsafe fn accumulate<S: Simd, F: ProductStep, const M: usize, const NV: usize>(
    acc: &mut [[S::V; NV]; M],
    x: Factors,
    stream: &Stream<F, NV>,
    steps: usize,
) {
    // SAFETY: k stays below `steps`.
    unsafe {
        let mut sums = *acc;
        for k in 0..steps {
            let w: [F::Vector<S>; NV] =
                std::array::from_fn(|v| F::weights::<S>(stream.w[v].add(k * stream.stride)));
            for first in stream.ahead.first {
                S::prefetch_later(first.wrapping_add(k * stream.ahead.step));
            }
            for i in 0..M {
                let x = F::input::<S>(x.start.add(i * x.row + k * x.step));
                for v in 0..NV {
                    sums[i][v] = F::add::<S>(sums[i][v], x, w[v]);
                }
            }
        }
        *acc = sums;
    }
}
