//! Kernels.

use crate::instruction::Instruction;

/// A kernel.
#[derive(Debug)]
pub(crate) struct Kernel {
    pub(crate) name: String,
    pub(crate) instructions: Vec<Instruction>,
    /// Registers of a lane.
    pub(crate) registers: usize,
    pub(crate) param_bytes: usize,
    /// Bytes of the shared variables of fixed size. Dynamic shared memory begins there.
    pub(crate) shared_bytes: usize,
    /// The most threads of a block along x, y and z, if there is a limit.
    pub(crate) max_threads: Option<[u32; 3]>,
    /// Whether instructions wait for the previous grid.
    pub(crate) waits_for_grid: bool,
    /// Whether products of warpgroups occur, whose registers other instructions must leave alone.
    pub(crate) has_products: bool,
}
