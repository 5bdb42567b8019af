//! The division of a product among the threads.

use millrace_numbers::formats::ggml::SUPER_BLOCK;

use super::super::gemm::BLOCK_PANELS;
use super::super::memory::Shared;
use super::super::outputs::Outputs;
use super::super::tile::Tiles;
use super::super::{Buf, Cpu, lock};
use super::activations::{QuantizeTile, row_bytes};
use super::pack::KPanels;
use super::product::Product;

/// Super-blocks of a tile of rows that are quantized as one piece of work.
const PIECE: usize = 4;

impl Cpu {
    /// `out = x · wᵀ + bias` over the first `n` rows, at least one.
    pub(crate) fn super_block_linear(&self, n: usize, x: &Buf, w: &KPanels, outputs: Outputs<'_>) {
        let cols = x.cols;
        let blocks = cols / SUPER_BLOCK;
        let mut buffer = lock(&self.super_blocks);
        assert!(n * row_bytes(cols) <= buffer.bytes.len(), "more rows than any buffer has");
        let (x, to) = (x.rows(n), Shared::new(&mut buffer.bytes));
        // Two accumulators for each row and vector must fit the registers.
        let tiles = Tiles::new(n, self.target.tile_rows() / 2);
        self.for_tiles(tiles, blocks, PIECE, n * cols, |tile, blocks| {
            let rows = tiles.rows(tile);
            self.target.dispatch(QuantizeTile { format: w.format, x, cols, rows, blocks, to });
        });
        self.for_panels(outputs.cols, BLOCK_PANELS, n * cols * outputs.cols, |panels, _| {
            self.target.dispatch(Product { n, blocks, x: to.as_ptr(), tiles, w, outputs, panels });
        });
    }
}
