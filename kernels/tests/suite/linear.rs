//! The matrix product and the embedding.

use millrace_kernels::reference::Reference;
use millrace_kernels::{Backend, DType, HostTensor, MatrixFormat, Part};
use proptest::prelude::{ProptestConfig, prop, proptest};

use crate::common::*;

pub(crate) struct Case {
    n: usize,
    cols: usize,
    x: Vec<f32>,
    w: Vec<f32>,
    bias: Option<Vec<f32>>,
    dtype: DType,
}

impl Case {
    pub(crate) fn new(n: usize, cols: usize, out: usize, bias: bool, dtype: DType, seed: u64) -> Case {
        let mut rng = Rng(seed);
        let (x, w) = (rng.values(n * cols), rng.values(out * cols));
        let bias = bias.then(|| rng.values(out));
        Case { n, cols, x, w, bias, dtype }
    }

    pub(crate) fn run<B: Backend>(&self, device: &B) -> Vec<f32> {
        let x = upload(device, &self.x, self.cols);
        let w = matrix(device, &self.w, self.cols, self.dtype);
        let bias = self.bias.as_ref().map(|b| vector(device, b));
        let mut out = device.buf(self.n, self.w.len() / self.cols).unwrap();
        device.linear(self.n, &x, &w, bias.as_ref(), &mut out).unwrap();
        device.read(&out, self.n).unwrap()
    }

    pub(crate) fn row(&self, t: usize) -> Case {
        let x = self.x[t * self.cols..(t + 1) * self.cols].to_vec();
        Case { n: 1, x, w: self.w.clone(), bias: self.bias.clone(), ..*self }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn matches_the_reference(
        n in 1usize..60, cols in 1usize..200, out in 1usize..150, bias: bool, dtype in 0usize..3, seed: u64,
    ) {
        let case = Case::new(n, cols, out, bias, DTYPES[dtype], seed);
        let want = case.run(&Reference);
        for cpu in CPUS.iter() {
            assert_close(&cpu.name(), &case.run(cpu), &want, 3e-6 * (cols as f32).sqrt());
        }
    }

    #[test]
    fn a_row_does_not_see_the_others(
        n in 2usize..80, cols in 500usize..1100, out in 1usize..140, bias: bool, dtype in 0usize..3, seed: u64,
    ) {
        let case = Case::new(n, cols, out, bias, DTYPES[dtype], seed);
        for pair in CPUS.chunks(2) {
            let all = case.run(&pair[0]);
            assert_same_bits(&pair[1].name(), &case.run(&pair[1]), &all);
            for t in [0, n / 2, n - 1] {
                assert_same_bits(&pair[1].name(), &case.row(t).run(&pair[1]), &all[t * out..(t + 1) * out]);
            }
        }
    }

    #[test]
    fn embeds_rows(
        tokens in prop::collection::vec(0u32..70, 1..40), cols in 1usize..80, dtype in 0usize..3, first in 0usize..69,
    ) {
        let table = Rng(1).values(70 * cols);
        let want = embed(&Reference, (&table, 0), cols, DTYPES[dtype], &tokens);
        // A slice of the rows gives those that it has, and zeros for the others.
        let held = first..(first + 20).min(70);
        let slice = (&table[held.start * cols..held.end * cols], first);
        let of_slice = embed(&Reference, slice, cols, DTYPES[dtype], &tokens);
        for (t, token) in tokens.iter().enumerate() {
            let (row, whole) = (&of_slice[t * cols..][..cols], &want[t * cols..][..cols]);
            let is_held = held.contains(&(*token as usize));
            assert!(if is_held { row == whole } else { row.iter().all(|x| *x == 0.0) }, "token {token}");
        }
        for cpu in CPUS.iter() {
            assert_same_bits(&cpu.name(), &embed(cpu, (&table, 0), cols, DTYPES[dtype], &tokens), &want);
            assert_same_bits(&cpu.name(), &embed(cpu, slice, cols, DTYPES[dtype], &tokens), &of_slice);
        }
    }
}

pub(crate) fn embed<B: Backend>(
    device: &B,
    (table, first): (&[f32], usize),
    cols: usize,
    dtype: DType,
    tokens: &[u32],
) -> Vec<f32> {
    let table = matrix(device, table, cols, dtype);
    let n = tokens.len();
    let step = begun(device, tokens, &[]);
    let mut out = device.buf(n, cols).unwrap();
    device.embed(&step, &table, first, &mut out).unwrap();
    device.read(&out, n).unwrap()
}

/// Parts are stacked, cut out of their tensors, and widened from any type.
#[test]
fn parts_make_one_matrix() {
    let mut rng = Rng(7);
    let (a, b) = (rng.values(5 * 8), rng.values(4 * 6));
    let half: Vec<u8> = b.iter().flat_map(|v| half::f16::from_f32(*v).to_le_bytes()).collect();
    let full = bytes(&a);
    let parts = [
        Part { tensor: tensor(&full, 5, 8), rows: 1..4, cols: 2..7 },
        Part {
            tensor: HostTensor { dtype: DType::F16, rows: 4, cols: 6, bytes: &half },
            rows: 0..2,
            cols: 1..6,
        },
    ];
    let mut want = Vec::new();
    want.extend((1..4).flat_map(|r| a[r * 8 + 2..r * 8 + 7].to_vec()));
    want.extend(
        (0..2).flat_map(|r| b[r * 6 + 1..r * 6 + 6].iter().map(|v| DType::F16.round(*v)).collect::<Vec<_>>()),
    );
    let identity: Vec<f32> = (0..25).map(|i| if i % 6 == 0 { 1.0 } else { 0.0 }).collect();
    fn columns<B: Backend>(device: &B, parts: &[Part<'_>], identity: &[f32]) -> Vec<f32> {
        let w = device.matrix(parts, DType::F32.into()).unwrap();
        let x = upload(device, identity, 5);
        let mut out = device.buf(5, 5).unwrap();
        device.linear(5, &x, &w, None, &mut out).unwrap();
        device.read(&out, 5).unwrap() // the transpose
    }
    let transposed: Vec<f32> = (0..25).map(|i| want[i % 5 * 5 + i / 5]).collect();
    assert_same_bits("reference", &columns(&Reference, &parts, &identity), &transposed);
    for cpu in CPUS.iter() {
        assert_same_bits(&cpu.name(), &columns(cpu, &parts, &identity), &transposed);
    }
}

#[test]
fn wrong_shapes_are_refused() {
    let data = bytes(&[0.0; 12]);
    let whole = Part::whole(tensor(&data, 3, 4));
    let narrow = Part { cols: 0..3, ..whole.clone() };
    let outside = Part { rows: 1..4, ..whole.clone() };
    let truncated = Part::whole(tensor(&data[..44], 3, 4));
    let huge = Part::whole(tensor(&data, usize::MAX, 4));
    let cpu = &CPUS[0];
    for parts in [vec![], vec![whole.clone(), narrow], vec![outside], vec![truncated], vec![huge]] {
        let format = DType::F32.into();
        assert!(cpu.matrix(&parts, format).is_err() && Reference.matrix(&parts, format).is_err());
    }
    assert!(cpu.matrix(&[whole.clone(), whole.clone()], DType::BF16.into()).is_ok());
    assert!(cpu.matrix(&[whole], MatrixFormat::Fp8).unwrap_err().to_string().contains("need a card"));
}
