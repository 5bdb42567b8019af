//! The layouts in which tools store quantized matrices.

use std::sync::Arc;

use bytes::Bytes;

use crate::encoding::{
    CodeLayout, ColumnGroups, ExpertColumns, ExpertRows, Float8, Integers, Mxfp4, NumberType, Numbers,
    Offsets, ScaleGrid, TableCodes, WordLayout,
};
use crate::{DType, Encoding, Error, HostTensor, Result};

/// The tensors of a matrix `[rows, cols]` that GPTQ stores.
#[derive(Debug, Clone)]
pub struct GptqTensors {
    /// Bits of a code: 2, 3, 4 or 8.
    pub bits: usize,
    /// Columns of a group; all columns may be one group.
    pub group_cols: usize,
    /// Whether zero points are stored less one (`checkpoint_format` "gptq", not "gptq_v2").
    pub plus_one: bool,
    /// Words `[cols * bits / 32, rows]` of successive columns.
    pub qweight: Bytes,
    /// Words `[groups, rows * bits / 32]` of successive rows.
    pub qzeros: Bytes,
    /// `[groups, rows]`.
    pub scales: Numbers,
    /// The group of each column in i32, if it is stored.
    pub g_idx: Option<Bytes>,
}

/// Creates a matrix that GPTQ has stored (Frantar et al., "GPTQ"; the layout is that of AutoGPTQ
/// and GPTQModel).
///
/// # Errors
/// [`Error::Shape`] if a tensor has another length, or a column is in a group that does not exist.
pub fn gptq(rows: usize, cols: usize, tensors: GptqTensors) -> Result<HostTensor> {
    let GptqTensors { bits, group_cols, plus_one, qweight, qzeros, scales, g_idx } = tensors;
    let groups = group_count(cols, group_cols)?;
    let codes = CodeLayout::Words(WordLayout::word_major(bits, false, words(cols, bits), rows));
    let layout = CodeLayout::Words(WordLayout::lines(bits, true, groups, words(rows, bits)));
    let columns = match g_idx {
        None => ColumnGroups::Even(group_cols),
        Some(list) => ColumnGroups::indexed(&list, cols, groups)?.simplified(group_cols),
    };
    let offsets = Offsets::Stored { layout, bytes: qzeros, plus_one };
    let scales = ScaleGrid::new(scales, rows, groups, true)?;
    matrix(rows, cols, qweight, Integers { codes, scales, offsets, groups: columns })
}

/// The tensors of a matrix `[rows, cols]` that AWQ stores.
#[derive(Debug, Clone)]
pub struct AwqTensors {
    /// Columns of a group.
    pub group_cols: usize,
    /// Whether the layout is that of "gemv", not of "gemm".
    pub gemv: bool,
    /// Words `[cols, rows / 8]` of successive rows in the order of AWQ; gemv: `[rows, cols / 8]` of
    /// successive columns.
    pub qweight: Bytes,
    /// Words `[groups, rows / 8]` in the same order; gemv: `[rows, padded groups / 8]` of
    /// successive groups.
    pub qzeros: Bytes,
    /// `[groups, rows]`; gemv: `[rows, padded groups]`.
    pub scales: Numbers,
}

/// Creates a matrix of four bits that AWQ has stored (Lin et al., "AWQ"; the layouts are those of
/// AutoAWQ).
///
/// # Errors
/// [`Error::Shape`] if a tensor has another length.
pub fn awq(rows: usize, cols: usize, tensors: AwqTensors) -> Result<HostTensor> {
    let AwqTensors { group_cols, gemv, qweight, qzeros, scales } = tensors;
    let groups = group_count(cols, group_cols)?;
    let (codes, layout, scales) = if gemv {
        // Groups are padded, to as many in each row.
        let padded = scales.len() / rows.max(1);
        let zero_words = qzeros.len() / 4 / rows.max(1);
        let codes = WordLayout::lines(4, false, rows, words(cols, 4));
        let scales = ScaleGrid { numbers: scales, row_stride: padded, group_stride: 1, divisor: 1.0 };
        if padded < groups {
            return Err(Error::Shape(format!("{padded} scales of each row for {groups} groups")));
        }
        (codes, WordLayout::lines(4, false, rows, zero_words), scales)
    } else {
        let interleaved = |lines| WordLayout {
            interleaved: true,
            ..WordLayout::lines(4, true, lines, words(rows.next_multiple_of(8), 4))
        };
        (interleaved(cols), interleaved(groups), ScaleGrid::new(scales, rows, groups, true)?)
    };
    let offsets = Offsets::Stored { layout: CodeLayout::Words(layout), bytes: qzeros, plus_one: false };
    let groups = ColumnGroups::Even(group_cols);
    matrix(rows, cols, qweight, Integers { codes: CodeLayout::Words(codes), scales, offsets, groups })
}

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
    let groups = group_count(cols, group_cols)?;
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
    matrix(rows, cols, weight_packed, Integers { codes, scales, offsets, groups: columns })
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
    let groups = group_count(cols, group_cols)?;
    let codes = CodeLayout::SignedBytes { cols };
    let scales = ScaleGrid { divisor, ..ScaleGrid::new(scales, rows, groups, false)? };
    let offsets = match zero_points {
        None => Offsets::Same(128),
        Some(bytes) => {
            Offsets::Stored { layout: CodeLayout::SignedBytes { cols: groups }, bytes, plus_one: false }
        }
    };
    let groups = ColumnGroups::Even(group_cols);
    matrix(rows, cols, weight, Integers { codes, scales, offsets, groups })
}

