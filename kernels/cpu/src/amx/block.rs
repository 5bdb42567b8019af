//! Products of pairs of bf16 numbers.

use std::arch::asm;

use super::unit::{Amx, ROW_BYTES, ROWS, Shape};

/// The product of one or two tiles of rows by the weights of a panel in some steps.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Block {
    /// Rows of the two tiles, at most [`ROWS`]. The second may have none.
    pub(crate) heights: [usize; 2],
    /// The inputs of each tile, `[steps][height][64 bytes]`.
    pub(crate) inputs: [*const u8; 2],
    /// `[steps]` times [`STEP_BYTES`]: 16 rows of weights for [`WIDTH`] outputs, 4 bytes each.
    pub(crate) weights: *const u8,
    pub(crate) steps: usize,
    /// The sums of each tile, `[height][WIDTH]`, to which the products are added.
    pub(crate) sums: [*mut f32; 2],
    /// Whether the sums start as zeros, whatever is there.
    pub(crate) fresh: bool,
    /// Bytes between rows of sums.
    pub(crate) stride: usize,
    /// The weights that are prefetched.
    pub(crate) ahead: Ahead,
}

/// The weights that a block prefetches.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Ahead {
    /// The weights that follow its own.
    Own,
    /// 128 bytes in each step from an address, which need not be valid.
    From(*const u8),
}

/// An implementation of the tile unit.
pub(crate) trait Unit {
    /// Adds products of pairs of bf16 numbers.
    ///
    /// # Safety
    /// The machine must have the unit, and the pointers must be valid.
    unsafe fn multiply_bf16(&mut self, block: &Block);
}

/// The loop over the steps of a block of two tiles of rows. `$prefetch` is run in each step.
macro_rules! two_tiles {
    ($block:ident, $ahead:expr, [$($prefetch:literal),*]) => {
        asm!(
            "test {fresh}, {fresh}",
            "jnz 3f",
            "tileloadd tmm0, [{sums0} + {stride}]",
            "tileloadd tmm1, [{sums0} + {stride} + 64]",
            "tileloadd tmm2, [{sums1} + {stride}]",
            "tileloadd tmm3, [{sums1} + {stride} + 64]",
            "jmp 2f",
            "3:",
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "2:",
            "tileloadd tmm4, [{x0} + {row}]",
            "tileloadd tmm6, [{w} + {row} * 2]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm7, [{w} + {row} * 2 + 64]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tileloadd tmm5, [{x1} + {row}]",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            $($prefetch,)*
            "add {x0}, {x0_step}",
            "add {x1}, {x1_step}",
            "add {w}, 2048",
            "sub {steps}, 1",
            "jnz 2b",
            "tilestored [{sums0} + {stride}], tmm0",
            "tilestored [{sums0} + {stride} + 64], tmm1",
            "tilestored [{sums1} + {stride}], tmm2",
            "tilestored [{sums1} + {stride} + 64], tmm3",
            x0 = inout(reg) $block.inputs[0] => _,
            x1 = inout(reg) $block.inputs[1] => _,
            x0_step = in(reg) $block.heights[0] * ROW_BYTES,
            x1_step = in(reg) $block.heights[1] * ROW_BYTES,
            w = inout(reg) $block.weights => _,
            ahead = inout(reg) $ahead => _,
            row = in(reg) ROW_BYTES,
            sums0 = in(reg) $block.sums[0],
            sums1 = in(reg) $block.sums[1],
            fresh = in(reg) usize::from($block.fresh),
            stride = in(reg) $block.stride,
            steps = inout(reg) $block.steps => _,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack)
        )
    };
}

