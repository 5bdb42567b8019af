//! The division of a product among the threads.

use super::super::Cpu;
use super::super::gemm::BLOCK_PANELS;
use super::super::inputs::{Inputs, Words};
use super::super::outputs::Outputs;
use super::pack::TablePanels;
use super::product::Product;

impl Cpu {
    /// Computes `x · wᵀ + bias` over the packed rows `inputs`, at least one.
    pub(in crate::cpu) fn table_linear(
        &self,
        (inputs, words): (Inputs, Words),
        w: &TablePanels,
        outputs: Outputs<'_>,
    ) {
        let work = inputs.n * inputs.words * outputs.cols;
        self.for_panels(outputs.cols, BLOCK_PANELS, work, |panels, thread| {
            let (_guard, scratch) = self.scratch(thread);
            self.target.dispatch(Product { inputs, words, w, outputs, panels, scratch });
        });
    }
}
