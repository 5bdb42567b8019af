//! AWQ (Lin et al., "AWQ"), in the layouts of AutoAWQ: words of 32 bits hold the codes of eight
//! successive rows in the order 0, 2, 4, 6, 1, 3, 5, 7 ("gemm"), or of eight successive columns
//! ("gemv").

use std::sync::Arc;

use bytes::Bytes;

use super::module::{Element, ModuleError, StoredModule};
use super::written::WrittenTensor;
use crate::integers::{CodeLayout, ColumnGroups, Integers, Offsets, WordLayout, words};
use crate::scales::{Numbers, ScaleGrid};
use crate::{Encoding, Error, HostTensor, Result};

/// The place of each of eight successive rows in a word: the word holds the rows 0, 2, 4, 6, 1, 3,
/// 5, 7 in this order.
const PLACES: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

/// The ends of the names of a module's tensors.
pub(super) const TENSORS: &[&str] = &["qweight", "qzeros", "scales"];

/// A checkpoint of AWQ, as its configuration describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Awq {
    /// Columns of a group; none if a row is one group.
    pub group: Option<usize>,
    /// Whether the layout is that of "gemv", not of "gemm".
    pub gemv: bool,
}

impl Awq {
    /// The name of the format.
    pub const NAME: &str = "awq";

    pub(super) fn name(&self) -> &'static str {
        Self::NAME
    }

    /// Returns the tensors of a module with a matrix `[rows, cols]`, as most checkpoints have them.
    pub(super) fn layout(&self, rows: usize, cols: usize) -> Vec<WrittenTensor> {
        let groups = cols.div_ceil(self.group.unwrap_or(cols).max(1));
        let (weight, zeros, scales) = if self.gemv {
            ([rows, words(cols, 4)], [rows, words(groups, 4)], [rows, groups])
        } else {
            ([cols, words(rows, 4)], [groups, words(rows, 4)], [groups, rows])
        };
        vec![
            WrittenTensor::of_rows("qweight", Element::I32, &weight),
            WrittenTensor::of_rows("qzeros", Element::I32, &zeros),
            WrittenTensor::of_rows("scales", Element::F16, &scales),
        ]
    }

    pub(super) fn read(&self, module: &StoredModule<'_>) -> Result<Option<HostTensor>, ModuleError> {
        if !module.has("qweight") {
            return Ok(None);
        }
        let (rows, cols) = (module.rows, module.cols);
        let group_cols = self.group.unwrap_or(cols).max(1);
        let groups = cols.div_ceil(group_cols);
        let (weight_shape, zeros_shape, scales_shape) = if self.gemv {
            // Groups are padded, to a number that depends on the version.
            let (zeros, scales) =
                (padded(module, "qzeros", words(groups, 4)), padded(module, "scales", groups));
            ([rows, words(cols, 4)], zeros, scales)
        } else {
            ([cols, words(rows, 4)], [groups, words(rows, 4)], [groups, rows])
        };
        let tensors = AwqTensors {
            group_cols,
            gemv: self.gemv,
            qweight: module.bytes("qweight", &weight_shape, Element::I32)?,
            qzeros: module.bytes("qzeros", &zeros_shape, Element::I32)?,
            scales: module.numbers("scales", &scales_shape)?,
        };
        module.built("qweight", matrix(rows, cols, tensors)).map(Some)
    }
}

/// Returns the shape of a tensor with a row for each output feature and at least `least` columns.
fn padded(module: &StoredModule<'_>, tensor: &str, least: usize) -> [usize; 2] {
    match module.find(tensor).map(|tensor| tensor.shape).as_deref() {
        Some(&[rows, cols]) if rows == module.rows && cols >= least => [rows, cols],
        // The error says which shape was expected.
        _ => [module.rows, least],
    }
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
        let in_words = |lines| WordLayout {
            places: Some(PLACES),
            ..WordLayout::lines(4, true, lines, words(rows.next_multiple_of(8), 4))
        };
        (in_words(cols), in_words(groups), ScaleGrid::new(scales, rows, groups, true)?)
    };
    let offsets = Offsets::Stored { layout: CodeLayout::Words(layout), bytes: qzeros, plus_one: false };
    let groups = ColumnGroups::Even(group_cols);
    let integers = Integers { codes: CodeLayout::Words(codes), scales, offsets, groups };
    HostTensor::new(Encoding::Integers(Arc::new(integers)), rows, cols, qweight)
}