/// As [`two_tiles`], for a block with one tile of rows.
macro_rules! one_tile {
    ($block:ident, $ahead:expr, [$($prefetch:literal),*]) => {
        asm!(
            "test {fresh}, {fresh}",
            "jnz 3f",
            "tileloadd tmm0, [{sums0} + {stride}]",
            "tileloadd tmm1, [{sums0} + {stride} + 64]",
            "jmp 2f",
            "3:",
            "tilezero tmm0",
            "tilezero tmm1",
            "2:",
            "tileloadd tmm4, [{x0} + {row}]",
            "tileloadd tmm6, [{w} + {row} * 2]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm7, [{w} + {row} * 2 + 64]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            $($prefetch,)*
            "add {x0}, {x0_step}",
            "add {w}, 2048",
            "sub {steps}, 1",
            "jnz 2b",
            "tilestored [{sums0} + {stride}], tmm0",
            "tilestored [{sums0} + {stride} + 64], tmm1",
            x0 = inout(reg) $block.inputs[0] => _,
            x0_step = in(reg) $block.heights[0] * ROW_BYTES,
            w = inout(reg) $block.weights => _,
            ahead = inout(reg) $ahead => _,
            row = in(reg) ROW_BYTES,
            sums0 = in(reg) $block.sums[0],
            fresh = in(reg) usize::from($block.fresh),
            stride = in(reg) $block.stride,
            steps = inout(reg) $block.steps => _,
            out("tmm0") _, out("tmm1") _, out("tmm4") _, out("tmm6") _, out("tmm7") _,
            options(nostack)
        )
    };
}

/// Calls one of the loops with the prefetches that the block asks for.
macro_rules! with_ahead {
    ($tiles:ident, $block:ident) => {
        match $block.ahead {
            Ahead::From(ahead) => $tiles!(
                $block,
                ahead,
                ["prefetcht1 [{ahead}]", "prefetcht1 [{ahead} + 64]", "add {ahead}, 128"]
            ),
            Ahead::Own => $tiles!(
                $block,
                0usize,
                [
                    "lea {ahead}, [{w} + 8192]",
                    "prefetcht0 [{ahead}]",
                    "prefetcht0 [{ahead} + 64]",
                    "prefetcht0 [{ahead} + 128]",
                    "prefetcht0 [{ahead} + 192]",
                    "prefetcht0 [{ahead} + 256]",
                    "prefetcht0 [{ahead} + 320]",
                    "prefetcht0 [{ahead} + 384]",
                    "prefetcht0 [{ahead} + 448]",
                    "prefetcht0 [{ahead} + 512]",
                    "prefetcht0 [{ahead} + 576]",
                    "prefetcht0 [{ahead} + 640]",
                    "prefetcht0 [{ahead} + 704]",
                    "prefetcht0 [{ahead} + 768]",
                    "prefetcht0 [{ahead} + 832]",
                    "prefetcht0 [{ahead} + 896]",
                    "prefetcht0 [{ahead} + 960]",
                    "prefetcht0 [{ahead} + 1024]",
                    "prefetcht0 [{ahead} + 1088]",
                    "prefetcht0 [{ahead} + 1152]",
                    "prefetcht0 [{ahead} + 1216]",
                    "prefetcht0 [{ahead} + 1280]",
                    "prefetcht0 [{ahead} + 1344]",
                    "prefetcht0 [{ahead} + 1408]",
                    "prefetcht0 [{ahead} + 1472]",
                    "prefetcht0 [{ahead} + 1536]",
                    "prefetcht0 [{ahead} + 1600]",
                    "prefetcht0 [{ahead} + 1664]",
                    "prefetcht0 [{ahead} + 1728]",
                    "prefetcht0 [{ahead} + 1792]",
                    "prefetcht0 [{ahead} + 1856]",
                    "prefetcht0 [{ahead} + 1920]",
                    "prefetcht0 [{ahead} + 1984]"
                ]
            ),
        }
    };
}

impl Unit for Amx {
    unsafe fn multiply_bf16(&mut self, block: &Block) {
        if block.steps == 0 {
            return;
        }
        // SAFETY: the caller guarantees the unit and valid pointers.
        unsafe {
            self.configure(Shape { heights: block.heights, depth: ROWS });
            if block.heights[1] > 0 {
                with_ahead!(two_tiles, block);
            } else {
                with_ahead!(one_tile, block);
            }
        }
    }
}
