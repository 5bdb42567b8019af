//! Tests of weights as integers in groups: the arithmetic of the formats, and the products of the
//! CPU against the reference.

use half::f16;
use millrace_backend::reference::Reference;
use millrace_backend::{Backend, ForwardOps, ModelLoading, ProductShape, Segment, Sizing, WeightLoading};
use millrace_cpu::Cpu;
use millrace_numbers::{DType, IntFormat, Part, WeightFormat};
use proptest::prelude::{prop, prop_assert, prop_assert_eq, proptest};

use crate::common::*;
use crate::product::Case;

/// Rows of a long prompt, which threads quantize in pieces, have the bits of single rows.
#[test]
fn rows_that_threads_share_agree_bit_for_bit() {
    for (seed, format) in IntFormat::ALL.into_iter().enumerate() {
        let case = Case::uneven((61, 2080, 35), 32, true, WeightFormat::Int(format), seed as u64);
        case.check_rows_and_threads(&CPUS);
    }
}

proptest! {
    #![proptest_config(cases(48))]

    #[test]
    fn products_match_the_reference_with_rounded_activations(
        n in 1usize..30, blocks in 1usize..13, fewer in 0usize..32, out in 1usize..150, bias: bool, format in 0usize..4,
        seed: u64,
    ) {
        let format = IntFormat::ALL[format];
        let cols = if format == IntFormat::Int8 { 32 * blocks - fewer } else { 32 * blocks };
        let case = Case::uneven((n, cols, out), 32, bias, WeightFormat::Int(format), seed);
        let want = case.rounded_to_bytes(format.activation_cols(cols)).run(&Reference);
        for cpu in CPUS.iter() {
            assert_close(&format!("{} on {}", format.name(), cpu.name()), &case.run(cpu), &want, 1e-6);
        }
    }

    /// Exact activations are multiplied in f32, by the weights that the codes stand for.
    #[test]
    fn exact_activations_are_not_rounded(
        n in 1usize..30, cols in 1usize..90, fewer in 0usize..32, out in 1usize..150, bias: bool, format in 0usize..4,
        seed: u64,
    ) {
        let format = IntFormat::ALL[format];
        let cols = if format == IntFormat::Int8 { 32 * cols - fewer } else { 32 * cols };
        let case = Case::uneven((n, cols, out), 32, bias, WeightFormat::Int(format), seed);
        let want = case.run(&Reference);
        for pair in EXACT_CPUS.chunks(2) {
            let found = case.check_rows_and_threads(pair);
            assert_close(&format!("{} on {}", format.name(), pair[0].name()), &found, &want, 1e-5);
        }
    }

    /// All instruction sets compute the same bits, with any number of threads and rows.
    #[test]
    fn all_instruction_sets_agree_bit_for_bit(
        n in 1usize..40, blocks in 1usize..40, out in 1usize..300, bias: bool, format in 0usize..4, seed: u64,
    ) {
        let format = WeightFormat::Int(IntFormat::ALL[format]);
        Case::uneven((n, 32 * blocks, out), 32, bias, format, seed).check_rows_and_threads(&CPUS);
    }

    /// Codes are within half a step of the weight, and 4-bit formats lose one step at one end.
    #[test]
    fn weights_are_rounded_to_near_values(
        weights in prop::collection::vec(-3f32..3.0, 128), shift in -2f32..2.0, format in 0usize..4,
    ) {
        let format = IntFormat::ALL[format];
        let weights: Vec<f32> = weights.iter().map(|weight| weight + shift).collect();
        let mut rounded = weights.clone();
        format.round(&mut rounded, 128).unwrap();
        let group = format.group_cols(128);
        for (weights, rounded) in weights.chunks(group).zip(rounded.chunks(group)) {
            let min = weights.iter().copied().fold(0f32, f32::min);
            let max = weights.iter().copied().fold(0f32, f32::max);
            let largest = max.max(-min);
            let bound = match format {
                IntFormat::Int8 => largest / 254.0,
                // The scale is rounded to 11 bits.
                IntFormat::Q8_0 => largest / 254.0 + largest / 2048.0,
                IntFormat::Q4_0 => largest / 8.0 + largest / 2048.0,
                IntFormat::Int4 => (max - min) * (1.0 / 15.0 + 1.0 / 2048.0),
                IntFormat::Stored(_) => unreachable!("weights are not quantized to it"),
            } * 1.0001;
            for (weight, rounded) in weights.iter().zip(rounded) {
                prop_assert!((weight - rounded).abs() <= bound, "{weight} became {rounded}, bound {bound}");
            }
        }
    }

    /// Scale and codes are the bytes of GGUF's blocks.
    #[test]
    fn blocks_are_those_of_gguf(
        mut weights in prop::collection::vec(-1f32..1.0, 32), exponent in -20i32..8, ties in prop::collection::vec(-254i32..255, 8),
    ) {
        // Some weights are halves of steps, where the direction of rounding matters.
        for (weight, tie) in weights.iter_mut().zip(ties) {
            *weight = tie as f32 / 254.0;
        }
        weights.iter_mut().for_each(|weight| *weight *= (exponent as f32).exp2());
        let mut codes = [0; 32];

        let group = IntFormat::Q8_0.quantize(&weights, &mut codes).unwrap();
        let mut block = f16::from_f32(group.scale).to_le_bytes().to_vec();
        block.extend(codes.map(|code| code.wrapping_sub(128)));
        prop_assert_eq!(block, gguf_q8_0(&weights));

        let group = IntFormat::Q4_0.quantize(&weights, &mut codes).unwrap();
        let mut block = f16::from_f32(group.scale).to_le_bytes().to_vec();
        block.extend((0..16).map(|i| codes[i] | codes[i + 16] << 4));
        prop_assert_eq!(block, gguf_q4_0(&weights));
    }
}

