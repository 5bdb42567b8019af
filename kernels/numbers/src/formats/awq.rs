//! AWQ (Lin et al., "AWQ"), in the layouts of AutoAWQ: words of 32 bits hold the codes of eight
//! successive rows in the order 0, 2, 4, 6, 1, 3, 5, 7 ("gemm"), or of eight successive columns
//! ("gemv").

use std::sync::Arc;

use bytes::Bytes;

use crate::integers::{CodeLayout, ColumnGroups, Integers, Offsets, WordLayout, words};
use crate::scales::{Numbers, ScaleGrid};
use crate::{Encoding, Error, HostTensor, Result};

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
pub fn matrix(rows: usize, cols: usize, tensors: AwqTensors) -> Result<HostTensor> {
    let AwqTensors { group_cols, gemv, qweight, qzeros, scales } = tensors;
    let groups = ColumnGroups::count(cols, group_cols)?;
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
    let integers = Integers { codes: CodeLayout::Words(codes), scales, offsets, groups };
    HostTensor::new(Encoding::Integers(Arc::new(integers)), rows, cols, qweight)
}
