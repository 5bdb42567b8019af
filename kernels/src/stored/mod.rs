//! Matrices that a checkpoint stores quantized.
//!
//! | encoding | weight | written by |
//! |---|---|---|
//! | [`Integers`] | `(code - offset) * scale`, with codes of 2, 3, 4 or 8 bits | GPTQ, AWQ, compressed-tensors, bitsandbytes (int8) |
//! | [`TableCodes`] | `table[code] * scale`, with codes of 4 bits | bitsandbytes (nf4, fp4) |
//! | [`Float8`] | an e4m3 number times a scale | fp8, compressed-tensors |
//!
//! A matrix `[rows, cols]` has one row per output feature, however its codes are laid out in the
//! file. [`Part::read_row`](crate::Part::read_row) returns the weights of any of them as f32. A
//! device that multiplies by the same numbers takes codes, scales and offsets as they are:
//! [`exact_format`] tells whether it can, and [`ExactRows`] reads them. Nothing here depends on a
//! device.

mod code_layout;
mod exact;
mod float8;
mod grouping;
mod integers;
mod layouts;
mod numbers;
mod table_codes;

pub use code_layout::CodeLayout;
pub use exact::{ExactRows, exact_format};
pub use float8::Float8;
pub use grouping::ColumnGroups;
pub use integers::{Integers, Offsets, ScaleGrid};
pub use layouts::{
    AwqTensors, ByteTensors, GptqTensors, PackedTensors, awq, float8, gptq, packed, signed_bytes, table,
};
pub use numbers::{NumberType, Numbers};
pub use table_codes::{BlockScales, TableCodes};