/// A block of type Q8_0 by its definition: `d` as f16, then 32 signed bytes.
fn gguf_q8_0(weights: &[f32]) -> Vec<u8> {
    let mut largest = 0f32;
    for weight in weights {
        largest = largest.max(weight.abs());
    }
    let d = largest / 127.0;
    let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
    let mut block = f16::from_f32(d).to_le_bytes().to_vec();
    for weight in weights {
        block.push((weight * inverse).round() as i8 as u8);
    }
    block
}

/// A block of type Q4_0 by its definition: `d` as f16, then 16 bytes, of which byte i has weight i
/// in its lower and weight i + 16 in its upper half.
fn gguf_q4_0(weights: &[f32]) -> Vec<u8> {
    let mut max = 0f32;
    for &weight in weights {
        if weight.abs() > max.abs() {
            max = weight;
        }
    }
    let d = max / -8.0;
    let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
    let code = |weight: f32| ((weight * inverse + 8.5) as i8).min(15) as u8;
    let mut block = f16::from_f32(d).to_le_bytes().to_vec();
    for i in 0..16 {
        block.push(code(weights[i]) | code(weights[i + 16]) << 4);
    }
    block
}

#[test]
fn groups_of_int4_divide_the_columns() {
    let group = |cols| IntFormat::Int4.group_cols(cols);
    assert_eq!([group(256), group(192), group(96), group(32)], [128, 64, 32, 32]);
}

#[test]
fn zeros_stay_zeros_and_zero_is_exact() {
    for format in IntFormat::ALL {
        let mut zeros = vec![0.0; 64];
        format.round(&mut zeros, 64).unwrap();
        assert!(zeros.iter().all(|x| *x == 0.0), "{}", format.name());
        let mut weights: Vec<f32> = (0..64).map(|i| if i % 3 == 0 { 0.0 } else { 1.0 + i as f32 }).collect();
        format.round(&mut weights, 64).unwrap();
        assert!(weights.iter().step_by(3).all(|x| *x == 0.0), "{}", format.name());
    }
}

#[test]
fn bad_weights_and_odd_columns_are_errors() {
    let load = |cpu: &Cpu, values: &[f32], cols: usize, format| {
        let parts = [Part::whole(tensor(&bytes(values), values.len() / cols, cols))];
        let segments = [Segment::new(&parts, WeightFormat::Int(format))];
        let error = |result: millrace_backend::Result<()>| result.unwrap_err().to_string();
        let of_cpu = error(cpu.matrix(&segments).map(|_| ()));
        assert_eq!(error(Reference.matrix(&segments).map(|_| ())), of_cpu);
        of_cpu
    };
    for cpu in CPUS.iter() {
        for format in IntFormat::ALL {
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut values = vec![1.0; 128];
                values[77] = bad;
                assert!(load(cpu, &values, 64, format).contains("a NaN or an infinity"));
            }
            if format != IntFormat::Int8 {
                assert!(load(cpu, &[1.0; 96], 48, format).contains("48 columns as"));
                assert!(load(cpu, &[1e9; 32], 32, format).contains("a weight of 1e9 as"));
            }
        }
    }
}

#[test]
fn inputs_that_are_not_finite_stay_visible() {
    for format in IntFormat::ALL {
        Case::uneven((3, 64, 40), 32, false, WeightFormat::Int(format), 9).check_bad_inputs();
    }
}

/// The planned bytes are close to the bits of the format, and cover the buffer of activations.
#[test]
fn matrices_take_few_bytes() {
    for cpu in CPUS.iter() {
        for (format, bits) in IntFormat::ALL.into_iter().zip([8.016, 8.5, 4.5, 4.25]) {
            let bytes = cpu.matrix_bytes(512, 2048, WeightFormat::Int(format));
            let planned = bytes as f64 * 8.0 / (512.0 * 2048.0);
            assert!((planned - bits).abs() < 0.001, "{}: {planned} bits", format.name());
            assert_eq!(bytes, format.bytes(512, 2048));
        }
        let scratch = |format| {
            let product = ProductShape { inputs: 2048, outputs: 64, format, logits: false, rows: 100 };
            cpu.scratch_bytes(&[product])
        };
        let more = scratch(WeightFormat::Int(IntFormat::Q8_0)) - scratch(DType::BF16.into());
        assert!((100 * 2048..150 * 2048).contains(&more), "{more} bytes");
    }
    // Exact activations need no bytes.
    let scratch = |format| {
        let product = ProductShape { inputs: 2048, outputs: 64, format, logits: false, rows: 100 };
        EXACT_CPUS[0].scratch_bytes(&[product])
    };
    assert_eq!(scratch(WeightFormat::Int(IntFormat::Q8_0)), scratch(DType::F32.into()));
}

#[test]
fn a_table_must_be_dense() {
    let cpu = &CPUS[0];
    let table = matrix(cpu, &[1.0; 128], 32, WeightFormat::Int(IntFormat::Q8_0));
    let mut queue = queue(cpu, 1);
    let step = opened(cpu, &mut queue, &[0], &[]);
    let mut out = cpu.buf(1, 32).unwrap();
    assert!(cpu.embed(&step, &table, 0, 1.0, &mut out).unwrap_err().to_string().contains("not dense"));
}
