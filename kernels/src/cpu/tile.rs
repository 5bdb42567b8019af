//! The inner loop that matrix product and attention share.

use super::simd::{Element, Simd};

/// Distance of prefetches in bytes.
pub(super) const AHEAD: usize = 2048;

/// The weights that [`accumulate`] reads.
#[derive(Clone, Copy)]
pub(super) struct Stream<T, const NV: usize> {
    /// The first address of each vector of weights.
    pub(super) w: [*const T; NV],
    /// Elements between a weight vector and its successor.
    pub(super) stride: usize,
    /// The addresses to prefetch, advanced in the same steps. They need not be valid.
    pub(super) ahead: [*const T; NV],
}

impl<T: Element, const NV: usize> Stream<T, NV> {
    /// Creates a stream that prefetches its own continuation.
    #[inline(always)]
    pub(super) fn sequential(w: [*const T; NV], stride: usize) -> Self {
        Stream { w, stride, ahead: w.map(|w| w.wrapping_byte_add(AHEAD)) }
    }
}

/// `acc[i][v] += x[i][k] * w[v][k]` for k ascending. Each element is one chain of fused products,
/// independent of M, of NV, and of how the steps are divided into calls.
///
/// `x[i][k]` is at `x + i * x_row + k * x_step`.
///
/// # Safety
/// The machine has the instruction set, and all elements are valid to read.
#[inline(always)]
pub(super) unsafe fn accumulate<S: Simd, T: Element, const M: usize, const NV: usize>(
    acc: &mut [[S::V; NV]; M],
    x: *const f32,
    x_row: usize,
    x_step: usize,
    stream: Stream<T, NV>,
    steps: usize,
) {
    // SAFETY: k stays below `steps`.
    unsafe {
        let mut sums = *acc;
        for k in 0..steps {
            let at = k * stream.stride;
            let w: [S::V; NV] = load::<S, T, NV>(&stream.w, at);
            for v in 0..NV {
                // Vectors in one cache line need one prefetch.
                if v % (64 / (S::LANES * T::SIZE)).max(1) == 0 {
                    S::prefetch(stream.ahead[v].wrapping_add(at).cast());
                }
            }
            // The packed inputs of high tiles are a stream of their own, often from the L3 cache.
            if M >= 6 && x_step == M {
                S::prefetch(x.wrapping_add(k * x_step).wrapping_byte_add(AHEAD).cast());
            }
            for i in 0..M {
                let x = S::splat(*x.add(i * x_row + k * x_step));
                for v in 0..NV {
                    sums[i][v] = S::fma(x, w[v], sums[i][v]);
                }
            }
        }
        *acc = sums;
    }
}

#[inline(always)]
unsafe fn load<S: Simd, T: Element, const NV: usize>(w: &[*const T; NV], at: usize) -> [S::V; NV] {
    // SAFETY: the caller guarantees the instruction set and valid addresses.
    unsafe {
        let mut all = [S::splat(0.0); NV];
        for v in 0..NV {
            all[v] = T::load::<S>(w[v].add(at));
        }
        all
    }
}

/// Returns the height of the tile to use for `rows` remaining rows: the smallest height that holds
/// all of them, or the largest one.
#[inline(always)]
pub(super) fn height<S: Simd>(rows: usize) -> usize {
    let heights: &[usize] = match S::ROWS {
        12 => &[1, 2, 4, 8],
        6 => &[1, 2, 4],
        _ => &[1, 2],
    };
    heights.iter().copied().find(|&h| h >= rows).unwrap_or(S::ROWS)
}

/// Calls `$f` with `$height`, a result of [`height`], as a constant.
macro_rules! with_height {
    ($S:ident, $height:expr, $f:ident::<$($t:ty),*>($($arg:expr),* $(,)?)) => {
        match $height {
            1 => $f::<$($t,)* 1>($($arg),*),
            2 => $f::<$($t,)* 2>($($arg),*),
            4 => $f::<$($t,)* 4>($($arg),*),
            6 if $S::ROWS == 6 => $f::<$($t,)* 6>($($arg),*),
            8 if $S::ROWS == 12 => $f::<$($t,)* 8>($($arg),*),
            12 if $S::ROWS == 12 => $f::<$($t,)* 12>($($arg),*),
            _ => unreachable!("no tile of this height; this is a bug"),
        }
    };
}
pub(super) use with_height;

/// Packs `rows` rows of `x`, `stride` apart, as `[steps][height]`; missing rows are zeros.
///
/// # Safety
/// `rows <= height`; the rows and `height * steps` elements at `to` are valid.
#[inline(always)]
pub(super) unsafe fn pack(
    x: *const f32,
    stride: usize,
    rows: usize,
    height: usize,
    steps: usize,
    to: *mut f32,
) {
    /// Elements of one cache line. Rows are read one cache line at a time, because their distance
    /// is often a power of two, at which a cache holds only a few of them.
    const BLOCK: usize = 16;
    // SAFETY: all indices are within the ranges that the caller guarantees.
    unsafe {
        for start in (0..steps).step_by(BLOCK) {
            let end = steps.min(start + BLOCK);
            for i in 0..height {
                for k in start..end {
                    *to.add(k * height + i) = if i < rows { *x.add(i * stride + k) } else { 0.0 };
                }
            }
        }
    }
}
