//! Tests of weights in super-blocks: the arithmetic of the formats, and the products of the CPU
//! against the reference.

use half::f16;
use millrace_backend::reference::Reference;
use millrace_backend::{Backend, ProductShape, Segment, Sizing, WeightLoading};
use millrace_cpu::Cpu;
use millrace_numbers::formats::ggml::{SUPER_BLOCK, SuperBlock};
use millrace_numbers::{DType, KFormat, Part, WeightFormat};
use proptest::prelude::{any, prop, prop_assert, prop_assert_eq, proptest};

use crate::common::*;
use crate::product::Case;

/// Rows of a long prompt, which threads quantize in pieces, have the bits of single rows.
#[test]
fn rows_that_threads_share_agree_bit_for_bit() {
    for (seed, format) in KFormat::ALL.into_iter().enumerate() {
        let case = Case::uneven((61, 9 * SUPER_BLOCK, 35), 48, true, WeightFormat::K(format), seed as u64);
        case.check_rows_and_threads(&CPUS);
    }
}

proptest! {
    #![proptest_config(cases(32))]

    #[test]
    fn products_match_the_reference_with_rounded_activations(
        n in 1usize..20, blocks in 1usize..5, out in 1usize..100, bias: bool, format in 0usize..3, seed: u64,
    ) {
        let format = KFormat::ALL[format];
        let case = Case::uneven((n, SUPER_BLOCK * blocks, out), 48, bias, WeightFormat::K(format), seed);
        let want = case.rounded_to_bytes(SUPER_BLOCK).run(&Reference);
        for cpu in CPUS.iter() {
            assert_close(&format!("{} on {}", format.name(), cpu.name()), &case.run(cpu), &want, 1e-6);
        }
    }

    /// Exact activations are multiplied in f32, by the weights that the super-blocks stand for.
    #[test]
    fn exact_activations_are_not_rounded(
        n in 1usize..20, blocks in 1usize..12, out in 1usize..100, bias: bool, format in 0usize..3, seed: u64,
    ) {
        let format = KFormat::ALL[format];
        let case = Case::uneven((n, SUPER_BLOCK * blocks, out), 48, bias, WeightFormat::K(format), seed);
        let want = case.run(&Reference);
        for pair in EXACT_CPUS.chunks(2) {
            let found = case.check_rows_and_threads(pair);
            assert_close(&format!("{} on {}", format.name(), pair[0].name()), &found, &want, 1e-5);
        }
    }

    /// All instruction sets compute the same bits, with any number of threads and rows.
    #[test]
    fn all_instruction_sets_agree_bit_for_bit(
        n in 1usize..30, blocks in 1usize..6, out in 1usize..200, bias: bool, format in 0usize..3, seed: u64,
    ) {
        let format = WeightFormat::K(KFormat::ALL[format]);
        Case::uneven((n, SUPER_BLOCK * blocks, out), 48, bias, format, seed).check_rows_and_threads(&CPUS);
    }

    /// Any bytes are a super-block, whose values are those of the definition, and which becomes the
    /// same bytes again.
    #[test]
    fn super_blocks_are_those_of_gguf(bytes in prop::collection::vec(any::<u8>(), 210), d in -3e4f32..3e4, min in 0f32..3e4) {
        let mut bytes = bytes;
        let half = |x: f32| f16::from_f32(x).to_le_bytes();
        bytes[208..210].copy_from_slice(&half(d));
        let block = KFormat::Q6K.from_file(&bytes);
        prop_assert_eq!(values(KFormat::Q6K, &block), gguf_q6_k(&bytes));
        prop_assert_eq!(KFormat::Q6K.to_file(&block), &bytes[..]);

        bytes.truncate(144);
        bytes[0..2].copy_from_slice(&half(d));
        bytes[2..4].copy_from_slice(&half(min));
        let block = KFormat::Q4K.from_file(&bytes);
        prop_assert_eq!(values(KFormat::Q4K, &block), gguf_q4_k(&bytes));
        prop_assert_eq!(KFormat::Q4K.to_file(&block), &bytes[..]);

        bytes.extend_from_slice(&[0x5a; 32]);
        let block = KFormat::Q5K.from_file(&bytes);
        prop_assert_eq!(values(KFormat::Q5K, &block), gguf_q5_k(&bytes));
        prop_assert_eq!(KFormat::Q5K.to_file(&block), &bytes[..]);
    }

    /// Weights become near values, and quantized weights stay what they are.
    #[test]
    fn weights_are_rounded_to_near_values(weights in prop::collection::vec(-3f32..3.0, SUPER_BLOCK), shift in -2f32..2.0) {
        let weights: Vec<f32> = weights.iter().map(|weight| weight + shift).collect();
        for format in KFormat::ALL {
            let mut rounded = weights.clone();
            format.round(&mut rounded, SUPER_BLOCK).unwrap();
            for (weights, rounded) in weights.chunks(format.sub_block()).zip(rounded.chunks(format.sub_block())) {
                let low = weights.iter().copied().fold(0f32, f32::min);
                let high = weights.iter().copied().fold(0f32, f32::max);
                // A step, and the rounding of the scales, which are relative to those of the whole
                // super-block.
                let bound = match format {
                    KFormat::Q4K => (high - low) / 13.0 + 0.2,
                    KFormat::Q5K => (high - low) / 29.0 + 0.2,
                    KFormat::Q6K => high.max(-low) / 31.0 + 0.02,
                };
                for (weight, rounded) in weights.iter().zip(rounded) {
                    prop_assert!((weight - rounded).abs() <= bound, "{weight} became {rounded} as {}", format.name());
                }
            }
        }
    }
}

