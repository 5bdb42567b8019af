//! The formats of quantized weights. A format is a file, which says how its tensors are laid out,
//! reads them, and quantizes weights where Millrace writes the format.
//!
//! | file | format | arithmetic |
//! |---|---|---|
//! | [`gptq`] | GPTQ | [`crate::integers`] |
//! | [`awq`] | AWQ | [`crate::integers`] |
//! | [`compressed_tensors`] | pack-quantized and int-quantized of compressed-tensors | [`crate::integers`] |
//! | [`bitsandbytes`] | nf4 and fp4 of bitsandbytes | [`crate::codes`] |
//! | [`nf4`] | the table of NF4, and weights that are quantized to it | [`crate::codes`] |
//! | [`fp8`] | e4m3 numbers with scales per matrix, row or block | [`crate::codes`] |
//! | [`mxfp4`] | the experts of gpt-oss | [`crate::codes`] |
//! | [`ggml`] | the blocks of GGUF files, a table of types | integers, codes, or its own |
//!
//! [`Part::read_row`] returns weights as f32, whatever the format. A device that multiplies by the
//! same codes takes codes, scales and offsets as they are: [`exact_format`] tells whether it can,
//! and [`IntegerRows`](crate::integers::IntegerRows), [`CodeRows`](crate::codes::CodeRows) and
//! [`BlockRows`](ggml::BlockRows) read them.

pub mod awq;
pub mod bitsandbytes;
pub mod compressed_tensors;
pub mod fp8;
pub mod ggml;
pub mod gptq;
pub mod mxfp4;
pub mod nf4;

use crate::codes::exact_codes;
use crate::integers::exact_integers;
use crate::{Part, WeightFormat};

/// Returns the format in which a device that multiplies by all stored formats keeps `parts`,
/// stacked, without rounding them. See [`ggml::exact_blocks`], [`exact_integers`] and
/// [`exact_codes`].
pub fn exact_format(parts: &[Part]) -> Option<WeightFormat> {
    if let Some(format) = ggml::exact_blocks(parts) {
        return Some(format);
    }
    exact_integers(parts).map(WeightFormat::Int).or_else(|| exact_codes(parts).map(WeightFormat::Codes))
}
