//! Tests of weights as codes into a table (FP8, NF4) on the CPU, against the reference.

use half::bf16;
use millrace_backend::reference::Reference;
use millrace_backend::{Backend, Segment, Sizing, WeightLoading};
use millrace_numbers::formats::{fp8, nf4};
use millrace_numbers::{DType, Part, WeightFormat};
use proptest::prelude::{prop, prop_assert, proptest};

use crate::common::*;
use crate::product::Case;

const FORMATS: [WeightFormat; 2] = [WeightFormat::Fp8, WeightFormat::Nf4];

/// The case with weights that are dequantized by the definition of the format, and, if `rounded`,
/// with activations and table rounded to bf16.
fn dequantized(case: &Case, rounded: bool) -> Case {
    let round = |x: f32| if rounded { bf16::from_f32(x).to_f32() } else { x };
    let mut w = case.w.clone();
    for row in w.chunks_mut(case.cols) {
        if case.format == WeightFormat::Fp8 {
            let mut codes = vec![0; row.len()];
            let factor = fp8::quantize(row, &mut codes).unwrap();
            row.iter_mut().zip(codes).for_each(|(w, code)| *w = fp8::widen(code) * factor);
            continue;
        }
        for group in row.chunks_mut(64) {
            let mut codes = vec![0; group.len()];
            let factor = nf4::quantize(group, &mut codes).unwrap();
            let value = |code: u8| round(nf4::TABLE[usize::from(code)]) * factor;
            group.iter_mut().zip(codes).for_each(|(w, code)| *w = value(code));
        }
    }
    Case { w, format: DType::F32.into(), ..case.rounded(round) }
}

proptest! {
    #![proptest_config(cases(32))]

    #[test]
    fn products_match_the_reference(
        n in 1usize..40, cols in 1usize..1200, out in 1usize..100, bias: bool, format in 0usize..2, seed: u64,
    ) {
        let case = Case::uneven((n, cols, out), 64, bias, FORMATS[format], seed);
        let [exact, rounded] = [false, true].map(|rounded| dequantized(&case, rounded).run(&Reference));
        for cpu in CPUS.iter().chain(EXACT_CPUS.iter()) {
            let want = if rounds(cpu, case.format) { &rounded } else { &exact };
            assert_close(&format!("{:?} on {}", case.format, cpu.name()), &case.run(cpu), want, 1e-5);
        }
    }

    /// A row's bits do not depend on the other rows, nor on the number of threads.
    #[test]
    fn rows_and_threads_do_not_change_results(
        n in 1usize..40, cols in 1usize..6000, out in 1usize..100, format in 0usize..2, seed: u64,
    ) {
        let case = Case::uneven((n, cols, out), 64, false, FORMATS[format], seed);
        for pair in CPUS.chunks(2).chain(EXACT_CPUS.chunks(2)) {
            case.check_rows_and_threads(pair);
        }
    }

    /// NF4 codes are those of the nearest values of the table.
    #[test]
    fn nf4_finds_the_nearest_value(weights in prop::collection::vec(-3f32..3.0, 1..65)) {
        let mut codes = vec![0; weights.len()];
        let factor = nf4::quantize(&weights, &mut codes).unwrap();
        for (weight, code) in weights.iter().zip(codes) {
            let distance = |value: f32| (f64::from(value) - f64::from(*weight) / f64::from(factor)).abs();
            let nearest = nf4::TABLE.iter().map(|value| distance(*value)).fold(f64::MAX, f64::min);
            prop_assert!(distance(nf4::TABLE[usize::from(code)]) <= nearest + 1e-6);
        }
    }
}

/// All numbers of FP8 are multiplied exactly, also subnormal ones.
#[test]
fn every_fp8_number_is_exact() {
    // One column holds the largest number, so that the factor is 1.
    let numbers: Vec<f32> = (0..=255).filter(|byte| byte & 0x7f != 0x7f).map(fp8::widen).collect();
    let w: Vec<f32> = numbers.iter().flat_map(|x| [fp8::LARGEST, *x, 0.0]).collect();
    let case = Case { n: 1, cols: 3, x: vec![0.0, 1.0, 0.0], w, bias: None, format: WeightFormat::Fp8 };
    for cpu in CPUS.iter().chain(EXACT_CPUS.iter()) {
        assert_eq!(case.run(cpu), numbers, "{}", cpu.name());
    }
}

#[test]
fn bad_weights_are_errors() {
    for cpu in CPUS.iter() {
        for format in FORMATS {
            for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut values = vec![1.0; 128];
                values[77] = bad;
                let parts = [Part::whole(tensor(&bytes(&values), 2, 64))];
                let error = cpu.matrix(&[Segment::new(&parts, format)]).unwrap_err().to_string();
                assert!(error.contains("a NaN or an infinity"), "{error}");
            }
        }
    }
}

#[test]
fn matrices_take_few_bytes() {
    for cpu in CPUS.iter() {
        for (format, bits) in FORMATS.into_iter().zip([8.0625, 4.5]) {
            let planned = cpu.matrix_bytes(512, 2048, format) as f64 * 8.0 / (512.0 * 2048.0);
            assert_eq!(planned, bits, "{format:?}");
        }
    }
}