fn values(format: KFormat, block: &SuperBlock) -> Vec<f32> {
    (0..SUPER_BLOCK).map(|col| format.value(block, col)).collect()
}

/// The values of a block of type Q4_K by its definition: `d`, `dmin`, 12 bytes with eight scales
/// and eight minima of 6 bits, and 128 bytes. Each 32 of these hold 64 codes.
fn gguf_q4_k(block: &[u8]) -> Vec<f32> {
    gguf_with_minima(block, &block[16..], |_, _| 0)
}

/// The values of a block of type Q5_K by its definition: as Q4_K, with 32 bytes before the codes,
/// whose bits are the fifth ones of 32 columns each.
fn gguf_q5_k(block: &[u8]) -> Vec<f32> {
    gguf_with_minima(block, &block[48..], |j, l| (block[16 + l] >> j & 1) << 4)
}

/// `fifth(j, l)` is the fifth bit of a code.
fn gguf_with_minima(block: &[u8], qs: &[u8], fifth: impl Fn(usize, usize) -> u8) -> Vec<f32> {
    let half = |at: usize| f16::from_le_bytes([block[at], block[at + 1]]).to_f32();
    let (d, dmin, s) = (half(0), half(2), &block[4..16]);
    let mut y = Vec::new();
    for chunk in 0..4 {
        for nibble in 0..2 {
            let j = 2 * chunk + nibble;
            let (scale, min) = if j < 4 {
                (s[j] & 63, s[j + 4] & 63)
            } else {
                ((s[j + 4] & 15) | ((s[j - 4] >> 6) << 4), (s[j + 4] >> 4) | ((s[j] >> 6) << 4))
            };
            for l in 0..32 {
                let q = (qs[32 * chunk + l] >> (4 * nibble)) & 15 | fifth(j, l);
                y.push(d * f32::from(scale) * f32::from(q) - dmin * f32::from(min));
            }
        }
    }
    y
}

/// The values of a block of type Q6_K by its definition: 128 bytes with the lower bits, 64 bytes
/// with the upper bits, 16 scales and `d`. Each half of the block has 128 codes.
fn gguf_q6_k(block: &[u8]) -> Vec<f32> {
    let d = f16::from_le_bytes([block[208], block[209]]).to_f32();
    let mut y = vec![0.0; 256];
    for half in 0..2 {
        let (ql, qh) = (&block[64 * half..], &block[128 + 32 * half..]);
        let scales = &block[192 + 8 * half..];
        for l in 0..32 {
            let codes = [
                (ql[l] & 15) | ((qh[l] & 3) << 4),
                (ql[l + 32] & 15) | (((qh[l] >> 2) & 3) << 4),
                (ql[l] >> 4) | (((qh[l] >> 4) & 3) << 4),
                (ql[l + 32] >> 4) | ((qh[l] >> 6) << 4),
            ];
            for (quarter, code) in codes.into_iter().enumerate() {
                let scale = f32::from(scales[l / 16 + 2 * quarter].cast_signed());
                y[128 * half + 32 * quarter + l] = d * scale * (f32::from(code) - 32.0);
            }
        }
    }
    y
}

