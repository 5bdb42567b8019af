//! The division of a product among the threads.

use super::super::gemm::BLOCK_PANELS;
use super::super::inputs::{Inputs, Words};
use super::super::memory::Shared;
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
        let outputs = out.cols;
        let out = Shared::new(out.rows_mut(inputs.n));
        let panels = outputs.div_ceil(self.target.panel_width());
        // Several tasks per thread balance the load when other processes run.
        let at_once = (panels / (8 * self.threads())).next_multiple_of(BLOCK_PANELS).max(BLOCK_PANELS);
        let at_once = at_once.min(panels.div_ceil(self.threads())).max(1);
        let work = inputs.n * inputs.words * outputs;
        self.parallel(panels.div_ceil(at_once), work, |task, thread| {
            let (_guard, scratch) = self.scratch(thread);
            let panels = task * at_once..panels.min((task + 1) * at_once);
            self.target.dispatch(Product { inputs, words, w, bias, out, outputs, panels, scratch });
        });
    }
}
