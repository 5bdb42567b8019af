//! Packs the super-blocks of GGUF's K-quants: the codes of a row, and the word of each group of 32
//! columns. `kernels/include/weights.cuh` says what a word holds.

use half::f16;
use millrace_numbers::KFormat;
use millrace_numbers::formats::ggml::{SUPER_BLOCK, SuperBlock};

use super::format::{GROUP, PackedFormat};

/// Groups of a super-block.
const GROUPS: usize = SUPER_BLOCK / GROUP;
/// The largest code of `Q4_K`.
const LARGEST_CODE: u8 = 15;
/// Bits of the fraction of a zero point of `Q4_K`.
const FRACTION_BITS: u32 = 7;
/// The lowest bits of a word of `Q4_K`, which hold the zero point instead of the scale.
const ZERO_BITS: u32 = FRACTION_BITS + 6;
/// The largest zero point that the bits hold.
const LARGEST_ZERO: f32 = 62.0;

/// Returns the packed format for super-blocks of `format`.
pub(super) const fn packed_format(format: KFormat) -> PackedFormat {
    match format {
        KFormat::Q4K => PackedFormat::Q4K,
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
                KFormat::Q4K => {
                    let scale = block.scale * f32::from(block.scales[index]);
                    q4_k_group(scale, block.min * f32::from(block.mins[index]), codes)
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

/// Returns the word of a group of weights `scale * code - min`, as `scale * (code - zero)`. The
/// scale is rounded to 10 bits of mantissa, and the zero point to 128ths.
///
/// A negative zero point becomes one above 15: codes are counted from the other end, which negates
/// the scale. A zero point that is too large becomes the largest, with a larger scale and other
/// codes. The weights of such a group differ by less than a quarter from each other, and by at most
/// a 120th from what they were.
fn q4_k_group(scale: f32, min: f32, codes: &mut [u8; GROUP]) -> u32 {
    let (mut scale, mut min) = (scale, min);
    if scale != 0.0 && min / scale < 0.0 {
        codes.iter_mut().for_each(|code| *code = LARGEST_CODE - *code);
        min -= f32::from(LARGEST_CODE) * scale;
        scale = -scale;
    }
    if scale == 0.0 || min / scale > LARGEST_ZERO {
        let larger = min / LARGEST_ZERO;
        // A group of zeros has no scale either.
        let ratio = if larger == 0.0 { 0.0 } else { scale / larger };
        codes.iter_mut().for_each(|code| *code = (f32::from(*code) * ratio).round() as u8);
        scale = larger;
    }
    let zero = if scale == 0.0 { 0.0 } else { min / scale };
    let whole_of = 1 << FRACTION_BITS;
    // The zero point is `whole - 1 - fraction`.
    let steps = (zero * whole_of as f32).round() as u32 + whole_of;
    let whole = steps.div_ceil(whole_of);
    let fraction = whole * whole_of - steps;
    let half = 1 << (ZERO_BITS - 1);
    let rounded = (scale.to_bits() + half) >> ZERO_BITS << ZERO_BITS;
    rounded | whole << FRACTION_BITS | fraction
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the weights that the kernels compute from a word and codes.
    fn weights(word: u32, codes: [u8; GROUP]) -> [f32; GROUP] {
        let scale = f32::from_bits(word >> 13 << 13);
        let zero = (word >> 7 & 63) as f32 - 1.0 - (word & 127) as f32 / 128.0;
        codes.map(|code| scale * (f32::from(code) - zero))
    }

    /// The largest error of a group, relative to its largest weight.
    fn error(scale: f32, min: f32) -> f32 {
        let stored: [u8; GROUP] = std::array::from_fn(|at| (at % 16) as u8);
        let want = stored.map(|code| scale * f32::from(code) - min);
        let mut codes = stored;
        let word = q4_k_group(scale, min, &mut codes);
        assert!(codes.iter().all(|code| *code <= LARGEST_CODE), "{codes:?}");
        let largest = want.iter().fold(0f32, |most, x| most.max(x.abs()));
        let far = |(got, want): (f32, f32)| (got - want).abs() / largest.max(f32::MIN_POSITIVE);
        weights(word, codes).into_iter().zip(want).map(far).fold(0.0, f32::max)
    }

    #[test]
    fn groups_keep_their_weights_with_any_sign_of_scale_and_minimum() {
        for zero in [0.0, 0.3, 7.5, 14.99, 20.0, 61.9, 62.0, -0.4, -3.7, -30.0] {
            for scale in [0.01, -0.01, 1e-6, 3000.0] {
                let far = error(scale, scale * zero);
                assert!(far < 1.0 / 1000.0, "zero point {zero}, scale {scale}: {far}");
            }
        }
    }

    #[test]
    fn groups_with_a_small_range_keep_their_weights_nearly() {
        for (scale, min) in [(0.01, 0.63), (0.001, 5.0), (0.001, -5.0), (-0.01, 0.63), (-0.01, 2.0)] {
            let far = error(scale, min);
            assert!(far < 1.0 / 120.0, "scale {scale}, minimum {min}: {far}");
        }
        assert!(error(0.0, 0.75) < 1.0 / 1000.0 && error(0.0, -0.75) < 1.0 / 1000.0);
        let mut codes = [9; GROUP];
        assert_eq!(weights(q4_k_group(0.0, 0.0, &mut codes), codes), [0.0; GROUP]);
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
