//! The first phase: from inputs to features.

use std::ops::Range;

use super::super::memory::Shared;
use super::super::simd::{Element, Extension, Kernel, Simd};
use super::pool::padded;

/// The computation of some features of some tokens with one adapter.
pub(super) struct Shrink<'a, T: Element> {
    pub(super) inputs: usize,
    pub(super) tokens: &'a [u32],
    /// `[n, inputs]`
    pub(super) x: &'a [f32],
    /// The weights of these features, `[features, padded inputs]`.
    pub(super) down: &'a [T],
    pub(super) features: Range<usize>,
    /// `[n, mid_cols]`
    pub(super) mid: Shared<f32>,
    pub(super) mid_cols: usize,
}

impl<T: Element> Kernel for Shrink<'_, T> {
    const USES: Extension = Extension::None;
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let features = self.features.len();
        assert_eq!(self.down.len(), features * padded(self.inputs), "weights of features");
        // As many sums at once as the registers hold.
        let highest = if S::ROWS >= 12 { 4 } else { 2 };
        let mut t = 0;
        while t < self.tokens.len() {
            let left = self.tokens.len() - t;
            let height = if left >= highest {
                highest
            } else if left >= 2 {
                2
            } else {
                1
            };
            let mut feature = 0;
            while feature < features {
                let wide = features - feature >= 4;
                // SAFETY: the caller guarantees the instruction set, and there are so many tokens
                // and features.
                unsafe {
                    match (height, wide) {
                        (4, true) => self.tile::<S, 4, 4>(t, feature),
                        (4, false) => self.tile::<S, 4, 1>(t, feature),
                        (2, true) => self.tile::<S, 2, 4>(t, feature),
                        (2, false) => self.tile::<S, 2, 1>(t, feature),
                        (_, true) => self.tile::<S, 1, 4>(t, feature),
                        (_, false) => self.tile::<S, 1, 1>(t, feature),
                    }
                }
                feature += if wide { 4 } else { 1 };
            }
            t += height;
        }
    }
}

impl<T: Element> Shrink<'_, T> {
    /// Computes NF features of M tokens. Each lane is one chain of products over every
    /// `S::LANES`-th input, and the lanes are added at the end.
    #[inline(always)]
    unsafe fn tile<S: Simd, const M: usize, const NF: usize>(&self, token: usize, feature: usize) {
        let (inputs, width) = (self.inputs, padded(self.inputs));
        let mut x = [self.x.as_ptr(); M];
        for i in 0..M {
            x[i] = self.x[self.tokens[token + i] as usize * inputs..][..inputs].as_ptr();
        }
        let whole = inputs - inputs % S::LANES;
        // SAFETY: all vectors of inputs are inside their rows, and all vectors of weights inside
        // their padded rows. The features of these tokens belong to this task alone.
        unsafe {
            let down = self.down.as_ptr().add(feature * width);
            let mut sums = [[S::splat(0.0); NF]; M];
            for k in (0..whole).step_by(S::LANES) {
                let mut w = [S::splat(0.0); NF];
                for f in 0..NF {
                    let at = down.add(f * width + k);
                    w[f] = T::load::<S>(at);
                    // A row is about as long as a page, at whose end the hardware stops to read
                    // ahead. Few tokens wait for memory, and many do not.
                    if M <= 2 {
                        S::prefetch(at.wrapping_add(NF * width).cast());
                    }
                }
                for i in 0..M {
                    let x = S::load(x[i].add(k));
                    for f in 0..NF {
                        sums[i][f] = S::fma(x, w[f], sums[i][f]);
                    }
                }
            }
            if whole < inputs {
                for i in 0..M {
                    let x = S::load_first(x[i].add(whole), inputs - whole);
                    for f in 0..NF {
                        sums[i][f] = S::fma(x, T::load::<S>(down.add(f * width + whole)), sums[i][f]);
                    }
                }
            }
            for i in 0..M {
                let row = self.tokens[token + i] as usize * self.mid_cols;
                let to = self.mid.as_ptr().add(row + self.features.start + feature);
                for f in 0..NF {
                    *to.add(f) = S::sum(sums[i][f]);
                }
            }
        }
    }
}
