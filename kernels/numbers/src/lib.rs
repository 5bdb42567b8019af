//! How numbers are stored: the element types of dense weights, the quantized formats of
//! checkpoints, and the formats in which devices keep weights.
//!
//! | module | content |
//! |---|---|
//! | [`formats`] | the formats of quantized weights, one file each |
//! | [`integers`] | weights `(code - offset) * scale`, the arithmetic of most formats |
//! | [`codes`] | weights `table[code] * scale`, the arithmetic of the others |
//! | [`scales`] | the scales of both |
//! | [`experts`] | the order in which the matrices of several experts are stored |
//! | [`tensor`] | tensors in host memory, and the parts of them that a weight takes |
//!
//! A [`HostTensor`] is what a checkpoint has: bytes and their [`Encoding`]. A weight is a list of
//! [`Part`]s of tensors, which read rows as f32 whatever the encoding is. A [`WeightFormat`] is
//! what a device keeps. A device that multiplies by the codes and scales of a checkpoint as they
//! are asks [`formats::exact_format`] whether it can.
//!
//! Nothing here knows a device, a model or a file.

pub mod codes;
mod dtype;
mod encoding;
mod error;
pub mod experts;
pub mod formats;
pub mod integers;
pub mod scales;
pub mod tensor;
mod weight_format;

pub use dtype::DType;
pub use encoding::Encoding;
pub use error::{Error, Result};
pub use formats::ggml::{BlockType, KFormat};
pub use integers::IntFormat;
pub use tensor::{HostTensor, Part};
pub use weight_format::WeightFormat;
