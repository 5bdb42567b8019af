//! compressed-tensors: integers in words (pack-quantized) or signed bytes (int-quantized), with a
//! scale for each group of columns, row or matrix. Its e4m3 numbers (float-quantized) are those of
//! [`super::fp8`].

use std::sync::Arc;

use bytes::Bytes;

use crate::integers::{CodeLayout, ColumnGroups, Integers, Offsets, WordLayout, words};
use crate::scales::{Numbers, ScaleGrid};
use crate::{Encoding, HostTensor, Result};

/// The tensors of a matrix `[rows, cols]` in the format pack-quantized.
#[derive(Debug, Clone)]
pub struct PackedTensors {
    /// Bits of a code: 2, 3, 4 or 8.
    pub bits: usize,
    /// Columns of a group; all columns may be one group.
    pub group_cols: usize,
    /// Words `[rows, ceil(cols * bits / 32)]` of successive columns.
    pub weight_packed: Bytes,
    /// `[rows, groups]`.
    pub weight_scale: Numbers,
    /// Words `[ceil(rows * bits / 32), groups]` of successive rows, unless weights are symmetric.
    pub weight_zero_point: Option<Bytes>,
    /// The group of each column in i32, if it is stored.
    pub weight_g_idx: Option<Bytes>,
}

/// Creates a matrix that compressed-tensors has stored in the format pack-quantized. Codes and zero
/// points are signed numbers plus `2^(bits - 1)`.
///
/// # Errors
/// [`Error::Shape`] if a tensor has another length, or a column is in a group that does not exist.
pub fn packed(rows: usize, cols: usize, tensors: PackedTensors) -> Result<HostTensor> {
    let PackedTensors { bits, group_cols, weight_packed, weight_scale, weight_zero_point, weight_g_idx } =
        tensors;
    let groups = ColumnGroups::count(cols, group_cols)?;
    let codes = CodeLayout::Words(WordLayout::lines(bits, false, rows, words(cols, bits)));
    let offsets = match weight_zero_point {
        None => Offsets::Same(1 << (bits - 1)),
        Some(bytes) => {
            let layout = CodeLayout::Words(WordLayout::word_major(bits, true, words(rows, bits), groups));
            Offsets::Stored { layout, bytes, plus_one: false }
        }
    };
    let columns = match weight_g_idx {
        // A list that was never set holds -1.
        Some(list) if list.chunks_exact(4).all(|group| group == [0xff; 4]) => ColumnGroups::Even(group_cols),
        Some(list) => ColumnGroups::indexed(&list, cols, groups)?.simplified(group_cols),
        None => ColumnGroups::Even(group_cols),
    };
    let scales = ScaleGrid::new(weight_scale, rows, groups, false)?;
    let integers = Integers { codes, scales, offsets, groups: columns };
    HostTensor::new(Encoding::Integers(Arc::new(integers)), rows, cols, weight_packed)
}

/// The tensors of a matrix `[rows, cols]` of signed bytes.
#[derive(Debug, Clone)]
pub struct ByteTensors {
    /// `[rows, cols]`.
    pub weight: Bytes,
    /// `[rows, groups]`, or one scale for each row, or one for all.
    pub scales: Numbers,
    /// Signed bytes `[rows, groups]`, unless weights are symmetric.
    pub zero_points: Option<Bytes>,
    /// Columns of a group; all columns may be one group.
    pub group_cols: usize,
    /// All scales are divided by this: 127 for bitsandbytes.
    pub divisor: f32,
}

/// Creates a matrix of signed bytes: int-quantized weights of compressed-tensors, and those of
/// bitsandbytes (Dettmers et al., "LLM.int8()").
///
/// # Errors
/// [`Error::Shape`] if a tensor has another length.
pub fn signed_bytes(rows: usize, cols: usize, tensors: ByteTensors) -> Result<HostTensor> {
    let ByteTensors { weight, scales, zero_points, group_cols, divisor } = tensors;
    let groups = ColumnGroups::count(cols, group_cols)?;
    let codes = CodeLayout::SignedBytes { cols };
    let scales = ScaleGrid { divisor, ..ScaleGrid::new(scales, rows, groups, false)? };
    let offsets = match zero_points {
        None => Offsets::Same(128),
        Some(bytes) => {
            Offsets::Stored { layout: CodeLayout::SignedBytes { cols: groups }, bytes, plus_one: false }
        }
    };
    let groups = ColumnGroups::Even(group_cols);
    let integers = Integers { codes, scales, offsets, groups };
    HostTensor::new(Encoding::Integers(Arc::new(integers)), rows, cols, weight)
}
