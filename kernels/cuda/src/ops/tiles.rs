//! The shared memory of the kernels on tiles of 128 rows, which exist with four stages and, for
//! wide weights, with three.

use super::shared::tile_h::{FEW_TILE_STAGES, TILE_STAGES, tile_shared_bytes};
use crate::Device;

/// How many stages a kernel on tiles has on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TileStages {
    /// Whether the device needs the kernel with fewer stages, because its blocks have too little
    /// shared memory for the other one.
    pub(super) is_few: bool,
    /// Bytes of dynamic shared memory of a block.
    pub(super) shared: usize,
}

impl TileStages {
    /// The stages for weights of `weight_bits` bits and tiles of `rows` rows. The result of a
    /// product does not depend on them.
    pub(super) fn of(device: &Device, weight_bits: usize, rows: usize) -> TileStages {
        TileStages::within(device.properties().shared_per_block, weight_bits, rows)
    }

    fn within(shared_per_block: usize, weight_bits: usize, rows: usize) -> TileStages {
        let is_few = tile_shared_bytes(weight_bits, rows, TILE_STAGES) > shared_per_block;
        let stages = if is_few { FEW_TILE_STAGES } else { TILE_STAGES };
        TileStages { is_few, shared: tile_shared_bytes(weight_bits, rows, stages) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::shared::tile_h::{NARROW_ROWS, WIDE_ROWS};
    use super::*;

    /// Blocks have 99 KiB on Ada and smaller Ampere GPUs, and 163 KiB on an A100.
    #[test]
    fn every_tile_fits_the_smallest_and_the_largest_gpu() {
        for (bits, rows) in [4, 8, 16].into_iter().flat_map(|bits| [(bits, WIDE_ROWS), (bits, NARROW_ROWS)]) {
            let small = TileStages::within(99 << 10, bits, rows);
            assert!(small.shared <= 99 << 10, "{bits} bits, {rows} rows: {}", small.shared);
            assert_eq!(small.is_few, bits >= 8 && rows == WIDE_ROWS, "{bits} bits, {rows} rows");
            assert!(!TileStages::within(163 << 10, bits, rows).is_few);
        }
    }
}
