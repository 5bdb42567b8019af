//! Tests of FP8 weights on the GPU under test against the reference, whose weights are the numbers
//! that the bytes and scales stand for.

use millrace_backend::reference::Reference;
use millrace_backend::{Backend, ForwardOps, ModelLoading, Segment, WeightLoading};
use millrace_cuda::{Cuda, Device};
use millrace_numbers::formats::fp8;
use millrace_numbers::{DType, HostTensor, Part, WeightFormat};
use proptest::prelude::proptest;

use crate::common::*;
use crate::product::{Case, announced};

pub(crate) fn gpu(dtype: DType, batch_invariant: bool) -> Cuda {
    Cuda::new(Device::under_test().unwrap(), dtype).batch_invariant(batch_invariant)
}

/// Whether the tests run on a GPU and not on a simulated one.
fn is_gpu() -> bool {
    std::env::var_os("MILLRACE_TEST_DEVICE").is_some()
}

/// Outputs have very different magnitudes: a single scale would lose the small ones.
fn case(n: usize, cols: usize, out: usize, bias: bool, dtype: DType, seed: u64) -> Case {
    let mut case = Case::new((n, cols, out), bias, WeightFormat::Fp8, seed).rounded(|x| dtype.round(x));
    let size = |at: usize| [1.0, 0.01, 30.0][at / cols % 3];
    case.w.iter_mut().enumerate().for_each(|(at, w)| *w *= size(at));
    case
}

/// Computes the product with activations of type `dtype` and a weight of two parts.
pub(crate) fn run<B: Backend>(case: &Case, device: &B, dtype: DType) -> Vec<f32> {
    let (cols, outputs) = (case.cols, case.outputs());
    let whole = HostTensor::dense(DType::F32, outputs, cols, bytes(&case.w).into());
    let part = |rows| Part { tensor: whole.clone(), rows, cols: 0..cols };
    let parts = [part(0..outputs / 3), part(outputs / 3..outputs)];
    announced(device, dtype, &case.x, &parts, case.format, case.bias.as_deref())
}

/// The case with activations quantized as the device quantizes them.
fn quantized(case: &Case) -> Case {
    let mut case = case.clone();
    let mut row_bytes = vec![0; case.cols];
    for row in case.x.chunks_exact_mut(case.cols) {
        let factor = fp8::quantize(row, &mut row_bytes).unwrap();
        row.iter_mut().zip(&row_bytes).for_each(|(x, byte)| *x = fp8::widen(*byte) * factor);
    }
    case
}

/// Returns the first element that differs by more than rounding to `dtype` (twice where a bias is
/// added to a rounded sum), the error of f32 sums, and `of_terms` times the magnitudes of all
/// terms.
fn difference(case: &Case, got: &[f32], want: &[f32], dtype: DType, of_terms: f32) -> Option<String> {
    let (relative, least) = match dtype {
        DType::F32 => (1e-6, 0.0),
        // Half the smallest subnormal number.
        DType::F16 => (0.51 / 1024.0, 2f32.powi(-25)),
        DType::BF16 => (0.51 / 128.0, 0.0),
    };
    let differs = |(index, (got, want)): (usize, (&f32, &f32))| {
        let (row, output) = (index / case.outputs(), index % case.outputs());
        let weights = &case.w[output * case.cols..][..case.cols];
        let largest = weights.iter().fold(0f32, |m, w| m.max(w.abs()));
        let x = &case.x[row * case.cols..][..case.cols];
        let terms: f32 = x.iter().zip(weights).map(|(x, w)| (x * w).abs()).sum();
        let bias = case.bias.as_ref().map_or(0.0, |bias| bias[output].abs() + want.abs());
        let bound = relative * (want.abs() + bias) + least + 1e-6 * largest * case.cols as f32;
        let too_far = (got - want).abs() > bound + of_terms * terms;
        too_far.then(|| format!("element {index} is {got}, not {want}"))
    };
    got.iter().zip(want).enumerate().find_map(differs)
}

pub(crate) fn assert_near(case: &Case, got: &[f32], want: &[f32], dtype: DType) {
    assert_eq!(difference(case, got, want, dtype, 0.0), None);
}

/// As [`assert_near`], with weights that are rounded: `of_terms` times all magnitudes are allowed.
pub(crate) fn assert_near_by(case: &Case, got: &[f32], want: &[f32], dtype: DType, of_terms: f32) {
    assert_eq!(difference(case, got, want, dtype, of_terms), None);
}

/// Tensor cores keep about 14 bits of the sums of FP8 products (DeepSeek-V3 Technical Report,
/// 3.3.2).
const OF_TERMS: f32 = 1.0 / 4096.0;

proptest! {
    #![proptest_config(cases(8))]

    /// Activations are not quantized for up to 16 rows, in single precision, and if results must
    /// not depend on the number of rows.
    #[test]
    fn activations_of_few_rows_are_not_quantized(
        n in 1usize..17, cols in 1usize..300, out in 3usize..60, bias: bool, dtype in 0usize..3, invariant: bool, seed: u64,
    ) {
        let dtype = DTYPES[dtype];
        let n = if invariant || dtype == DType::F32 { 2 * n } else { n };
        let case = case(n, cols, out, bias, dtype, seed);
        let got = run(&case, &gpu(dtype, invariant), dtype);
        assert_near(&case, &got, &run(&case, &Reference, DType::F32), dtype);
    }

    /// Or not, if the GPU is faster without: it times both.
    #[test]
    fn activations_of_many_rows_are_quantized(
        n in 17usize..40, cols in 1usize..300, out in 3usize..60, bias: bool, dtype in 1usize..3, seed: u64,
    ) {
        let dtype = DTYPES[dtype];
        let case = case(n, cols, out, bias, dtype, seed);
        let got = run(&case, &gpu(dtype, false), dtype);
        let want = run(&quantized(&case), &Reference, DType::F32);
        let Some(wrong) = difference(&case, &got, &want, dtype, OF_TERMS) else { return Ok(()) };
        assert!(is_gpu(), "{wrong}");
        assert_near(&case, &got, &run(&case, &Reference, DType::F32), dtype);
    }
}

/// In batch-invariant mode a row has the same bits alone as in a batch.
#[test]
fn batch_invariant_rows_have_the_same_bits_alone() {
    let case = case(40, 200, 50, true, DType::BF16, 3);
    let all = run(&case, &gpu(DType::BF16, true), DType::BF16);
    for row in [0, 39] {
        let alone = run(&case.row(row), &gpu(DType::BF16, true), DType::BF16);
        assert_same_bits("row alone", &alone, &all[row * 50..(row + 1) * 50]);
    }
}

#[test]
fn nan_weights_untuned_products_and_packed_embeddings_are_errors() {
    let device = gpu(DType::BF16, false);
    let bad = bytes(&[1.0, f32::NAN]);
    let parts = [Part::whole(HostTensor::dense(DType::F32, 1, 2, bad.into()))];
    let error = device.matrix(&[Segment::new(&parts, WeightFormat::Fp8)]).unwrap_err().to_string();
    assert!(error.contains("NaN"), "{error}");
    let w = matrix(&device, &[1.0; 32], 16, WeightFormat::Fp8);
    let (x, mut out) = (device.buf(1, 16).unwrap(), device.buf(1, 2).unwrap());
    assert!(device.linear(1, &x, &w, None, &mut out).unwrap_err().to_string().contains("not announced"));
    let mut queue = queue(&device, 1);
    let step = opened(&device, &mut queue, &[0], &[]);
    assert!(device.embed(&step, &w, 0, 1.0, &mut device.buf(1, 16).unwrap()).is_err());
}
