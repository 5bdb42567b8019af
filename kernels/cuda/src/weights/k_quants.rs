//! Packs the super-blocks of GGUF's K-quants: the codes of a row, and the word of each group of 32
//! columns. `kernels/include/weights.cuh` says what a word holds.

use half::f16;
use millrace_numbers::KFormat;
use millrace_numbers::formats::ggml::{SUPER_BLOCK, SuperBlock};

use super::format::{GROUP, PackedFormat};

/// Groups of a super-block.
const GROUPS: usize = SUPER_BLOCK / GROUP;
/// Bits of the fraction of a zero point.
const FRACTION_BITS: u32 = 7;
/// Bits of the whole part of a zero point of `Q4_K`. That of `Q5_K` is in the codes.
const WHOLE_BITS: u32 = 6;

/// The numbers of a format with minima.
#[derive(Debug, Clone, Copy)]
struct ZeroPoints {
    largest_code: u8,
    /// The largest zero point that a word, or the codes, can hold.
    largest_zero: f32,
}

const Q4: ZeroPoints = ZeroPoints { largest_code: 15, largest_zero: 62.0 };
const Q5: ZeroPoints = ZeroPoints { largest_code: 31, largest_zero: 126.0 };

/// Returns the packed format for super-blocks of `format`.
pub(super) const fn packed_format(format: KFormat) -> PackedFormat {
    match format {
        KFormat::Q4K => PackedFormat::Q4K,
        KFormat::Q5K => PackedFormat::Q5K,
        KFormat::Q6K => PackedFormat::Q6K,
    }
}

/// Writes the codes of the super-blocks of a row, one per byte, and the words of its groups.
///
/// # Panics
/// If the slices have other lengths.
pub(super) fn pack_row(format: KFormat, blocks: &[SuperBlock], codes: &mut [u8], words: &mut [u32]) {
    assert_eq!((codes.len(), words.len()), (blocks.len() * SUPER_BLOCK, blocks.len() * GROUPS));
    let rows = codes.as_chunks_mut::<SUPER_BLOCK>().0.iter_mut().zip(words.as_chunks_mut::<GROUPS>().0);
    for (block, (codes, words)) in blocks.iter().zip(rows) {
        *codes = block.codes;
        let groups = codes.as_chunks_mut::<GROUP>().0.iter_mut().zip(words);
        for (index, (codes, word)) in groups.enumerate() {
            *word = match format {
                KFormat::Q4K | KFormat::Q5K => {
                    let scale = block.scale * f32::from(block.scales[index]);
                    let min = block.min * f32::from(block.mins[index]);
                    if format == KFormat::Q4K {
                        q4_k_group(scale, min, codes)
                    } else {
                        q5_k_group(scale, min, codes)
                    }
                }
                KFormat::Q6K => {
                    codes.iter_mut().for_each(|code| *code = code.wrapping_sub(format.offset()));
                    let [first, second] = [0, 1].map(|half| block.scales[2 * index + half] as u8);
                    u32::from(f16::from_f32(block.scale).to_bits()) << 16
                        | u32::from_le_bytes([first, second, 0, 0])
                }
            };
        }
    }
}

/// Returns the word of a group of `Q4_K`, with weights `scale * code - min`. The scale is rounded
/// to 10 bits of mantissa.
fn q4_k_group(scale: f32, min: f32, codes: &mut [u8; GROUP]) -> u32 {
    let (scale, whole, fraction) = Q4.group(scale, min, codes);
    rounded(scale, FRACTION_BITS + WHOLE_BITS) | whole << FRACTION_BITS | fraction
}

/// Returns the word of a group of `Q5_K`, and makes its codes signed bytes. The scale is rounded to
/// 16 bits of mantissa.
fn q5_k_group(scale: f32, min: f32, codes: &mut [u8; GROUP]) -> u32 {
    let (scale, whole, fraction) = Q5.group(scale, min, codes);
    // At least -127 and at most 30.
    codes.iter_mut().for_each(|code| *code = code.wrapping_sub(whole as u8));
    rounded(scale, FRACTION_BITS) | fraction
}

/// Returns the bits of a scale, rounded so that the lowest `zeros` bits are zeros.
fn rounded(scale: f32, zeros: u32) -> u32 {
    (scale.to_bits() + (1 << (zeros - 1))) >> zeros << zeros
}

