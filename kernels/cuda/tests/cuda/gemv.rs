//! Products of few rows with weights as they are stored.

use millrace_cuda::ops::gemv::{gemv, gemv_plain};
use millrace_cuda::ops::product::{ProductOperands, ProductWorkspace, counters, partials};
use millrace_cuda::{Elem, Memory};

use crate::common::*;

/// A product's inputs on the host, and its result in f64.
pub(crate) struct Case {
    pub(crate) elem: Elem,
    pub(crate) rows: usize,
    pub(crate) inputs: usize,
    pub(crate) outputs: usize,
    pub(crate) x: Vec<f32>,
    bias: Option<Vec<f32>>,
    /// Columns of the matrix that has the result, before and after it.
    around: [usize; 2],
}

impl Case {
    pub(crate) fn random(rng: &mut Rng, elem: Elem, rows: usize, inputs: usize, outputs: usize) -> Case {
        let x = rng.values(elem, rows * inputs);
        let bias = (rng.below(2) == 1).then(|| rng.values(Elem::F32, outputs));
        let around = rng.pick(&[[0, 0], [0, 0], [8, 16], [16, 3], [5, 0]]);
        Case { elem, rows, inputs, outputs, x, bias, around }
    }

    /// The case with a result between this many columns of others. The kernels with tensor cores
    /// need multiples of eight before it.
    pub(crate) fn between(self, around: [usize; 2]) -> Case {
        Case { around, ..self }
    }

    /// x is zero, and there is no bias.
    fn zeros(elem: Elem, rows: usize, inputs: usize, outputs: usize) -> Case {
        let x = vec![0.0; rows * inputs];
        Case { elem, rows, inputs, outputs, x, bias: None, around: [0, 0] }
    }

    /// Row i of x picks input i.
    pub(crate) fn identity(elem: Elem, inputs: usize, outputs: usize) -> Case {
        let mut x = vec![0.0; inputs * inputs];
        (0..inputs).for_each(|i| x[i * inputs + i] = 1.0);
        Case { elem, rows: inputs, inputs, outputs, x, bias: None, around: [0, 0] }
    }

    pub(crate) fn name(&self, what: &str) -> String {
        let &Case { elem, rows, inputs, outputs, around, .. } = self;
        let bias = self.bias.is_some();
        format!("{what} {elem:?} {rows} x {inputs} to {outputs}, bias: {bias}, around: {around:?}")
    }

    /// The result by the definition. `weight(o, i)` is an element of the weight.
    pub(crate) fn reference(&self, weight: impl Fn(usize, usize) -> f64) -> Vec<f32> {
        let mut out = Vec::with_capacity(self.rows * self.outputs);
        for row in 0..self.rows {
            for o in 0..self.outputs {
                let x = &self.x[row * self.inputs..][..self.inputs];
                let mut sum: f64 = x.iter().enumerate().map(|(i, &x)| f64::from(x) * weight(o, i)).sum();
                sum += self.bias.as_ref().map_or(0.0, |b| f64::from(b[o]));
                out.push(sum as f32);
            }
        }
        out
    }