/// The searched scales lose less than those that map the largest weights to the largest codes.
#[test]
fn the_search_reduces_the_error() {
    let mut rng = Rng(7);
    // Nearly normally distributed weights.
    let weights: Vec<f32> = (0..200 * SUPER_BLOCK).map(|_| (0..6).map(|_| rng.unit()).sum()).collect();
    let error = |rounded: &[f32]| -> f64 {
        weights.iter().zip(rounded).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>() / weights.len() as f64
    };
    for (format, at_most) in [(KFormat::Q4K, 0.93), (KFormat::Q5K, 0.97), (KFormat::Q6K, 0.93)] {
        let mut searched = weights.clone();
        format.round(&mut searched, SUPER_BLOCK).unwrap();
        let mut plain = weights.clone();
        for sub_block in plain.chunks_mut(format.sub_block()) {
            let low = sub_block.iter().copied().fold(0f32, f32::min);
            let high = sub_block.iter().copied().fold(0f32, f32::max);
            let (low, scale) = match format {
                KFormat::Q4K => (low, (high - low) / 15.0),
                KFormat::Q5K => (low, (high - low) / 31.0),
                KFormat::Q6K => (0.0, high.max(-low) / 31.0),
            };
            sub_block.iter_mut().for_each(|x| *x = ((*x - low) / scale).round() * scale + low);
        }
        let ratio = error(&searched) / error(&plain);
        println!("{}: {ratio:.4} of the squared error without a search", format.name());
        assert!(ratio < at_most, "{}: {ratio}", format.name());
    }
}

#[test]
fn zeros_and_equal_weights_are_kept() {
    for format in KFormat::ALL {
        for value in [0.0, 0.75, -0.75] {
            let mut weights = vec![value; SUPER_BLOCK];
            format.round(&mut weights, SUPER_BLOCK).unwrap();
            for weight in weights {
                assert!((weight - value).abs() <= value.abs() / 500.0, "{value} became {weight}");
            }
        }
    }
}

#[test]
fn bad_weights_and_odd_columns_are_errors() {
    let load = |cpu: &Cpu, values: &[f32], cols: usize, format| {
        let parts = [Part::whole(tensor(&bytes(values), values.len() / cols, cols))];
        let segments = [Segment::new(&parts, WeightFormat::K(format))];
        let error = |result: millrace_backend::Result<()>| result.unwrap_err().to_string();
        let of_cpu = error(cpu.matrix(&segments).map(|_| ()));
        assert_eq!(error(Reference.matrix(&segments).map(|_| ())), of_cpu);
        of_cpu
    };
    for cpu in CPUS.iter() {
        for format in KFormat::ALL {
            for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut values = vec![1.0; 512];
                values[333] = bad;
                assert!(load(cpu, &values, 256, format).contains("a NaN or an infinity"));
            }
            assert!(load(cpu, &[1.0; 384], 384, format).contains("384 columns as"));
            for large in [1e9, 1e30] {
                let message = format!("a weight of {large:e} as {}", format.name());
                assert!(load(cpu, &[large; 256], 256, format).contains(&message));
            }
        }
    }
}

#[test]
fn inputs_that_are_not_finite_stay_visible() {
    for format in KFormat::ALL {
        Case::uneven((3, 256, 40), 48, false, WeightFormat::K(format), 9).check_bad_inputs();
    }
}

/// The planned bytes are close to those of the files, and cover the buffer of activations.
#[test]
fn matrices_take_few_bytes() {
    for cpu in CPUS.iter() {
        for (format, bits) in [(KFormat::Q4K, 4.625), (KFormat::Q5K, 5.625), (KFormat::Q6K, 6.5625)] {
            let bytes = cpu.matrix_bytes(512, 2048, WeightFormat::K(format));
            assert_eq!(bytes as f64 * 8.0 / (512.0 * 2048.0), bits, "{}", format.name());
            assert_eq!(bytes, format.bytes(512, 2048));
        }
        let scratch = |format| {
            let product = ProductShape { inputs: 2048, outputs: 64, format, logits: false, rows: 100 };
            cpu.scratch_bytes(&[product])
        };
        let more = scratch(WeightFormat::K(KFormat::Q4K)) - scratch(DType::BF16.into());
        assert_eq!(more, 100 * 8 * (256 + 64 + 4));
    }
}
