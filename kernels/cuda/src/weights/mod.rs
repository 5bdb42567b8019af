//! Weights of 4 and 8 bits, from the layouts of checkpoints to the one that the kernels read.
//!
//! The layout is described in `kernels/include/weights.cuh`. Weights of 4 bits lie in tiles of 16
//! outputs; 16 bytes of a tile are the operands of one lane. Weights of 8 bits lie in rows, which
//! the device's matrix library reads too. Each group of columns has one word per output with its
//! scale. The order of columns is resolved here; `millrace_numbers` knows the formats of
//! checkpoints.

mod arrange;
mod bytes;
mod format;
mod int4;
mod integers;
mod packed;
mod uploaded;

pub use bytes::{WeightScales, e4m3, int8};
pub(crate) use format::{DEPTH, OUTPUTS};
pub use format::{PackedFormat, WeightLayout};
pub use int4::int4;
pub(crate) use integers::{IntegerBlocks, IntegerLayout, stored_integers};
pub use packed::PackedWeight;
pub use uploaded::{QuantizedWeight, UploadedWeight};
