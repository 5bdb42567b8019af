//! Tests of low-rank adapters.

#![allow(clippy::single_range_in_vec_init, reason = "lists of one range are meant")]

use std::ops::Range;

use millrace_backend::reference::Reference;
use millrace_backend::{
    AdapterSpec, AdapterWeights, Backend, LowRankProduct, SamplingParams, SeqRow, StepInput,
};
use millrace_numbers::DType;
use proptest::prelude::{prop_assert, proptest};

use crate::common::*;

/// A row of a step: the number of its tokens, and its adapter.
type AdaptedRow = (usize, Option<usize>);

/// A pool of adapters, and a step of rows that use them.
struct Case {
    spec: AdapterSpec,
    /// The adapters of some places, in the order in which they are loaded.
    loaded: Vec<(usize, AdapterWeights)>,
    rows: Vec<AdaptedRow>,
    /// `[tokens, inputs]`
    x: Vec<f32>,
    /// The results of the matrix, `[tokens, outputs]`.
    out: Vec<f32>,
}

impl Case {
    /// A random case. Some places stay empty, some adapters do not change the matrix, and products
    /// change any outputs.
    fn new(sizes: (usize, usize, usize), rows: usize, dtype: DType, seed: u64) -> Case {
        let ((inputs, outputs, rank), mut rng) = (sizes, Rng(seed));
        let places = 1 + rng.below(5);
        let spec = AdapterSpec { inputs, outputs, places, rank, dtype };
        let mut loaded = Vec::new();
        for place in 0..places {
            // A place may be loaded twice.
            for _ in 0..rng.below(3) {
                loaded.push((place, adapter(&spec, &mut rng)));
            }
        }
        let row = |rng: &mut Rng| {
            let count = if rng.below(3) == 0 { 1 + rng.below(40) } else { 1 };
            (count, (rng.below(4) > 0).then(|| rng.below(places)))
        };
        let rows: Vec<AdaptedRow> = (0..rows).map(|_| row(&mut rng)).collect();
        let n: usize = rows.iter().map(|row| row.0).sum();
        let (x, out) = (rng.values(n * inputs), rng.values(n * outputs));
        Case { spec, loaded, rows, x, out }
    }

    fn tokens(&self) -> usize {
        self.rows.iter().map(|row| row.0).sum()
    }

    /// The adapter of each token.
    fn adapters(&self) -> impl Iterator<Item = Option<usize>> {
        self.rows.iter().flat_map(|&(count, adapter)| std::iter::repeat_n(adapter, count))
    }

    /// The pool of the case on a device.
    fn pool<B: Backend>(&self, device: &B) -> B::Adapters {
        let mut pool = device.adapters(&self.spec).unwrap();
        for (place, weights) in &self.loaded {
            device.load_adapter(&mut pool, *place, weights).unwrap();
        }
        pool
    }

    /// The results of a step of these `rows`, whose first token is `first` in the case.
    fn adapt<B: Backend>(
        &self,
        device: &B,
        pool: &B::Adapters,
        first: usize,
        rows: &[AdaptedRow],
    ) -> Vec<f32> {
        let &AdapterSpec { inputs, outputs, rank, .. } = &self.spec;
        let n: usize = rows.iter().map(|row| row.0).sum();
        let tokens = vec![0; n];
        let blocks = vec![0; n.div_ceil(16)];
        let mut queue = device.queue(&step_size(n, rows.len(), n)).unwrap();
        let rows: Vec<SeqRow<'_>> = (0..)
            .zip(rows)
            .map(|(slot, &(count, adapter))| SeqRow::prefill(slot, 0..count, &blocks).with_adapter(adapter))
            .collect();
        for row in &rows {
            device.admit(&mut queue, row.slot, &tokens[..row.count], &SamplingParams::default()).unwrap();
        }
        let step = open(device, &mut queue, &StepInput { tokens: &tokens, rows: &rows, ..StepInput::EMPTY });
        let x = upload(device, &self.x[first * inputs..][..n * inputs], inputs);
        let mut out = upload(device, &self.out[first * outputs..][..n * outputs], outputs);
        // The contents of working memory do not matter.
        let mut mid = upload(device, &vec![f32::NAN; n * (rank + 1)], rank + 1);
        device.adapt(&step, &x, pool, &mut mid, &mut out).unwrap();
        device.read(&out, n).unwrap()
    }

    /// The results of the whole step.
    fn adapted<B: Backend>(&self, device: &B) -> Vec<f32> {
        self.adapt(device, &self.pool(device), 0, &self.rows)
    }
}

