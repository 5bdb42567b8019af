//! The division of a product among the threads.

use super::super::Cpu;
#[cfg(target_arch = "x86_64")]
use super::super::amx;
use super::super::gemm::BLOCK_PANELS;
#[cfg(target_arch = "x86_64")]
use super::super::inputs::GROUP;
use super::super::inputs::{InputWords, Inputs};
use super::super::outputs::Outputs;
#[cfg(target_arch = "x86_64")]
use super::on_tiles::OnTiles;
use super::pack::TablePanels;
use super::product::Product;

impl Cpu {
    /// Computes `x · wᵀ + bias` over the packed rows `inputs`, at least one.
    pub(crate) fn table_linear(
        &self,
        (inputs, words): (Inputs, InputWords),
        w: &TablePanels,
        outputs: Outputs<'_>,
    ) {
        let work = inputs.n * inputs.words * outputs.cols;
        self.for_panels(outputs.cols, BLOCK_PANELS, work, |panels, thread| {
            let (_guard, scratch) = self.scratch(thread);
            let product = Product { inputs, words, w, outputs, panels, scratch };
            #[cfg(target_arch = "x86_64")]
            if self.has_table_tiles(w, words) {
                self.target.dispatch(OnTiles(product));
                return;
            }
            self.target.dispatch(product);
        });
    }

    /// Returns the rows of the largest tile of inputs for a product by codes.
    pub(crate) fn table_rows(&self, w: &TablePanels, words: InputWords) -> usize {
        #[cfg(target_arch = "x86_64")]
        if self.has_table_tiles(w, words) {
            return amx::ROWS;
        }
        let _ = (w, words);
        self.target.tile_rows()
    }

    /// Returns whether a product by codes is computed on a tile unit.
    #[cfg(target_arch = "x86_64")]
    fn has_table_tiles(&self, w: &TablePanels, words: InputWords) -> bool {
        self.target.has_tiles() && words == InputWords::Bf16Pairs && w.layout.has_steps_of(2 * GROUP)
    }
}
