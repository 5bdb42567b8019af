//! Matrices that a checkpoint stores quantized.
//!
//! `layouts` creates them from the tensors of each format: see [`gptq`], [`awq`], [`packed`],
//! [`signed_bytes`], [`table`], [`float8`], [`mxfp4`] and [`expert_columns`].
//! [`Part::read_row`](crate::Part::read_row) returns their weights as f32. A device that multiplies
//! by the same codes takes codes, scales and offsets as they are: [`exact_format`] tells whether it
//! can, and [`IntegerRows`], [`CodeRows`] and [`BlockRows`] read them. Nothing here depends on a
//! device.

mod blocks;
mod codes;
mod integers;
mod layouts;

pub use blocks::{BlockRows, exact_blocks};
pub use codes::{CodeRows, exact_codes};
pub use integers::{IntegerRows, exact_integers};
pub use layouts::{
    AwqTensors, ByteTensors, GptqTensors, PackedTensors, awq, expert_columns, float8, gptq, mxfp4, packed,
    signed_bytes, table,
};

pub use crate::encoding::{BlockScales, ExpertRows, NumberType, Numbers, TableCodes};

use crate::{Part, WeightFormat};

/// Returns the format in which a device that multiplies by all stored formats keeps `parts`,
/// stacked, without rounding them. See [`exact_blocks`], [`exact_integers`] and [`exact_codes`].
pub fn exact_format(parts: &[Part]) -> Option<WeightFormat> {
    if let Some(format) = exact_blocks(parts) {
        return Some(format);
    }
    exact_integers(parts).map(WeightFormat::Int).or_else(|| exact_codes(parts).map(WeightFormat::Codes))
}
