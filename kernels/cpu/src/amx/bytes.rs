//! Dot products of bytes.

use std::arch::asm;

use super::unit::{Amx, ROW_BYTES, ROWS, Shape};

/// The dot products of a tile of rows of bytes with [`WIDTH`] outputs, in each of some groups of
/// columns.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bytes {
    /// Rows, from 1 to [`ROWS`].
    pub(crate) height: usize,
    /// The first row of activations.
    pub(crate) x: *const i8,
    /// Bytes between rows of activations.
    pub(crate) x_stride: usize,
    /// `[groups][columns / 4][WIDTH][4]`.
    pub(crate) weights: *const i8,
    /// Groups, at least one.
    pub(crate) groups: usize,
    /// Columns of each group, a multiple of 32 above 0.
    pub(crate) columns: usize,
    /// `[groups][ROWS][WIDTH]`, of which missing rows are left as they are.
    pub(crate) dots: *mut i32,
}

impl Amx {
    /// Computes dot products of signed bytes. They are exact if they fit 32 bits.
    ///
    /// # Safety
    /// The machine must have the unit, and the pointers must be valid.
    #[inline]
    pub(crate) unsafe fn dot_bytes(&mut self, job: Bytes) {
        // Tiles of 64 columns take as long as tiles of 32.
        let depth = if job.columns.is_multiple_of(ROW_BYTES) { ROWS } else { ROWS / 2 };
        // SAFETY: the caller guarantees the unit and valid pointers.
        unsafe {
            self.configure(Shape { heights: [job.height, 0], depth });
            asm!(
                "3:",
                "tilezero tmm0",
                "tilezero tmm1",
                "mov {left}, {steps}",
                "2:",
                "tileloadd tmm4, [{x} + {x_stride}]",
                "tileloadd tmm6, [{w} + {row} * 2]",
                "tdpbssd tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{w} + {row} * 2 + 64]",
                "tdpbssd tmm1, tmm4, tmm7",
                "add {x}, {x_step}",
                "add {w}, {w_step}",
                "sub {left}, 1",
                "jnz 2b",
                "tilestored [{dots} + {row} * 2], tmm0",
                "tilestored [{dots} + {row} * 2 + 64], tmm1",
                "add {dots}, 2048",
                "sub {groups}, 1",
                "jnz 3b",
                x = inout(reg) job.x => _,
                x_stride = in(reg) job.x_stride,
                x_step = in(reg) 4 * depth,
                w = inout(reg) job.weights => _,
                w_step = in(reg) 2 * ROW_BYTES * depth,
                row = in(reg) ROW_BYTES,
                dots = inout(reg) job.dots => _,
                groups = inout(reg) job.groups => _,
                steps = in(reg) job.columns / (4 * depth),
                left = out(reg) _,
                out("tmm0") _, out("tmm1") _, out("tmm4") _, out("tmm6") _, out("tmm7") _,
                options(nostack)
            );
        }
    }
}