impl ZeroPoints {
    /// Returns weights `scale * code - min` as `scale * (code - zero)`: the scale, and a whole
    /// number of at least 1 and a number of 128ths, so that the zero point is the whole number
    /// minus 1 minus the 128ths.
    ///
    /// A negative zero point becomes one above the largest code: codes are counted from the other
    /// end, which negates the scale. A zero point that is too large becomes the largest, with a
    /// larger scale and other codes. The weights of such a group differ by less than a quarter from
    /// each other, and by at most a 120th from what they were.
    fn group(self, scale: f32, min: f32, codes: &mut [u8; GROUP]) -> (f32, u32, u32) {
        let ZeroPoints { largest_code, largest_zero } = self;
        let (mut scale, mut min) = (scale, min);
        if scale != 0.0 && min / scale < 0.0 {
            codes.iter_mut().for_each(|code| *code = largest_code - *code);
            min -= f32::from(largest_code) * scale;
            scale = -scale;
        }
        if scale == 0.0 || min / scale > largest_zero {
            let larger = min / largest_zero;
            // A group of zeros has no scale either.
            let ratio = if larger == 0.0 { 0.0 } else { scale / larger };
            codes.iter_mut().for_each(|code| *code = (f32::from(*code) * ratio).round() as u8);
            scale = larger;
        }
        let zero = if scale == 0.0 { 0.0 } else { min / scale };
        let one = 1 << FRACTION_BITS;
        let steps = (zero * one as f32).round() as u32 + one;
        let whole = steps.div_ceil(one);
        (scale, whole, whole * one - steps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the weights that the kernels compute from a word and codes.
    fn weights(format: KFormat, word: u32, codes: [u8; GROUP]) -> [f32; GROUP] {
        let fraction = 1.0 + (word & 127) as f32 / 128.0;
        match format {
            KFormat::Q4K => codes.map(|code| {
                assert!(code <= 15);
                let zero = (word >> 7 & 63) as f32 - fraction;
                f32::from_bits(word >> 13 << 13) * (f32::from(code) - zero)
            }),
            _ => {
                codes.map(|code| f32::from_bits(word >> 7 << 7) * (f32::from(code.cast_signed()) + fraction))
            }
        }
    }

    fn group(format: KFormat, scale: f32, min: f32, codes: &mut [u8; GROUP]) -> u32 {
        match format {
            KFormat::Q4K => q4_k_group(scale, min, codes),
            _ => q5_k_group(scale, min, codes),
        }
    }

    /// The largest error of a group, relative to its largest weight.
    fn error(format: KFormat, scale: f32, min: f32) -> f32 {
        let most = if format == KFormat::Q4K { 16 } else { 32 };
        let stored: [u8; GROUP] = std::array::from_fn(|at| (at % most) as u8);
        let want = stored.map(|code| scale * f32::from(code) - min);
        let mut codes = stored;
        let word = group(format, scale, min, &mut codes);
        let largest = want.iter().fold(0f32, |most, x| most.max(x.abs()));
        let far = |(got, want): (f32, f32)| (got - want).abs() / largest.max(f32::MIN_POSITIVE);
        weights(format, word, codes).into_iter().zip(want).map(far).fold(0.0, f32::max)
    }

    const WITH_MINIMA: [KFormat; 2] = [KFormat::Q4K, KFormat::Q5K];

    #[test]
    fn groups_keep_their_weights_with_any_sign_of_scale_and_minimum() {
        for zero in [0.0, 0.3, 7.5, 14.99, 20.0, 61.9, 62.0, -0.4, -3.7, -30.0] {
            for (scale, format) in
                [0.01, -0.01, 1e-6, 3000.0].into_iter().flat_map(|scale| WITH_MINIMA.map(|f| (scale, f)))
            {
                let far = error(format, scale, scale * zero);
                assert!(far < 1.0 / 1000.0, "{format:?}, zero point {zero}, scale {scale}: {far}");
            }
        }
    }

    #[test]
    fn groups_with_a_small_range_keep_their_weights_nearly() {
        for format in WITH_MINIMA {
            for (scale, min) in [(0.01, 0.63), (0.001, 5.0), (0.001, -5.0), (-0.01, 0.63), (-0.01, 2.0)] {
                let far = error(format, scale, min);
                assert!(far < 1.0 / 120.0, "{format:?}, scale {scale}, minimum {min}: {far}");
            }
            for min in [0.75, -0.75] {
                assert!(error(format, 0.0, min) < 1.0 / 1000.0, "{format:?}, minimum {min}");
            }
            let mut codes = [9; GROUP];
            let word = group(format, 0.0, 0.0, &mut codes);
            assert_eq!(weights(format, word, codes), [0.0; GROUP]);
        }
    }

    #[test]
    fn words_of_q6_k_hold_both_scales() {
        let mut block = KFormat::Q6K.from_file(&[0; 210]);
        (block.scale, block.codes) = (0.5, std::array::from_fn(|at| (at % 64) as u8));
        block.scales = std::array::from_fn(|at| at as i8 - 9);
        let (mut codes, mut words) = ([0; SUPER_BLOCK], [0; GROUPS]);
        pack_row(KFormat::Q6K, &[block], &mut codes, &mut words);
        assert_eq!(words[1], 0x3800_0000 | 0xfa << 8 | 0xf9, "{:x}", words[1]);
        assert_eq!((codes[0], codes[63]), (0xe0, 31));
    }
}