/// A random adapter, whose ranks are at most the pool's.
fn adapter(spec: &AdapterSpec, rng: &mut Rng) -> AdapterWeights {
    let (mut left, mut products) = (spec.rank, Vec::new());
    for _ in 0..rng.below(4) {
        if left == 0 {
            break;
        }
        let rank = 1 + rng.below(left);
        left -= rank;
        products.push(product(rank, some_rows(spec.outputs, rng), spec.inputs, rng));
    }
    AdapterWeights { products }
}

fn product(rank: usize, rows: Vec<Range<usize>>, inputs: usize, rng: &mut Rng) -> LowRankProduct {
    let count: usize = rows.iter().map(Range::len).sum();
    LowRankProduct { rank, down: rng.values(rank * inputs), up: rng.values(count * rank), rows }
}

/// Ranges of outputs that do not overlap, in any order.
fn some_rows(outputs: usize, rng: &mut Rng) -> Vec<Range<usize>> {
    let mut cuts: Vec<usize> = (0..rng.below(8)).map(|_| rng.below(outputs + 1)).collect();
    cuts.extend([0, outputs]);
    cuts.sort_unstable();
    let ranges: Vec<Range<usize>> = cuts.windows(2).map(|pair| pair[0]..pair[1]).collect();
    let order = rng.shuffled(ranges.len());
    order.into_iter().filter(|_| rng.below(3) > 0).map(|i| ranges[i as usize].clone()).collect()
}

proptest! {
    #![proptest_config(cases(64))]

    #[test]
    fn adapters_match_the_reference(
        inputs in 1usize..300, outputs in 1usize..700, rank in 1usize..65, rows in 1usize..9,
        dtype in 0usize..3, seed: u64,
    ) {
        let case = Case::new((inputs, outputs, rank), rows, DTYPES[dtype], seed);
        let want = case.adapted(&Reference);
        for cpu in CPUS.iter() {
            assert_close(&cpu.name(), &case.adapted(cpu), &want, 1e-5);
        }
    }

    /// A token's outputs are the same whether its step has other tokens and adapters or not, with
    /// any number of threads.
    #[test]
    fn a_token_does_not_depend_on_the_others(
        inputs in 1usize..500, outputs in 1usize..1200, rank in 1usize..65, rows in 2usize..9,
        dtype in 0usize..3, seed: u64,
    ) {
        let case = Case::new((inputs, outputs, rank), rows, DTYPES[dtype], seed);
        for pair in CPUS.chunks(2) {
            let (pool, of_threads) = (case.pool(&pair[0]), case.pool(&pair[1]));
            let want = case.adapt(&pair[0], &pool, 0, &case.rows);
            assert_same_bits("threads", &case.adapt(&pair[1], &of_threads, 0, &case.rows), &want);
            let mut first = 0;
            for &(count, adapter) in &case.rows {
                let alone = case.adapt(&pair[1], &of_threads, first, &[(count, adapter)]);
                assert_same_bits("row alone", &alone, &want[first * outputs..][..alone.len()]);
                first += count;
            }
            // The last row, cut into two chunks that share a step with its beginning.
            let &(count, adapter) = case.rows.last().unwrap();
            let chunks = [(count - count / 2, adapter), (count / 2, adapter)];
            let chunks = &chunks[..if count > 1 { 2 } else { 1 }];
            let first = case.tokens() - count;
            assert_same_bits("chunks", &case.adapt(&pair[0], &pool, first, chunks), &want[first * outputs..]);
        }
    }

    /// Tokens without an adapter, and outputs that no product changes, stay as they are.
    #[test]
    fn nothing_else_changes(
        inputs in 1usize..100, outputs in 1usize..300, rank in 1usize..20, rows in 1usize..6, seed: u64,
    ) {
        let case = Case::new((inputs, outputs, rank), rows, DType::BF16, seed);
        let changes = |adapter: Option<usize>, output: usize| {
            let last = case.loaded.iter().rev().find(|(place, _)| Some(*place) == adapter);
            let products = last.map_or(&[][..], |(_, weights)| &weights.products);
            products.iter().any(|product| product.rows.iter().any(|rows| rows.contains(&output)))
        };
        for cpu in CPUS.iter() {
            let got = case.adapted(cpu);
            for (t, adapter) in case.adapters().enumerate() {
                for output in 0..outputs {
                    let at = t * outputs + output;
                    let same = got[at].to_bits() == case.out[at].to_bits();
                    prop_assert!(same || changes(adapter, output), "{}: token {t}, {output}", cpu.name());
                }
            }
        }
    }
}

