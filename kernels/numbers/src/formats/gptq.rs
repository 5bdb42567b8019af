//! GPTQ (Frantar et al., "GPTQ"), in the layout of AutoGPTQ and GPTQModel: words of 32 bits hold
//! the codes of successive columns, zero points are stored less one, and columns may be grouped in
//! the order of their activations.

use std::sync::Arc;

use bytes::Bytes;

use super::module::{Element, ModuleError, StoredModule};
use super::written::WrittenTensor;
use crate::integers::{CodeLayout, ColumnGroups, Integers, Offsets, WordLayout, words};
use crate::scales::{Numbers, ScaleGrid};
use crate::{Encoding, HostTensor, Result};

/// The ends of the names of a module's tensors.
pub(super) const TENSORS: &[&str] = &["qweight", "qzeros", "scales", "g_idx"];

/// A checkpoint of GPTQ, as its configuration describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gptq {
    /// Bits of a code: 2, 3, 4 or 8.
    pub bits: usize,
    /// Columns of a group; none if a row is one group.
    pub group: Option<usize>,
    /// Whether zero points are stored less one.
    pub plus_one: bool,
}

impl Gptq {
    /// The name of the format.
    pub const NAME: &str = "gptq";

    pub(super) fn name(&self) -> &'static str {
        Self::NAME
    }

    /// Returns the tensors of a module with a matrix `[rows, cols]`, as most checkpoints have them.
    pub(super) fn layout(&self, rows: usize, cols: usize) -> Vec<WrittenTensor> {
        let groups = cols.div_ceil(self.group.unwrap_or(cols).max(1));
        vec![
            WrittenTensor::of_rows("qweight", Element::I32, &[words(cols, self.bits), rows]),
            WrittenTensor::of_rows("qzeros", Element::I32, &[groups, words(rows, self.bits)]),
            WrittenTensor::of_rows("scales", Element::F16, &[groups, rows]),
        ]
    }

    pub(super) fn read(&self, module: &StoredModule<'_>) -> Result<Option<HostTensor>, ModuleError> {
        if !module.has("qweight") {
            return Ok(None);
        }
        let (rows, cols, bits) = (module.rows, module.cols, self.bits);
        let group_cols = self.group.unwrap_or(cols).max(1);
        let groups = cols.div_ceil(group_cols);
        let tensors = GptqTensors {
            bits,
            group_cols,
            plus_one: self.plus_one,
            qweight: module.bytes("qweight", &[words(cols, bits), rows], Element::I32)?,
            qzeros: module.bytes("qzeros", &[groups, words(rows, bits)], Element::I32)?,
            scales: module.numbers("scales", &[groups, rows])?,
            g_idx: module.optional_bytes("g_idx", &[cols], Element::I32)?,
        };
        module.built("g_idx", matrix(rows, cols, tensors)).map(Some)
    }
}

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
pub fn matrix(rows: usize, cols: usize, tensors: GptqTensors) -> Result<HostTensor> {
    let GptqTensors { bits, group_cols, plus_one, qweight, qzeros, scales, g_idx } = tensors;
    let groups = ColumnGroups::count(cols, group_cols)?;
    let codes = CodeLayout::Words(WordLayout::word_major(bits, false, words(cols, bits), rows));
    let layout = CodeLayout::Words(WordLayout::lines(bits, true, groups, words(rows, bits)));
    let columns = match g_idx {
        None => ColumnGroups::Even(group_cols),
        Some(list) => ColumnGroups::indexed(&list, cols, groups)?.simplified(group_cols),
    };
    let offsets = Offsets::Stored { layout, bytes: qzeros, plus_one };
    let scales = ScaleGrid::new(scales, rows, groups, true)?;
    let integers = Integers { codes, scales, offsets, groups: columns };
    HostTensor::new(Encoding::Integers(Arc::new(integers)), rows, cols, qweight)
}
