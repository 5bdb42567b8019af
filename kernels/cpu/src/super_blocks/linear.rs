//! The division of a product among the threads.

use millrace_numbers::formats::ggml::SUPER_BLOCK;

use super::super::gemm::BLOCK_PANELS;
use super::super::memory::Shared;
use super::super::outputs::Outputs;
use super::super::{Buf, Cpu, lock};
use super::activations::QuantizeRow;
use super::pack::KPanels;
use super::product::Product;

impl Cpu {
    /// `out = x · wᵀ + bias` over the first `n` rows, at least one.
    pub(crate) fn super_block_linear(
        &self,
        n: usize,
        x: &Buf,
        w: &KPanels,
        bias: Option<&[f32]>,
        out: &mut Buf,
    ) {
        let cols = x.cols;
        let blocks = cols / SUPER_BLOCK;
        let mut buffer = lock(&self.super_blocks);
        assert!(n * blocks <= buffer.blocks.len(), "more rows than any buffer has");
        let x = x.rows(n);
        let quantized = Shared::new(&mut buffer.blocks);
        self.for_rows(n, cols, |row| {
            let x = &x[row * cols..(row + 1) * cols];
            // SAFETY: the blocks of the row are inside the buffer, and this task alone uses them.
            let to = Shared::new(unsafe { quantized.slice(row * blocks, blocks) });
            self.target.dispatch(QuantizeRow { format: w.format, x, to });
        });
        let outputs = Outputs { out: Shared::new(out.rows_mut(n)), cols: out.cols, bias };
        self.for_panels(outputs.cols, BLOCK_PANELS, n * cols * outputs.cols, |panels, _| {
            let x = quantized.as_ptr().cast_const();
            self.target.dispatch(Product { n, blocks, x, w, outputs, panels });
        });
    }
}
