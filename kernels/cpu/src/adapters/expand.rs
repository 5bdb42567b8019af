//! The second phase: from features to outputs.

use std::ops::Range;

use super::super::memory::Shared;
use super::super::simd::{Element, Extension, Kernel, Simd};
use super::super::tile::AHEAD;
use super::pool::Piece;

/// The change of some outputs of some tokens by one adapter.
pub(super) struct Expand<'a, T: Element> {
    pub(super) tokens: &'a [u32],
    /// The outputs that the task may change.
    pub(super) outputs: Range<usize>,
    pub(super) pieces: &'a [Piece],
    /// The panels of all pieces, followed by at least one vector.
    pub(super) up: &'a [T],
    /// Outputs of a panel: two vectors.
    pub(super) panel_width: usize,
    /// `[n, mid_cols]`
    pub(super) mid: Shared<f32>,
    pub(super) mid_cols: usize,
    /// `[n, cols]`
    pub(super) out: Shared<f32>,
    pub(super) cols: usize,
}

/// The weights of neighboring outputs.
#[derive(Clone, Copy)]
struct Weights<T> {
    /// The weight of the first feature and the first output.
    start: *const T,
    /// Distance of the weights of two features.
    stride: usize,
    /// The first feature among the features of the adapter.
    feature: usize,
    rank: usize,
    /// The first output.
    output: usize,
    /// Number of outputs.
    count: usize,
}

impl<T: Element> Kernel for Expand<'_, T> {
    const USES: Extension = Extension::None;
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for piece in self.pieces {
            let (first, rank) = (piece.outputs.start, piece.features.len());
            let start = self.outputs.start.max(first);
            let end = self.outputs.end.min(piece.outputs.end);
            let mut at = start;
            while at < end {
                let panel = (at - first) / self.panel_width * self.panel_width;
                let stride = self.panel_width.min(piece.outputs.len() - panel);
                let lane = at - first - panel;
                let count = (stride - lane).min(end - at);
                let weights = self.up[piece.start + panel * rank + lane..].as_ptr();
                let feature = piece.features.start;
                let weights = Weights { start: weights, stride, feature, rank, output: at, count };
                // SAFETY: the caller guarantees the instruction set, and the weights are inside the
                // panel.
                unsafe { self.add_panel::<S>(weights) }
                at += count;
            }
        }
    }
}

impl<T: Element> Expand<'_, T> {
    /// Adds the products of at most a panel's outputs, for all tokens.
    #[inline(always)]
    unsafe fn add_panel<S: Simd>(&self, weights: Weights<T>) {
        let mut t = 0;
        while t < self.tokens.len() {
            let left = self.tokens.len() - t;
            let height = if left >= 4 {
                4
            } else if left >= 2 {
                2
            } else {
                1
            };
            // SAFETY: the caller guarantees the instruction set, and there are so many tokens.
            unsafe {
                match height {
                    4 => self.add_rows::<S, 4>(t, weights),
                    2 => self.add_rows::<S, 2>(t, weights),
                    _ => self.add_rows::<S, 1>(t, weights),
                }
            }
            t += height;
        }
    }

    /// Adds the products of at most a panel's outputs, for M tokens.
    #[inline(always)]
    unsafe fn add_rows<S: Simd, const M: usize>(&self, token: usize, weights: Weights<T>) {
        // SAFETY: the caller guarantees the instruction set. A vector of weights begins inside the
        // panel, and a vector may reach beyond it.
        unsafe {
            if weights.count == 2 * S::LANES {
                return self.add_vectors::<S, M, 2>(token, weights);
            }
            for lane in (0..weights.count).step_by(S::LANES) {
                let (start, output) = (weights.start.add(lane), weights.output + lane);
                let count = weights.count - lane;
                self.add_vectors::<S, M, 1>(token, Weights { start, output, count, ..weights });
            }
        }
    }

    /// Adds the products of NV vectors of outputs, as many as there are, for M tokens. Each product
    /// is one chain over the features.
    #[inline(always)]
    unsafe fn add_vectors<S: Simd, const M: usize, const NV: usize>(
        &self,
        token: usize,
        weights: Weights<T>,
    ) {
        let Weights { start, stride, feature, rank, output, count } = weights;
        // SAFETY: the features of these tokens are only read in this phase, and these outputs
        // belong to this task alone.
        unsafe {
            let mut mid = [self.mid.as_ptr().cast_const(); M];
            for i in 0..M {
                mid[i] = mid[i].add(self.tokens[token + i] as usize * self.mid_cols + feature);
            }
            let mut sums = [[S::splat(0.0); NV]; M];
            for j in 0..rank {
                let mut w = [S::splat(0.0); NV];
                for v in 0..NV {
                    let at = start.add(j * stride + v * S::LANES);
                    w[v] = T::load::<S>(at);
                    if M <= 2 {
                        S::prefetch(at.wrapping_byte_add(AHEAD).cast());
                    }
                }
                for i in 0..M {
                    let feature = S::splat(*mid[i].add(j));
                    for v in 0..NV {
                        sums[i][v] = S::fma(feature, w[v], sums[i][v]);
                    }
                }
            }
            for i in 0..M {
                let row = self.tokens[token + i] as usize * self.cols;
                for v in 0..NV {
                    let to = self.out.as_ptr().add(row + output + v * S::LANES);
                    let rest = count - v * S::LANES;
                    if rest >= S::LANES {
                        S::store(to, S::add(S::load(to), sums[i][v]));
                    } else {
                        S::store_first(to, S::add(S::load_first(to, rest), sums[i][v]), rest);
                    }
                }
            }
        }
    }
}
