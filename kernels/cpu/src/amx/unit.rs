//! The tile unit of Intel AMX (Advanced Matrix Extensions).
//!
//! The unit has eight tile registers of up to 16 rows of 64 bytes. One instruction multiplies a
//! tile of inputs by a tile of weights and adds the products to a tile of sums. Rust has no stable
//! intrinsics for it, so that the loops are in assembly. Each of them loads all tiles that it reads
//! and stores all that it writes, so that nothing has to stay in the tile registers between them.

use std::arch::asm;

use super::machine::is_available;

/// Rows of the largest tile.
pub(crate) const ROWS: usize = 16;
/// Bytes of a row of a tile.
pub(super) const ROW_BYTES: usize = 64;
/// Outputs that a block computes: two tiles of weights next to each other, which is the width of
/// a panel.
pub(crate) const WIDTH: usize = 32;
/// Bytes of a panel that a step reads: two tiles of weights.
pub(super) const STEP_BYTES: usize = 2 * ROWS * ROW_BYTES;

/// The tile unit of this machine.
pub(crate) struct Amx {
    shape: Shape,
}

/// The shape of the tiles that the unit is configured for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    /// Rows of the two tiles of inputs.
    pub(super) heights: [usize; 2],
    /// Rows of a tile of weights, of 64 bytes each.
    pub(super) depth: usize,
}

/// The configuration of the tile registers, as `ldtilecfg` reads it.
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl Amx {
    /// Returns the unit in a state in which the first operation configures it.
    pub(crate) fn new() -> Amx {
        Amx { shape: Shape { heights: [0; 2], depth: 0 } }
    }

    /// Sets the shape of tiles. Registers 0 to 3 are sums, of which 0 and 1 belong to the first
    /// tile of rows; 4 and 5 are inputs, 6 and 7 are weights.
    ///
    /// # Safety
    /// The machine must have the unit.
    pub(super) unsafe fn configure(&mut self, shape: Shape) {
        if self.shape == shape {
            return;
        }
        self.shape = shape;
        let ([first, second], depth) = (shape.heights.map(|height| height as u8), shape.depth as u8);
        let (sums, inputs) = (ROW_BYTES as u16, 4 * u16::from(depth));
        let registers = [
            (first, sums),
            (first, sums),
            (second, sums),
            (second, sums),
            (first, inputs),
            (second, inputs),
            (depth, sums),
            (depth, sums),
        ];
        let mut configuration =
            Configuration { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        for (register, (rows, row_bytes)) in registers.into_iter().enumerate() {
            // A register without rows must have no columns either.
            if rows > 0 {
                (configuration.rows[register], configuration.row_bytes[register]) = (rows, row_bytes);
            }
        }
        // SAFETY: the caller guarantees the unit, and the configuration is valid.
        unsafe {
            asm!("ldtilecfg [{}]", in(reg) &raw const configuration,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack, readonly, preserves_flags));
        }
    }
}

impl Drop for Amx {
    fn drop(&mut self) {
        if self.shape.depth > 0 {
            // Without it the system would save the tiles whenever it interrupts the thread.
            // SAFETY: the unit has been configured, so that the machine has it.
            unsafe {
                asm!("tilerelease",
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                    options(nostack, nomem, preserves_flags));
            }
        }
    }
}

/// Multiplies the same tiles of zeros `rounds` times, and returns the number of floating-point
/// operations. The machine must have the unit.
pub(crate) fn spin(rounds: usize) -> usize {
    assert!(is_available(), "AMX on a machine without it");
    let mut unit = Amx::new();
    // SAFETY: the machine has the unit, and the loop has no operands in memory.
    unsafe {
        unit.configure(Shape { heights: [ROWS, ROWS], depth: ROWS });
        asm!(
            "tilezero tmm4",
            "tilezero tmm5",
            "tilezero tmm6",
            "tilezero tmm7",
            "2:",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "sub {rounds}, 1",
            "jnz 2b",
            rounds = inout(reg) rounds.max(1) => _,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack, nomem)
        );
    }
    rounds * 4 * 2 * ROWS * ROWS * 2 * ROWS
}
