//! Matrices that a checkpoint stores quantized.
//!
//! `layouts` creates them from the tensors of each format: see [`gptq`], [`awq`], [`packed`],
//! [`signed_bytes`], [`table`] and [`float8`]. [`Part::read_row`](crate::Part::read_row) returns
//! their weights as f32. A device that multiplies by the same integers takes codes, scales and
//! offsets as they are: [`exact_format`] tells whether it can, and [`ExactRows`] reads them.
//! Nothing here depends on a device.

mod exact;
mod layouts;

pub use exact::{ExactRows, exact_format};
pub use layouts::{
    AwqTensors, ByteTensors, GptqTensors, PackedTensors, awq, float8, gptq, packed, signed_bytes, table,
};

pub use crate::encoding::{BlockScales, NumberType, Numbers, TableCodes};