/// Creates a matrix of e4m3 numbers `[rows, cols]` with a scale for each block of `block` rows and
/// columns, or one scale.
///
/// # Errors
/// [`Error::Shape`] if a tensor has another length.
pub fn float8(
    (rows, cols): (usize, usize),
    bytes: Bytes,
    scales: Numbers,
    block: [usize; 2],
) -> Result<HostTensor> {
    let [block_rows, block_cols] = block.map(|size| size.max(1));
    let scales = ScaleGrid::new(scales, rows.div_ceil(block_rows), cols.div_ceil(block_cols), false)?;
    let float8 = Float8 { block, scales };
    float8.check(rows, cols, bytes.len())?;
    Ok(HostTensor { encoding: Encoding::Float8(Arc::new(float8)), rows, cols, bytes })
}

/// Creates a matrix of codes of four bits that index a table.
///
/// # Errors
/// [`Error::Shape`] if a tensor has another length.
pub fn table((rows, cols): (usize, usize), bytes: Bytes, codes: TableCodes) -> Result<HostTensor> {
    codes.check(rows, cols, bytes.len())?;
    Ok(HostTensor { encoding: Encoding::Table(Arc::new(codes)), rows, cols, bytes })
}

/// Creates the matrices of several experts, `[rows, cols]` together, that gpt-oss has stored as
/// MXFP4: `blocks` `[rows, cols / 32, 16]` with two codes a byte, and `scales` `[rows, cols / 32]`.
///
/// # Errors
/// [`Error::Shape`] if a tensor has another length, or a row is not whole blocks.
pub fn mxfp4(
    (rows, cols): (usize, usize),
    order: ExpertRows,
    blocks: Bytes,
    scales: Bytes,
) -> Result<HostTensor> {
    let mxfp4 = Mxfp4 { rows: order, scales: Numbers::new(NumberType::PowerOfTwo, scales)? };
    mxfp4.check(rows, cols, blocks.len())?;
    Ok(HostTensor { encoding: Encoding::Mxfp4(Arc::new(mxfp4)), rows, cols, bytes: blocks })
}

/// Creates the matrices of several experts, `[rows, cols]` together, from numbers `[experts, cols,
/// rows of an expert]`.
///
/// # Errors
/// [`Error::Shape`] if the tensor has another length.
pub fn expert_columns(
    (rows, cols): (usize, usize),
    order: ExpertRows,
    dtype: DType,
    bytes: Bytes,
) -> Result<HostTensor> {
    let columns = ExpertColumns { dtype, rows: order };
    columns.check(rows, cols, bytes.len())?;
    Ok(HostTensor { encoding: Encoding::ExpertColumns(columns), rows, cols, bytes })
}

fn matrix(rows: usize, cols: usize, bytes: Bytes, integers: Integers) -> Result<HostTensor> {
    integers.check(rows, cols, bytes.len())?;
    Ok(HostTensor { encoding: Encoding::Integers(Arc::new(integers)), rows, cols, bytes })
}

/// Returns the words that hold `codes` codes.
fn words(codes: usize, bits: usize) -> usize {
    codes.saturating_mul(bits).div_ceil(32)
}

fn group_count(cols: usize, group_cols: usize) -> Result<usize> {
    match group_cols {
        0 => Err(Error::Shape("groups of no columns".to_owned())),
        group => Ok(cols.div_ceil(group)),
    }
}
