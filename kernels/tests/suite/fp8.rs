//! Weights as FP8 on a simulated card, against the reference, whose weights are the numbers that their bytes and factors stand for.

use std::sync::Arc;

use millrace_kernels::cuda::{Cuda, Device, Simulated};
use millrace_kernels::reference::Reference;
use millrace_kernels::{Backend, DType, HostTensor, MatrixFormat, Part, ProductShape, fp8};
use proptest::prelude::{ProptestConfig, proptest};

use crate::common::*;

fn card(dtype: DType, batch_invariant: bool) -> Cuda {
    Cuda::new(Device::new(Arc::new(Simulated::new().unwrap())), dtype).batch_invariant(batch_invariant)
}

struct Case {
    n: usize,
    cols: usize,
    x: Vec<f32>,
    w: Vec<f32>,
    bias: Option<Vec<f32>>,
}

impl Case {
    fn new(n: usize, cols: usize, out: usize, bias: bool, dtype: DType, seed: u64) -> Case {
        let mut rng = Rng(seed);
        let x = rng.values(n * cols).iter().map(|x| dtype.round(*x)).collect();
        // Outputs of very different sizes: a single factor would lose the small ones.
        let size = |at: usize| [1.0, 0.01, 30.0][at / cols % 3];
        let w = rng.values(out * cols).iter().enumerate().map(|(at, w)| w * size(at)).collect();
        let bias = bias.then(|| rng.values(out));
        Case { n, cols, x, w, bias }
    }

    fn outputs(&self) -> usize {
        self.w.len() / self.cols
    }

    /// The product of activations of type `dtype`, with the weight in two parts.
    fn run<B: Backend>(&self, device: &B, dtype: DType) -> Vec<f32> {
        let (n, cols, outputs) = (self.n, self.cols, self.outputs());
        let product =
            ProductShape { inputs: cols, outputs, format: MatrixFormat::Fp8, logits: false, rows: n };
        device.tune(&[product]).unwrap();
        let bytes = bytes(&self.w);
        let whole = HostTensor { dtype: DType::F32, rows: outputs, cols, bytes: &bytes };
        let part = |rows| Part { tensor: whole, rows, cols: 0..cols };
        let w =
            device.matrix(&[part(0..outputs / 3), part(outputs / 3..outputs)], MatrixFormat::Fp8).unwrap();
        let bias = self.bias.as_ref().map(|b| vector(device, b));
        let tokens: Vec<u32> = (0..n as u32).collect();
        let (step, table) = (begun(device, &tokens, &[]), matrix(device, &self.x, cols, dtype));
        let (mut x, mut out) = (device.buf(n, cols).unwrap(), device.buf(n, outputs).unwrap());
        device.embed(&step, &table, 0, &mut x).unwrap();
        device.linear(n, &x, &w, bias.as_ref(), &mut out).unwrap();
        device.read(&out, n).unwrap()
    }

    /// The same with activations as the device quantises them.
    fn quantized(&self) -> Case {
        let mut x = self.x.clone();
        let mut row_bytes = vec![0; self.cols];
        for row in x.chunks_exact_mut(self.cols) {
            let factor = fp8::quantize(row, &mut row_bytes).unwrap();
            row.iter_mut().zip(&row_bytes).for_each(|(x, byte)| *x = fp8::widen(*byte) * factor);
        }
        Case { x, w: self.w.clone(), bias: self.bias.clone(), ..*self }
    }
}

/// Each element within rounding of `dtype`, twice where a bias is added to what was rounded, and within the error of f32 sums.
fn assert_near(case: &Case, got: &[f32], want: &[f32], dtype: DType) {
    let relative = match dtype {
        DType::F32 => 1e-6,
        DType::F16 => 0.51 / 1024.0,
        DType::BF16 => 0.51 / 128.0,
    };
    for (index, (got, want)) in got.iter().zip(want).enumerate() {
        let output = index % case.outputs();
        let largest = case.w[output * case.cols..][..case.cols].iter().fold(0f32, |m, w| m.max(w.abs()));
        let bias = case.bias.as_ref().map_or(0.0, |bias| bias[output].abs() + want.abs());
        let bound = relative * (want.abs() + bias) + 1e-6 * largest * case.cols as f32;
        assert!((got - want).abs() <= bound, "element {index} is {got}, not {want}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    /// Up to 16 rows activations stay as they are; so do all of single precision, and of those that must not depend on their number.
    #[test]
    fn activations_stay_as_they_are(
        n in 1usize..17, cols in 1usize..300, out in 3usize..60, bias: bool, dtype in 0usize..3, invariant: bool, seed: u64,
    ) {
        let dtype = DTYPES[dtype];
        let n = if invariant || dtype == DType::F32 { 2 * n } else { n };
        let case = Case::new(n, cols, out, bias, dtype, seed);
        let got = case.run(&card(dtype, invariant), dtype);
        assert_near(&case, &got, &case.run(&Reference, DType::F32), dtype);
    }

    #[test]
    fn many_rows_become_fp8(
        n in 17usize..40, cols in 1usize..300, out in 3usize..60, bias: bool, dtype in 1usize..3, seed: u64,
    ) {
        let dtype = DTYPES[dtype];
        let case = Case::new(n, cols, out, bias, dtype, seed);
        let got = case.run(&card(dtype, false), dtype);
        assert_near(&case, &got, &case.quantized().run(&Reference, DType::F32), dtype);
    }
}

/// What does not depend on the number of rows has the same bits alone.
#[test]
fn a_row_is_the_same_alone_if_it_must() {
    let case = Case::new(40, 200, 50, true, DType::BF16, 3);
    let all = case.run(&card(DType::BF16, true), DType::BF16);
    for row in [0, 39] {
        let alone = Case { n: 1, x: case.x[row * 200..(row + 1) * 200].to_vec(), ..case.quantized() };
        let alone = alone.run(&card(DType::BF16, true), DType::BF16);
        assert_same_bits("row alone", &alone, &all[row * 50..(row + 1) * 50]);
    }
}

#[test]
fn what_cannot_be_held_or_was_not_announced_is_refused() {
    let device = card(DType::BF16, false);
    let bad = bytes(&[1.0, f32::NAN]);
    let part = Part::whole(HostTensor { dtype: DType::F32, rows: 1, cols: 2, bytes: &bad });
    assert!(device.matrix(&[part], MatrixFormat::Fp8).unwrap_err().to_string().contains("NaN"));
    let w = matrix(&device, &[1.0; 32], 16, MatrixFormat::Fp8);
    let (x, mut out) = (device.buf(1, 16).unwrap(), device.buf(1, 2).unwrap());
    assert!(device.linear(1, &x, &w, None, &mut out).unwrap_err().to_string().contains("not announced"));
    let step = begun(&device, &[0], &[]);
    assert!(device.embed(&step, &w, 0, &mut device.buf(1, 16).unwrap()).is_err());
}