    /// Runs `product` and returns its result, which is garbage before. Columns around it must stay.
    pub(crate) fn run(&self, product: impl Fn(&ProductOperands<'_>)) -> Vec<f32> {
        let x = put(self.elem, &self.x);
        let bias = self.bias.as_ref().map(|b| put(Elem::F32, b));
        let [before, after] = self.around;
        let stride = before + self.outputs + after;
        let memory = garbage(self.elem, self.rows * stride);
        let out = memory.view(self.elem);
        let old = get(out);
        product(&ProductOperands {
            rows: self.rows,
            inputs: self.inputs,
            outputs: self.outputs,
            x: x.view(self.elem),
            bias: bias.as_ref().map(|b| b.view(Elem::F32)),
            out: out.slice(before.min(out.len())..out.len()),
            out_stride: stride,
        });
        let mut result = Vec::new();
        for (row, old) in get(out).chunks_exact(stride).zip(old.chunks_exact(stride)) {
            let columns = before..before + self.outputs;
            let is_same = |at: usize| row[at].to_bits() == old[at].to_bits();
            assert!((0..stride).all(|at| columns.contains(&at) || is_same(at)), "{}", self.name("around"));
            result.extend_from_slice(&row[columns]);
        }
        result
    }

    /// The case with only the first `rows` rows.
    pub(crate) fn first(&self, rows: usize) -> Case {
        Case { rows, x: self.x[..rows * self.inputs].to_vec(), bias: self.bias.clone(), ..*self }
    }

    /// The largest error of f32 sums of `inputs` products of numbers below 1 times `scale`.
    pub(crate) fn tolerance(&self, scale: f32) -> (f32, f32) {
        (precision(self.elem) * 1.01 + 1e-6, scale * self.inputs as f32 * 1e-7 + 1e-6)
    }
}

/// Memory for a workspace. The sums are garbage before, the counters are 0.
pub(crate) struct Room(Memory, Memory);

impl Room {
    pub(crate) fn new(rows: usize, inputs: usize, outputs: usize) -> Room {
        let counters = vec![0; counters(rows, inputs, outputs)];
        Room(garbage(Elem::F32, partials(rows, inputs, outputs)), put_u32(&counters))
    }

    pub(crate) fn workspace(&self) -> ProductWorkspace<'_> {
        ProductWorkspace { partials: self.0.view(Elem::F32), counters: self.1.view(Elem::U32) }
    }

    pub(crate) fn assert_counters_are_zero(&self) {
        assert!(
            DEVICE.read(self.1.view(Elem::U8)).unwrap().iter().all(|&b| b == 0),
            "counters are left at 0"
        );
    }
}

fn check(rng: &mut Rng, elem: Elem, rows: usize, inputs: usize, outputs: usize) {
    let case = Case::random(rng, elem, rows, inputs, outputs);
    let weight = rng.values(elem, outputs * inputs);
    let on_device = put(elem, &weight);
    let want = case.reference(|o, i| f64::from(weight[o * inputs + i]));
    let (relative, absolute) = case.tolerance(1.0);
    let room = Room::new(rows, inputs, outputs);
    // Two products use the same workspace, so the first must leave it ready for the second.
    for _ in 0..2 {
        let got = case.run(|p| gemv(&DEVICE, on_device.view(elem), p, &room.workspace()).unwrap());
        assert_close(&case.name("gemv"), &got, &want, relative, absolute);
        room.assert_counters_are_zero();
    }
    let got = case.run(|p| gemv_plain(&DEVICE, on_device.view(elem), p).unwrap());
    assert_close(&case.name("plain"), &got, &want, relative, absolute);
}

#[test]
fn random_shapes_match_the_reference() {
    for_seeds(16, |rng| {
        let elem = rng.pick(&ACTIVATIONS);
        let rows = rng.pick(&[0, 1, 2, 7, 8, 9, 16, 17, 35]);
        let inputs = rng.pick(&[8, 24, 64, 100, 328, 512, 777, 1032]);
        let outputs = rng.pick(&[1, 7, 16, 100, 136, 260]);
        check(rng, elem, rows, inputs, outputs);
    });
}

/// One slice has all of k, so that no slices are added up.
#[test]
fn one_slice_matches_the_reference() {
    for elem in [Elem::F16, Elem::BF16] {
        for_seeds(2, |rng| check(rng, elem, 3, 200, 150));
    }
}

