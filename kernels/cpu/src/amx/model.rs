//! A model of the tile unit, for machines without it, and tests of the products on both.

use half::bf16;

use super::super::inputs::{GROUP, Inputs};
use super::super::memory::Shared;
use super::super::tile::Tiles;
use super::block::{Block, Unit};
use super::machine::is_available;
use super::product::Bf16Product;
use super::unit::{Amx, ROWS, STEP_BYTES, WIDTH};

/// The unit as Intel's manual describes `TDPBF16PS`: even and odd products of a tile are two
/// chains of multiply-adds, whose sum is added. Denormal numbers, which these tests do not have,
/// are zeros there.
struct Model;

impl Unit for Model {
    unsafe fn multiply_bf16(&mut self, block: &Block) {
        for (tile, height) in block.heights.into_iter().enumerate() {
            for (step, row, out) in (0..block.steps)
                .flat_map(|step| (0..height).flat_map(move |row| (0..WIDTH).map(move |out| (step, row, out))))
            {
                let x = block.inputs[tile].wrapping_add((step * height + row) * 64).cast::<bf16>();
                let w = block.weights.wrapping_add(step * STEP_BYTES).cast::<bf16>();
                let mut chains = [0f32; 2];
                for col in 0..2 * ROWS {
                    // SAFETY: the caller guarantees valid pointers.
                    let (x, w) = unsafe { (*x.add(col), *w.add((col / 2 * WIDTH + out) * 2 + col % 2)) };
                    chains[col % 2] = x.to_f32().mul_add(w.to_f32(), chains[col % 2]);
                }
                let sums = block.sums[tile].wrapping_byte_add(row * block.stride).wrapping_add(out);
                // SAFETY: as above.
                let before = if block.fresh && step == 0 { 0.0 } else { unsafe { *sums } };
                // SAFETY: as above.
                unsafe { *sums = before + (chains[0] + chains[1]) };
            }
        }
    }
}

/// Numbers with few bits, so that products are exact in f32, and some with many.
fn numbers(len: usize, seed: u64) -> Vec<bf16> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        bf16::from_f32((state >> 40) as f32 / (1u64 << 23) as f32 - 1.0)
    };
    (0..len).map(|_| next()).collect()
}

/// A product in the layouts of the unit.
struct Case {
    n: usize,
    cols: usize,
    outputs: usize,
    /// `[n, cols]`.
    x: Vec<bf16>,
    /// `[outputs, cols]`.
    w: Vec<bf16>,
    bias: Option<Vec<f32>>,
}

impl Case {
    fn new(n: usize, cols: usize, outputs: usize) -> Case {
        let bias = (n % 2 == 1).then(|| numbers(outputs, 3).iter().map(|x| x.to_f32()).collect());
        Case { n, cols, outputs, x: numbers(n * cols, 1), w: numbers(outputs * cols, 2), bias }
    }

    fn run(&self, unit: &mut impl Unit) -> Vec<f32> {
        let words = self.cols.div_ceil(2);
        let padded = Inputs::row_words(words);
        let mut inputs = vec![bf16::ZERO; self.n * padded * 2];
        let tiles = Tiles::new(self.n, ROWS);
        for (first, height, row) in (0..tiles.count()).flat_map(|tile| {
            tiles.rows(tile).map(move |row| (tiles.rows(tile).start, tiles.rows(tile).len(), row))
        }) {
            for col in 0..self.cols {
                let (group, rest) = (col / (2 * GROUP), col % (2 * GROUP));
                let at = first * padded * 2 + (group * height + row - first) * 2 * GROUP + rest;
                inputs[at] = self.x[row * self.cols + col];
            }
        }
        let panels = self.outputs.div_ceil(WIDTH);
        let mut weights = vec![bf16::ZERO; panels * words * WIDTH * 2];
        for (out, col) in (0..self.outputs).flat_map(|out| (0..self.cols).map(move |col| (out, col))) {
            let at = (((out / WIDTH) * words + col / 2) * WIDTH + out % WIDTH) * 2 + col % 2;
            weights[at] = self.w[out * self.cols + col];
        }
        // Infinities behind the weights would make NaN of a sum that reads them.
        weights.extend([bf16::INFINITY; STEP_BYTES]);
        let mut out = vec![f32::NAN; self.n * self.outputs];
        let inputs = Inputs { n: self.n, words, x: inputs.as_ptr().cast() };
        for task in 0..panels.div_ceil(3) {
            let product = Bf16Product {
                inputs,
                weights: weights.as_ptr(),
                bias: self.bias.as_deref(),
                out: Shared::new(&mut out),
                outputs: self.outputs,
                panels: task * 3..panels.min((task + 1) * 3),
            };
            // SAFETY: the operands have these shapes, and the tests have a unit of this kind.
            unsafe { product.compute_with(unit) };
        }
        out
    }

    /// The largest difference to sums in f64, in units of the sum of magnitudes.
    fn error(&self, out: &[f32]) -> f64 {
        let mut worst = 0f64;
        for (row, col) in (0..self.n).flat_map(|row| (0..self.outputs).map(move |col| (row, col))) {
            let bias = self.bias.as_ref().map_or(0.0, |bias| f64::from(bias[col]));
            let (mut sum, mut size) = (bias, bias.abs() + 1.0);
            for k in 0..self.cols {
                let product = self.x[row * self.cols + k].to_f64() * self.w[col * self.cols + k].to_f64();
                (sum, size) = (sum + product, size + product.abs());
            }
            worst = worst.max((f64::from(out[row * self.outputs + col]) - sum).abs() / size);
            assert!(!out[row * self.outputs + col].is_nan(), "row {row}, output {col}");
        }
        worst
    }
}

const SHAPES: [(usize, usize, usize); 12] = [
    (1, 32, 32),
    (1, 1, 1),
    (2, 33, 31),
    (5, 62, 40),
    (16, 64, 64),
    (17, 96, 96),
    (31, 100, 33),
    (32, 31, 70),
    (33, 130, 129),
    (48, 1024, 32),
    (50, 1025, 257),
    (65, 2100, 290),
];

#[test]
fn products_equal_sums_in_f64() {
    for (n, cols, outputs) in SHAPES {
        let case = Case::new(n, cols, outputs);
        let error = case.error(&case.run(&mut Model));
        assert!(error < 1e-6, "{n} rows, {cols} columns, {outputs} outputs: {error}");
    }
}

#[test]
fn the_model_and_the_machine_agree_bit_for_bit() {
    if !is_available() {
        println!("this machine has no AMX: only the model of its instruction was run");
        return;
    }
    println!("AMX was run");
    for (n, cols, outputs) in SHAPES {
        let case = Case::new(n, cols, outputs);
        let (model, machine) = (case.run(&mut Model), case.run(&mut Amx::new()));
        assert!(
            model.iter().zip(&machine).all(|(a, b)| a.to_bits() == b.to_bits()),
            "{n} rows, {cols} columns, {outputs} outputs"
        );
    }
}

#[test]
fn a_row_does_not_depend_on_the_others() {
    let all = Case::new(51, 1100, 65);
    let whole = all.run(&mut Model);
    for row in [0, 16, 33, 50] {
        let x = all.x[row * all.cols..(row + 1) * all.cols].to_vec();
        let one = Case { n: 1, x, w: all.w.clone(), bias: all.bias.clone(), ..all };
        assert_eq!(one.run(&mut Model), whole[row * all.outputs..(row + 1) * all.outputs]);
    }
}
