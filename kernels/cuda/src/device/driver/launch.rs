//! The name and the grid of a launch, and descriptions of memory for the copy engine.

use super::super::elem::Elem;

/// The name of a kernel: its source file and its exported function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KernelName {
    /// The `.cu` file's name without the extension.
    pub module: &'static str,
    /// The name of the exported function.
    pub name: &'static str,
}

/// The number of blocks and threads of a launch, and their shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grid {
    /// Blocks along x, y and z; none is 0.
    pub blocks: [u32; 3],
    /// Threads of a block along x, y and z.
    pub threads: [u32; 3],
    /// Bytes of dynamic shared memory per block.
    pub shared: usize,
}

impl Grid {
    /// A one-dimensional grid of `blocks` blocks with `threads` threads each.
    pub fn flat(blocks: usize, threads: u32) -> Grid {
        Grid { blocks: [blocks as u32, 1, 1], threads: [threads, 1, 1], shared: 0 }
    }

    /// The same grid with `bytes` of dynamic shared memory per block.
    pub fn with_shared(self, bytes: usize) -> Grid {
        Grid { shared: bytes, ..self }
    }
}

/// Describes a matrix in device memory to the copy engine of Hopper and later GPUs.
/// [`super::Driver::tensor_map`] makes it.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub struct TensorMap([u64; 16]);

impl TensorMap {
    /// The map of these 128 bytes, which only the driver that encoded them understands.
    pub fn from_words(words: [u64; 16]) -> TensorMap {
        TensorMap(words)
    }
}

/// A matrix of up to five dimensions of 16-bit floats, copied in boxes whose rows are 128 bytes and
/// swizzled.
#[derive(Debug, Clone, Copy)]
pub struct TensorLayout<'a> {
    /// Address, a multiple of 16.
    pub at: u64,
    /// f16 or bf16.
    pub elem: Elem,
    /// Elements along each dimension, neighbours in memory first.
    pub sizes: &'a [u64],
    /// Bytes from one element to the next along each dimension but the first; multiples of 16.
    pub strides: &'a [u64],
    /// Elements of a box along each dimension.
    pub tile: &'a [u32],
}
