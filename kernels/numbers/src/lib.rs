//! How numbers are stored: the element types of dense weights, the quantized formats of
//! checkpoints, and the formats in which devices keep weights.
//!
//! A [`HostTensor`] is what a checkpoint has: bytes and their [`Encoding`]. A weight is a list of
//! [`Part`]s of tensors, which read rows as f32 whatever the encoding is. [`quantize`] writes
//! numbers in a [`WeightFormat`], and [`stored`] reads the codes and scales of a checkpoint for
//! devices that multiply by them as they are.
//!
//! Nothing here knows a device, a model or a file.

mod dtype;
pub mod encoding;
mod error;
pub mod fp8;
pub mod quantize;
pub mod stored;
pub mod tensor;
mod weight_format;

pub use dtype::DType;
pub use encoding::{BlockType, Encoding};
pub use error::{Error, Result};
pub use quantize::{IntFormat, KFormat};
pub use tensor::{HostTensor, Part};
pub use weight_format::WeightFormat;