/// A slice of 1536 k of 16 rows is 48 KiB, which is more than a kernel with static shared memory
/// may have without asking the driver. Slices of Qwen3-8B's `down_proj` are as long.
#[test]
fn a_slice_of_48_kib_can_be_launched() {
    let (elem, rows, inputs, outputs) = (Elem::BF16, 16, 1536, 32_768);
    let weight = DEVICE.allocate(elem, inputs * outputs).unwrap();
    DEVICE.fill(weight.view(elem), 0).unwrap();
    let case = Case { bias: Some(vec![1.5; outputs]), ..Case::zeros(elem, rows, inputs, outputs) };
    let room = Room::new(rows, inputs, outputs);
    let got = case.run(|p| gemv(&DEVICE, weight.view(elem), p, &room.workspace()).unwrap());
    assert!(got.iter().all(|&value| value == 1.5));
}

/// A row has the same bits alone and with others, in blocks of 8 rows and of 16.
#[test]
fn rows_do_not_depend_on_their_number() {
    for_seeds(2, |rng| {
        let (elem, inputs, outputs) = (rng.pick(&[Elem::F16, Elem::BF16]), 600, 144);
        let all = Case::random(rng, elem, 19, inputs, outputs);
        let weight = put(elem, &rng.values(elem, outputs * inputs));
        let run = |case: &Case| {
            let room = Room::new(case.rows, inputs, outputs);
            case.run(|p| gemv(&DEVICE, weight.view(elem), p, &room.workspace()).unwrap())
        };
        let whole = run(&all);
        for rows in [1, 3, 8, 11, 16] {
            assert_eq!(
                run(&all.first(rows)),
                whole[..rows * outputs],
                "{}",
                all.name(&format!("first {rows}"))
            );
        }
    });
}

/// Memory after a row of x or of the weight has no influence, even if it is NaN.
#[test]
fn memory_after_a_row_has_no_influence() {
    let (elem, inputs, outputs) = (Elem::BF16, 40, 16);
    let mut rng = Rng(5);
    let case = Case::random(&mut rng, elem, 1, inputs, outputs);
    let mut weight = rng.values(elem, outputs * inputs);
    let want = case.reference(|o, i| f64::from(weight[o * inputs + i]));
    weight.extend([f32::NAN; 64]);
    let weight = put(elem, &weight);
    let room = Room::new(1, inputs, outputs);
    let got = case.run(|p| gemv(&DEVICE, weight.view(elem), p, &room.workspace()).unwrap());
    assert_close("a row's end", &got, &want, precision(elem) * 1.01, 1e-5);
}

#[test]
fn wrong_shapes_are_refused() {
    let (x, w, out) = (garbage(Elem::BF16, 1024), garbage(Elem::BF16, 1024 * 16), garbage(Elem::BF16, 16));
    let room = Room::new(1, 1024, 16);
    let p = ProductOperands {
        rows: 1,
        inputs: 1024,
        outputs: 16,
        x: x.view(Elem::BF16),
        bias: None,
        out: out.view(Elem::BF16),
        out_stride: 16,
    };
    let ok = |p: &ProductOperands<'_>| gemv(&DEVICE, w.view(Elem::BF16), p, &room.workspace());
    assert!(ok(&p).is_ok());
    let refused = |p: ProductOperands<'_>| ok(&p).unwrap_err().to_string();
    assert!(refused(ProductOperands { rows: 2, ..p }).contains("x has 1024 elements, not 2048"));
    assert!(refused(ProductOperands { outputs: 32, ..p }).contains("32 outputs in rows of 16"));
    let wide = ProductOperands { outputs: 32, out_stride: 32, ..p };
    assert!(refused(wide).contains("out has 16 elements, not 32"));
    assert!(refused(ProductOperands { inputs: 0, ..p }).contains("a weight of 16 by 0"));
    assert!(refused(ProductOperands { out: x.view(Elem::F16), ..p }).contains("out holds F16"));
    let small = ProductWorkspace { partials: room.workspace().partials.slice(0..8), ..room.workspace() };
    let error = gemv(&DEVICE, w.view(Elem::BF16), &p, &small).unwrap_err().to_string();
    assert!(error.contains("partials has 8 elements"), "{error}");
}
