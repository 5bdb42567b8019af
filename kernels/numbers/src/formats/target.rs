//! The formats that quantized checkpoints are written in.

use super::written::{EncodedRows, WrittenTensor};
use super::{bitsandbytes, compressed_tensors, fp8};
use crate::{DType, Result};

/// A format of quantized checkpoints that Millrace, vLLM and transformers read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// 8-bit integers with an f32 scale per row (compressed-tensors, int-quantized).
    Int8,
    /// 4-bit integers in groups of columns, each with an f16 scale (compressed-tensors,
    /// pack-quantized).
    Int4 {
        /// Columns of a group: 32, 64 or 128.
        group: usize,
        /// Whether the code of the weight 0 is 8 in all groups. Otherwise each has a zero point.
        symmetric: bool,
    },
    /// FP8 (e4m3) with an f32 scale per row (compressed-tensors, float-quantized).
    Fp8,
    /// FP8 (e4m3) with an f32 scale per block of 128 x 128 (`quant_method` fp8).
    Fp8Block,
    /// NF4 with an f32 factor per 64 weights (bitsandbytes).
    Nf4,
}

impl Target {
    /// Returns the name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Target::Int8 => "int8",
            Target::Int4 { .. } => "int4",
            Target::Fp8 => "fp8",
            Target::Fp8Block => "fp8-block",
            Target::Nf4 => "nf4",
        }
    }

    /// Returns the reason why a matrix `[rows, cols]` is left dense, if it must be.
    pub fn misfit(self, rows: usize, cols: usize) -> Option<String> {
        match self {
            Target::Int4 { group, .. } if !cols.is_multiple_of(group) => {
                Some(format!("{cols} columns are not a multiple of {group}"))
            }
            Target::Fp8Block => fp8::block_misfit(rows, cols),
            _ => None,
        }
    }

    /// Returns the tensors of a module with a matrix `[rows, cols]`. Those that are made of rows
    /// come first, in the order of [`EncodedRows::tensors`]. `dtype` is the element type of the
    /// dense weights.
    pub fn tensors(self, rows: usize, cols: usize, dtype: DType) -> Vec<WrittenTensor> {
        match self {
            Target::Int8 => compressed_tensors::int8_tensors(rows, cols),
            Target::Int4 { group, symmetric } => {
                compressed_tensors::int4_tensors(rows, cols, group, symmetric)
            }
            Target::Fp8 => fp8::row_tensors(rows, cols),
            Target::Fp8Block => fp8::block_tensors(rows, cols),
            Target::Nf4 => bitsandbytes::nf4_tensors(rows, cols, dtype),
        }
    }

    /// Encodes rows of `cols` weights. All stacks of a matrix but the last one have
    /// [`STACK`](super::STACK) rows.
    ///
    /// # Errors
    /// If a weight is not finite, or too large for the format's scales.
    pub fn encode(self, weights: &[f32], cols: usize) -> Result<EncodedRows> {
        let mut rows = EncodedRows::default();
        match self {
            Target::Int8 => compressed_tensors::encode_int8(weights, cols, &mut rows)?,
            Target::Int4 { group, symmetric } => {
                compressed_tensors::encode_int4(weights, cols, group, symmetric, &mut rows)?;
            }
            Target::Fp8 => fp8::encode_rows(weights, cols, &mut rows)?,
            Target::Fp8Block => fp8::encode_blocks(weights, cols, &mut rows)?,
            Target::Nf4 => bitsandbytes::encode_nf4(weights, &mut rows)?,
        }
        Ok(rows)
    }
}
