//! A matrix product, for the tests of all formats of weights.

use millrace_backend::{Backend, ProductShape, Segment};
use millrace_cpu::{Activations, Cpu};
use millrace_numbers::{DType, Part, WeightFormat};

use crate::common::*;

/// A product `x · wᵀ + bias` with weights that are loaded in a format.
#[derive(Clone)]
pub(crate) struct Case {
    pub(crate) n: usize,
    pub(crate) cols: usize,
    pub(crate) x: Vec<f32>,
    pub(crate) w: Vec<f32>,
    pub(crate) bias: Option<Vec<f32>>,
    pub(crate) format: WeightFormat,
}

impl Case {
    /// Inputs and weights are in [-1, 1).
    pub(crate) fn new(
        (n, cols, out): (usize, usize, usize),
        bias: bool,
        format: impl Into<WeightFormat>,
        seed: u64,
    ) -> Case {
        let mut rng = Rng(seed);
        let (x, w) = (rng.values(n * cols), rng.values(out * cols));
        let bias = bias.then(|| rng.values(out));
        Case { n, cols, x, w, bias, format: format.into() }
    }

    /// Runs of `run` columns and outputs have very different magnitudes, and the mean is not 0.
    pub(crate) fn uneven(
        (n, cols, out): (usize, usize, usize),
        run: usize,
        bias: bool,
        format: impl Into<WeightFormat>,
        seed: u64,
    ) -> Case {
        let mut case = Case::new((n, cols, out), bias, format, seed);
        let size = |at: usize| [1.0, 0.01, 30.0][(at / run + at / cols) % 3];
        for values in [&mut case.x, &mut case.w] {
            values.iter_mut().enumerate().for_each(|(at, value)| *value = (*value + 0.2) * size(at));
        }
        case
    }

    pub(crate) fn outputs(&self) -> usize {
        self.w.len() / self.cols
    }

    pub(crate) fn run<B: Backend>(&self, device: &B) -> Vec<f32> {
        let x = upload(device, &self.x, self.cols);
        let w = matrix(device, &self.w, self.cols, self.format);
        let bias = self.bias.as_ref().map(|b| vector(device, b));
        let mut out = device.buf(self.n, self.outputs()).unwrap();
        device.linear(self.n, &x, &w, bias.as_ref(), &mut out).unwrap();
        device.read(&out, self.n).unwrap()
    }

    /// The case with one row of the inputs.
    pub(crate) fn row(&self, t: usize) -> Case {
        Case { n: 1, x: self.x[t * self.cols..(t + 1) * self.cols].to_vec(), ..self.clone() }
    }

    /// The case with inputs rounded by `round`.
    pub(crate) fn rounded(&self, round: impl Fn(f32) -> f32) -> Case {
        Case { x: self.x.iter().map(|x| round(*x)).collect(), ..self.clone() }
    }

    /// The case with inputs rounded to what bytes stand for, with one scale for each `group`
    /// columns of a row.
    pub(crate) fn rounded_to_bytes(&self, group: usize) -> Case {
        let mut case = self.clone();
        for row in case.x.chunks_exact_mut(self.cols) {
            row.chunks_mut(group).for_each(round_to_bytes);
        }
        case
    }

    /// Asserts that some rows alone have the same bits as among the others, and that the second CPU
    /// of each pair computes the same as the first one, whose results this returns.
    pub(crate) fn check_rows_and_threads(&self, cpus: &[Cpu]) -> Vec<f32> {
        let (all, out) = (self.run(&cpus[0]), self.outputs());
        for cpu in cpus {
            assert_same_bits(&cpu.name(), &self.run(cpu), &all);
            for t in [0, self.n / 2, self.n - 1] {
                assert_same_bits(&cpu.name(), &self.row(t).run(cpu), &all[t * out..(t + 1) * out]);
            }
        }
        all
    }

    /// Asserts that an input that is not finite makes all results of its row so, and no other, so
    /// that it is noticed.
    pub(crate) fn check_bad_inputs(&self) {
        let (row, col) = (self.n / 2, self.cols * 3 / 4);
        for bad in [f32::NAN, f32::INFINITY] {
            let mut case = self.clone();
            case.x[row * self.cols + col] = bad;
            for cpu in CPUS.iter().chain(EXACT_CPUS.iter()) {
                for (at, y) in case.run(cpu).iter().enumerate() {
                    let is_bad = match cpu.activations() {
                        Activations::Rounded => y.is_nan(),
                        Activations::Exact => !y.is_finite(),
                    };
                    let name = cpu.name();
                    assert_eq!(is_bad, at / self.outputs() == row, "{:?} on {name}: {y}", self.format);
                }
            }
        }
    }
}

/// Rounds numbers to what bytes with one scale stand for.
pub(crate) fn round_to_bytes(group: &mut [f32]) {
    let largest = group.iter().fold(0f32, |most, x| most.max(x.abs()));
    for x in group {
        *x = (*x * (127.0 / largest)).round_ties_even() * (largest / 127.0);
    }
}

/// Multiplies the rows of `x` by the stacked `parts`, with activations of type `dtype`, on a device
/// that is told of the product before.
pub(crate) fn announced<B: Backend>(
    device: &B,
    dtype: DType,
    x: &[f32],
    parts: &[Part],
    format: WeightFormat,
    bias: Option<&[f32]>,
) -> Vec<f32> {
    announced_stack(device, dtype, x, &[Segment::new(parts, format)], bias)
}

/// Does the same with parts in different formats.
pub(crate) fn announced_stack<B: Backend>(
    device: &B,
    dtype: DType,
    x: &[f32],
    segments: &[Segment<'_>],
    bias: Option<&[f32]>,
) -> Vec<f32> {
    let cols = segments[0].parts[0].cols.len();
    let n = x.len() / cols;
    let rows = |segment: &Segment<'_>| segment.parts.iter().map(|part| part.rows.len()).sum::<usize>();
    let outputs = segments.iter().map(rows).sum();
    let shape = |segment: &Segment<'_>| {
        let (outputs, format) = (rows(segment), segment.format);
        ProductShape { inputs: cols, outputs, format, logits: false, rows: n }
    };
    device.tune(&segments.iter().map(shape).collect::<Vec<_>>()).unwrap();
    let w = device.matrix(segments).unwrap();
    let bias = bias.map(|b| vector(device, b));
    let tokens: Vec<u32> = (0..n as u32).collect();
    let (mut queue, table) = (queue(device, n), matrix(device, x, cols, dtype));
    let step = opened(device, &mut queue, &tokens, &[]);
    let (mut x, mut out) = (device.buf(n, cols).unwrap(), device.buf(n, outputs).unwrap());
    device.embed(&step, &table, 0, 1.0, &mut x).unwrap();
    device.linear(n, &x, &w, bias.as_ref(), &mut out).unwrap();
    device.read(&out, n).unwrap()
}
