//! The division of a product among the threads.

use half::bf16;

use super::super::inputs::InputWords;
use super::super::matrix::Panels;
use super::super::memory::Shared;
use super::super::{Buf, Cpu, lock};
use super::product::Bf16Product;
use super::unit::ROWS;

/// Smallest number of panels in a task: the inputs are read from the L2 cache once for all of them.
const TASK_PANELS: usize = 8;

impl Cpu {
    /// `out = x · wᵀ + bias` over the first `n` rows, at least one, on the tile unit.
    pub(crate) fn tile_linear(
        &self,
        n: usize,
        x: &Buf,
        weights: &Panels<bf16>,
        bias: Option<&[f32]>,
        out: &mut Buf,
    ) {
        let (cols, outputs) = (x.cols, out.cols);
        let mut packed = lock(&self.inputs);
        let inputs = self.pack_inputs(n, x, InputWords::Bf16Pairs, ROWS, &mut packed);
        let out = Shared::new(out.rows_mut(n));
        self.for_panels(outputs, TASK_PANELS, n * cols * outputs, |panels, _| {
            let product = Bf16Product { inputs, weights: weights.start(), bias, out, outputs, panels };
            // SAFETY: the instruction set of this backend includes the tile unit. The operands live
            // until all tasks have ended, and each task has panels of its own.
            unsafe { product.compute() };
        });
    }
}
