//! Weights of 4 and 8 bits, from the layouts of checkpoints to the one that the kernels read.
//!
//! The layout is described in `kernels/include/weights.cuh`. Integers lie in tiles of 16 outputs,
//! in which a lane's operands are neighbors. FP8 numbers lie in rows, which the device's matrix
//! library reads too. Each group of columns has one word per output with its scale. The order of
//! columns is resolved here; `millrace_numbers` knows the formats of checkpoints.

mod format;
mod groups;
mod k_quants;
mod packed;
mod tiles;
mod uploaded;

pub use format::{CodeTable, PackedFormat, SharedScale, WeightLayout};
pub(crate) use format::{DEPTH, OUTPUTS};
pub(crate) use groups::{GroupBlocks, GroupLayout, stored_expert_format, stored_format};
pub use packed::PackedWeight;
pub use uploaded::{QuantizedWeight, UploadedWeight};