/// An adapter has the same effect as a matrix that contains the product of its two matrices.
#[test]
fn an_adapter_equals_a_merged_matrix() {
    let (inputs, outputs, rank) = (70, 45, 6);
    let mut rng = Rng(11);
    let mut merged = rng.values(outputs * inputs);
    let base = merged.clone();
    let products =
        vec![product(4, vec![20..45, 3..11], inputs, &mut rng), product(2, vec![0..3], inputs, &mut rng)];
    for LowRankProduct { rank, down, up, rows } in &products {
        for (o, up) in rows.iter().cloned().flatten().zip(up.chunks_exact(*rank)) {
            for i in 0..inputs {
                let change: f32 = (0..*rank).map(|j| up[j] * down[j * inputs + i]).sum();
                merged[o * inputs + i] += change;
            }
        }
    }
    let x = rng.values(3 * inputs);
    fn results<B: Backend>(device: &B, weights: &[f32], x: &[f32], inputs: usize) -> Vec<f32> {
        let w = matrix(device, weights, inputs, DType::F32);
        let n = x.len() / inputs;
        let mut out = device.buf(n, weights.len() / inputs).unwrap();
        device.linear(n, &upload(device, x, inputs), &w, None, &mut out).unwrap();
        device.read(&out, n).unwrap()
    }
    let (plain, want) = (results(&Reference, &base, &x, inputs), results(&Reference, &merged, &x, inputs));
    assert!(plain.iter().zip(&want).any(|(a, b)| (a - b).abs() > 0.1), "the adapter changes nothing");
    let spec = AdapterSpec { inputs, outputs, places: 1, rank, dtype: DType::F32 };
    let loaded = vec![(0, AdapterWeights { products })];
    let case = Case { spec, loaded, rows: vec![(3, Some(0))], x, out: plain };
    assert_close("reference", &case.adapted(&Reference), &want, 2e-6);
    for cpu in CPUS.iter() {
        assert_close(&cpu.name(), &case.adapted(cpu), &want, 4e-6);
    }
}

/// Numbers are rounded to the type of the pool, and a product is added to the outputs in the order
/// of its ranges.
#[test]
fn adapters_have_the_values_of_their_definition() {
    let spec = AdapterSpec { inputs: 2, outputs: 4, places: 3, rank: 2, dtype: DType::BF16 };
    // 1.001 is 1 in bf16.
    let first =
        LowRankProduct { rank: 1, down: vec![1.001, 2.0], up: vec![10.0, 20.0], rows: vec![3..4, 0..1] };
    let second = LowRankProduct { rank: 1, down: vec![0.0, -1.0], up: vec![0.5, 0.25], rows: vec![0..2] };
    let one = AdapterWeights { products: vec![first, second.clone()] };
    let other = AdapterWeights { products: vec![second] };
    let case = Case {
        spec,
        loaded: vec![(0, other.clone()), (0, one), (2, other)],
        rows: vec![(1, Some(2)), (1, None), (1, Some(0)), (1, Some(1))],
        x: vec![3.0, 4.0, 3.0, 4.0, 3.0, 4.0, 3.0, 4.0],
        out: vec![1.0; 16],
    };
    let plain = [1.0; 4];
    let want = [[1.0 - 2.0, 1.0 - 1.0, 1.0, 1.0], plain, [1.0 + 220.0 - 2.0, 0.0, 1.0, 1.0 + 110.0], plain];
    assert_eq!(case.adapted(&Reference), want.concat());
    for cpu in CPUS.iter() {
        assert_eq!(case.adapted(cpu), want.concat(), "{}", cpu.name());
    }
}

#[test]
fn adapters_that_do_not_fit_are_errors() {
    fn check<B: Backend>(device: &B) {
        let spec = AdapterSpec { inputs: 4, outputs: 6, places: 2, rank: 3, dtype: DType::F16 };
        let mut pool = device.adapters(&spec).unwrap();
        let fitting = AdapterWeights { products: vec![product(3, vec![1..6], 4, &mut Rng(1))] };
        device.load_adapter(&mut pool, 1, &fitting).unwrap();
        let narrow = AdapterWeights { products: vec![product(3, vec![1..6], 3, &mut Rng(1))] };
        let outside = AdapterWeights { products: vec![product(1, vec![1..7], 4, &mut Rng(1))] };
        let high = AdapterWeights { products: vec![product(4, vec![1..6], 4, &mut Rng(1))] };
        for (place, weights) in [(2, &fitting), (0, &narrow), (0, &outside), (0, &high)] {
            assert!(
                device.load_adapter(&mut pool, place, weights).is_err(),
                "{}: {weights:?}",
                device.name()
            );
        }
    }
    check(&Reference);
    CPUS.iter().for_each(check);
}
