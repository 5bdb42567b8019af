//! The division of a product among the threads.

use super::super::gemm::BLOCK_PANELS;
use super::super::memory::Shared;
use super::super::outputs::Outputs;
use super::super::tile::Tiles;
use super::super::{Buf, Cpu, lock};
use super::activations::{QuantizeTile, RowLayout};
use super::pack::IntPanels;
use super::product::Product;

/// Columns of a tile of rows that are quantized as one piece of work.
const PIECE: usize = 1024;

impl Cpu {
    /// `out = x · wᵀ + bias` over the first `n` rows, at least one.
    pub(crate) fn int_linear(&self, n: usize, x: &Buf, w: &IntPanels, outputs: Outputs<'_>) {
        let cols = x.cols;
        let packed_cols = w.format.packed_cols(cols);
        let on_unit = self.has_unit_for(n, w.format.activation_cols(packed_cols));
        // The tile unit reads single rows. Other kernels have two accumulators for each row and
        // vector, which must fit the registers.
        let height = if on_unit { 1 } else { self.target.tile_rows() / 2 };
        let layout = RowLayout::new(w.format, packed_cols, Tiles::new(n, height));
        let mut buffer = lock(&self.quantized);
        assert!(
            n * layout.stride() <= buffer.bytes.len() && n * layout.groups() <= buffer.scales.len(),
            "more rows than any buffer has"
        );
        let (bytes, scales) = (Shared::new(&mut buffer.bytes), Shared::new(&mut buffer.scales));
        let (x, order) = (x.rows(n), w.order.as_deref());
        let at_once = (PIECE / layout.group).max(1);
        self.for_tiles(layout.tiles, layout.groups(), at_once, n * cols, |tile, groups| {
            let quantize = QuantizeTile { x, inputs: cols, layout, order, tile, groups, bytes, scales };
            self.target.dispatch(quantize);
        });
        self.for_panels(outputs.cols, BLOCK_PANELS, n * cols * outputs.cols, |panels, thread| {
            let (x, scales) = (bytes.as_ptr().cast_const(), scales.as_ptr().cast_const());
            let product = Product { n, layout, x, scales, w, outputs, panels };
            if on_unit { self.on_unit(&product, thread) } else { product.compute(self.target) }
        });
    }

    /// Returns whether the tile unit computes products of `n` rows whose groups have `group`
    /// columns.
    #[cfg(target_arch = "x86_64")]
    fn has_unit_for(&self, n: usize, group: usize) -> bool {
        self.target.has_tiles() && super::tiles::suit(n, group)
    }

    /// Computes a task on the tile unit, with the working memory of a thread.
    #[cfg(target_arch = "x86_64")]
    fn on_unit(&self, product: &Product<'_>, thread: usize) {
        let (guard, scratch) = self.scratch(thread);
        // SAFETY: only a machine with the unit comes here, whose instruction set includes the
        // others, and the working memory is this thread's.
        unsafe { product.compute_on_tiles(scratch, guard.len()) };
    }

    /// Returns false: there is no tile unit.
    #[cfg(not(target_arch = "x86_64"))]
    fn has_unit_for(&self, _: usize, _: usize) -> bool {
        false
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn on_unit(&self, _: &Product<'_>, _: usize) {
        unreachable!("a product on a tile unit that this machine lacks; this is a bug")
    }
}
