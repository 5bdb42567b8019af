//! The dequantization of super-blocks, for products of exact activations.

use std::ops::Range;

use millrace_numbers::formats::ggml::{KFormat, SUPER_BLOCK};

use super::super::exact::{Dequantize, byte};
use super::super::simd::Simd;
use super::pack::{KPanels, header_bytes};
use super::product::{MOST_VECTORS, Q4K, Q5K, Q6K, SubBlocks};

impl Dequantize for KPanels {
    fn packed_cols(&self) -> usize {
        self.cols
    }

    #[inline(always)]
    unsafe fn dequantize<S: Simd>(&self, panel: usize, cols: Range<usize>, to: *mut f32) {
        let width = 2 * S::LANES;
        for (index, block) in (cols.start / SUPER_BLOCK..cols.end / SUPER_BLOCK).enumerate() {
            // SAFETY: the caller guarantees the instruction set, that the panel has the
            // super-block, and room for it.
            unsafe {
                let (from, to) = (self.block(panel, block), to.add(index * SUPER_BLOCK * width));
                for v in 0..2 {
                    match self.format {
                        KFormat::Q4K => super_block::<S, Q4K>(from, v, to),
                        KFormat::Q5K => super_block::<S, Q5K>(from, v, to),
                        KFormat::Q6K => super_block::<S, Q6K>(from, v, to),
                    }
                }
            }
        }
    }
}

/// Writes vector `v` of the weights of the super-block at `from` to `to`, `[SUPER_BLOCK][2 *
/// LANES]`.
#[inline(always)]
unsafe fn super_block<S: Simd, F: SubBlocks>(from: *const u8, v: usize, to: *mut f32) {
    let (width, lane) = (2 * S::LANES, v * S::LANES);
    let has_minima = F::FORMAT.has_minima();
    // The scales follow one or two numbers of type f16, and the minima the scales.
    let scales = (header_bytes(F::FORMAT) - 16) * width;
    let minima = 12 * width;
    // SAFETY: the caller guarantees the instruction set and valid pointers.
    unsafe {
        let numbers: *const u16 = from.cast();
        let scale = S::load_f16(numbers.add(lane));
        let min = if has_minima { S::load_f16(numbers.add(width + lane)) } else { S::splat(0.0) };
        let offset = S::splat(f32::from(F::FORMAT.offset()));
        for s in 0..F::COUNT {
            let scale = S::mul(scale, S::to_f32(S::widen_i8(from.add(scales + s * width + lane).cast())));
            let min = if has_minima {
                let four = S::load_i(from.add(minima + (s / 4 * width + lane) * 4).cast());
                S::mul(min, byte::<S>(four, s % 4))
            } else {
                min
            };
            let mut vectors = [S::splat_i(0); MOST_VECTORS];
            for at in 0..F::VECTORS {
                let vector = header_bytes(F::FORMAT) * width + ((s * F::VECTORS + at) * width + lane) * 4;
                vectors[at] = S::load_i(from.add(vector).cast());
            }
            for dot in 0..F::DOTS {
                let codes = F::codes::<S>(&vectors, dot);
                for col in 0..4 {
                    let code = S::sub(byte::<S>(codes, col), offset);
                    let weight = S::sub(S::mul(scale, code), min);
                    S::store(to.add(((s * F::DOTS + dot) * 4 + col) * width + lane), weight);
                }
            }
        }
    }
}
