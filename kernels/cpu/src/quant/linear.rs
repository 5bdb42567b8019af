//! The division of a product among the threads.

use super::super::gemm::BLOCK_PANELS;
use super::super::memory::Shared;
use super::super::outputs::Outputs;
use super::super::{Buf, Cpu, lock};
use super::activations::{QuantizeRow, RowLayout};
use super::pack::IntPanels;
use super::product::Product;

impl Cpu {
    /// `out = x · wᵀ + bias` over the first `n` rows, at least one.
    pub(crate) fn int_linear(&self, n: usize, x: &Buf, w: &IntPanels, bias: Option<&[f32]>, out: &mut Buf) {
        let cols = x.cols;
        let layout = RowLayout::new(w.format, w.format.packed_cols(cols));
        let mut buffer = lock(&self.quantized);
        assert!(
            n * layout.stride() <= buffer.bytes.len() && n * layout.groups() <= buffer.scales.len(),
            "more rows than any buffer has"
        );
        let x = x.rows(n);
        let (bytes, scales) = (Shared::new(&mut buffer.bytes), Shared::new(&mut buffer.scales));
        let order = w.order.as_deref();
        self.for_rows(n, cols, |row| {
            let x = &x[row * cols..(row + 1) * cols];
            self.target.dispatch(QuantizeRow { x, layout, order, row, bytes, scales });
        });
        let outputs = Outputs { out: Shared::new(out.rows_mut(n)), cols: out.cols, bias };
        self.for_panels(outputs.cols, BLOCK_PANELS, n * cols * outputs.cols, |panels, thread| {
            let (x, scales) = (bytes.as_ptr().cast_const(), scales.as_ptr().cast_const());
            self.int_product(&Product { n, layout, x, scales, w, outputs, panels }, thread);
        });
    }

    /// Computes a task on a thread.
    fn int_product(&self, product: &Product<'_>, thread: usize) {
        #[cfg(target_arch = "x86_64")]
        if self.target.has_tiles() && product.suits_tiles() {
            let (guard, scratch) = self.scratch(thread);
            // SAFETY: the instruction set of this backend includes the others, and the working
            // memory is this thread's.
            unsafe { product.compute_on_tiles(scratch, guard.len()) };
            return;
        }
        let _ = thread;
        product.compute(self.target);
    }
}
