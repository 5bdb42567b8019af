//! The dequantization of integers in groups, for products of exact activations.

use std::ops::Range;

use millrace_numbers::integers::IntFormat;

use super::super::exact::{Dequantize, byte};
use super::super::simd::Simd;
use super::pack::IntPanels;

impl IntPanels {
    /// Returns the scales and the offsets of vector `v` of a group, whose scales are at `p`.
    ///
    /// # Safety
    /// The machine has the instruction set, and the panel has the group.
    #[inline(always)]
    unsafe fn group<S: Simd>(&self, p: *const u8, panel: usize, v: usize) -> (S::V, S::V) {
        let lane = v * S::LANES;
        let is_wide = self.layout.has_wide_scales();
        // SAFETY: the caller guarantees the instruction set and valid pointers. Scales of rows are
        // padded to whole panels.
        unsafe {
            let scales = if self.format == IntFormat::Int8 {
                S::load(self.row_scales.as_ptr().add(panel * 2 * S::LANES + lane))
            } else if is_wide {
                S::load(p.cast::<f32>().add(lane))
            } else {
                S::load_f16(p.cast::<u16>().add(lane))
            };
            let offsets = match self.format.offset() {
                Some(offset) => S::splat(f32::from(offset)),
                None => {
                    let offsets = p.add(if is_wide { 4 } else { 2 } * 2 * S::LANES);
                    S::load_f16(offsets.cast::<u16>().add(lane))
                }
            };
            (scales, offsets)
        }
    }
}

impl Dequantize for IntPanels {
    fn packed_cols(&self) -> usize {
        self.layout.cols
    }

    fn order(&self) -> Option<&[u32]> {
        self.order.as_deref()
    }

    #[inline(always)]
    unsafe fn dequantize<S: Simd>(&self, panel: usize, cols: Range<usize>, mut to: *mut f32) {
        let (layout, bits, width) = (self.layout, self.format.bits(), 2 * S::LANES);
        // Columns of a vector of codes.
        let step = 32 / bits;
        for g in cols.start / layout.group..cols.end.div_ceil(layout.group) {
            let len = layout.group.min(layout.cols - g * layout.group);
            // SAFETY: the caller guarantees the instruction set, that the panel has the group, and
            // room for its columns, rounded up to whole vectors of codes.
            unsafe {
                let codes = self.panel(panel).add(g * layout.group_bytes());
                let scales = codes.add(layout.code_bytes(layout.group));
                for v in 0..2 {
                    let (scales, offsets) = self.group::<S>(scales, panel, v);
                    for at in 0..len.div_ceil(step) {
                        let codes = S::load_i(codes.add((at * width + v * S::LANES) * 4).cast());
                        for col in 0..step {
                            let codes = match (bits, col / 4) {
                                (8, _) => codes,
                                (_, 0) => S::low_nibbles(codes),
                                _ => S::high_nibbles(codes),
                            };
                            let weights = S::mul(S::sub(byte::<S>(codes, col % 4), offsets), scales);
                            S::store(to.add((at * step + col) * width + v * S::LANES), weights);
                        }
                    }
                }
                to = to.add(len * width);
            }
        }
    }
}
