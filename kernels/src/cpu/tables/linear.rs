//! The division of a product among the threads.

use super::super::gemm::BLOCK_PANELS;
use super::super::inputs::{Inputs, Words};
use super::super::memory::Shared;
use super::super::outputs::Outputs;
use super::super::{Buf, Cpu};
use super::pack::TablePanels;
use super::product::Product;

impl Cpu {
    /// `out = x · wᵀ + bias` over the packed rows `inputs`, at least one.
    pub(in crate::cpu) fn table_linear(
        &self,
        (inputs, words): (Inputs, Words),
        w: &TablePanels,
        bias: Option<&[f32]>,
        out: &mut Buf,
    ) {
        let outputs = Outputs { out: Shared::new(out.rows_mut(inputs.n)), cols: out.cols, bias };
        let work = inputs.n * inputs.words * outputs.cols;
        self.for_panels(outputs.cols, BLOCK_PANELS, work, |panels, thread| {
            let (_guard, scratch) = self.scratch(thread);
            self.target.dispatch(Product { inputs, words, w, outputs, panels, scratch });
        });
    }
}
