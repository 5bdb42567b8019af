//! The division of a product among the threads.

use super::super::gemm::BLOCK_PANELS;
use super::super::memory::Shared;
use super::super::{Buf, Cpu, lock};
use super::activations::{QuantizeRows, RowLayout};
use super::pack::IntPanels;
use super::product::Product;

impl Cpu {
    /// `out = x · wᵀ + bias` over the first `n` rows, at least one.
    pub(in crate::cpu) fn int_linear(
        &self,
        n: usize,
        x: &Buf,
        w: &IntPanels,
        bias: Option<&[f32]>,
        out: &mut Buf,
    ) {
        let (cols, outputs) = (x.cols, out.cols);
        let layout = RowLayout::new(w.format, cols);
        let mut buffer = lock(&self.quantized);
        assert!(
            n * layout.stride() <= buffer.bytes.len() && n * layout.groups() <= buffer.scales.len(),
            "more rows than any buffer has"
        );
        let x = x.rows(n);
        let (bytes, scales) = (Shared::new(&mut buffer.bytes), Shared::new(&mut buffer.scales));
        let order = w.order.as_deref();
        self.for_rows(n, cols, |row| {
            self.target.dispatch(QuantizeRows { x, layout, order, row, bytes, scales });
        });
        let out = Shared::new(out.rows_mut(n));
        let panels = outputs.div_ceil(self.target.panel_width());
        // Several tasks per thread balance the load when other processes run.
        let at_once = (panels / (8 * self.threads())).next_multiple_of(BLOCK_PANELS).max(BLOCK_PANELS);
        let at_once = at_once.min(panels.div_ceil(self.threads())).max(1);
        self.parallel(panels.div_ceil(at_once), n * cols * outputs, |task, thread| {
            let panels = task * at_once..panels.min((task + 1) * at_once);
            let (x, scales) = (bytes.as_ptr().cast_const(), scales.as_ptr().cast_const());
            self.int_product(&Product { n, layout, x, scales, w, bias, out, outputs, panels }, thread);
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
