//! Matrices of 8 and 4 bits.
//!
//! A row, or a group of its columns, has a range. The range gives a scale and a zero point, and a
//! weight is its code less the zero point, times the scale. FastLLM computes both in single
//! precision, and so does this module.

use std::ops::Range;

use serde_json::{Value, json};

use crate::cursor::Cursor;
use crate::dtype::DType;
use crate::fault::FileFault;
use crate::translated::{Derivation, DerivedTensor, ModelFile};

/// A matrix of codes.
pub(super) struct Quantized {
    name: String,
    rows: usize,
    cols: usize,
    bits: usize,
    /// Columns that share a range.
    group: usize,
    /// Scales and zero points, `[rows, groups]`.
    scales: Vec<f32>,
    zero_points: Vec<u8>,
    /// Place of the codes in the file.
    codes: Range<usize>,
}

impl Quantized {
    /// Reads the ranges and skips the codes of a matrix with the type `id`.
    pub(super) fn read(
        cursor: &mut Cursor<'_>,
        name: &str,
        shape: &[usize],
        id: u32,
    ) -> Result<Self, FileFault> {
        let fault = |reason: String| FileFault::SpecialTensor { tensor: name.to_owned(), reason };
        let &[rows, cols] = shape else {
            return Err(fault(format!("has the shape {shape:?}, but only matrices are quantized")));
        };
        let bits = if id == 3 { 8 } else { 4 };
        let axis = cursor.i32("the axis of the ranges")?;
        if !matches!(axis, -1 | 0) || (axis == -1 && id == 9) {
            return Err(fault(format!("has ranges along the axis {axis}, which is not supported")));
        }
        let (groups, group) = match id {
            9 => (cursor.u32("the groups of a row")? as usize, cursor.u32("the size of a group")? as usize),
            _ => (1, cols),
        };
        if rows == 0 || group == 0 || groups != cols.div_ceil(group) {
            return Err(fault(format!("has {groups} groups of {group} columns for {cols} columns")));
        }
        let stored = if axis == 0 { rows * groups } else { 1 };
        let ranges = cursor.take((stored as u64).saturating_mul(8), "the ranges of a tensor")?;
        let (mut scales, mut zero_points) = (Vec::with_capacity(stored), Vec::with_capacity(stored));
        for pair in ranges.as_chunks::<8>().0 {
            let [min, max] = [&pair[..4], &pair[4..]]
                .map(|bytes| f32::from_le_bytes(*bytes.first_chunk().unwrap_or(&[0; 4])));
            if !min.is_finite() || !max.is_finite() {
                return Err(fault("has a range that is not a number".to_owned()));
            }
            let (scale, zero_point) = scale(min, max, bits);
            scales.push(scale);
            zero_points.push(zero_point);
        }
        let elements = rows as u64 * cols as u64;
        let start = cursor.at();
        cursor.take((elements * bits as u64).div_ceil(8), "the data of a tensor")?;
        if axis == -1 {
            // The file has more bytes than that, since each row has codes.
            scales = vec![scales[0]; rows];
            zero_points = vec![zero_points[0]; rows];
        }
        let codes = start..cursor.at();
        Ok(Quantized { name: name.to_owned(), rows, cols, bits, group, scales, zero_points, codes })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Returns whether rows are whole words of 32 bits and whole groups, so that the codes are
    /// those of compressed-tensors.
    fn is_packed(&self) -> bool {
        (self.cols * self.bits).is_multiple_of(32)
            && self.cols.is_multiple_of(self.group)
            && self.name.ends_with(".weight")
    }

    /// Returns the group of modules in the configuration, with a name.
    pub(super) fn config_group(&self) -> Option<(String, Value)> {
        if !self.is_packed() {
            return None;
        }
        let mut weights = json!({"num_bits": self.bits, "type": "int", "symmetric": false});
        if self.group == self.cols {
            weights["strategy"] = json!("channel");
        } else {
            (weights["strategy"], weights["group_size"]) = (json!("group"), json!(self.group));
        }
        let group = if self.group == self.cols { "rows".to_owned() } else { self.group.to_string() };
        let name = format!("group_{}_{group}", self.bits);
        Some((name, json!({"weights": weights, "targets": ["Linear"]})))
    }

    /// Adds the tensors of the matrix: codes, scales and zero points, or the weights themselves.
    pub(super) fn add_to(self, model: &mut ModelFile) {
        let (rows, cols, bits) = (self.rows, self.cols, self.bits);
        let groups = cols.div_ceil(self.group);
        if !self.is_packed() {
            let Quantized { name, scales, zero_points, codes, group, .. } = self;
            let derivation = Derivation::Codes { cols, bits, group, scales, zero_points };
            let shape = vec![rows, cols];
            model.derived.push(DerivedTensor {
                name,
                dtype: DType::F32,
                shape,
                file: 0,
                range: codes,
                derivation,
            });
            return;
        }
        let module = self.name.strip_suffix(".weight").unwrap_or(&self.name);
        let tensor = |suffix: &str, dtype, shape, range, derivation| DerivedTensor {
            name: format!("{module}.{suffix}"),
            dtype,
            shape,
            file: 0,
            range,
            derivation,
        };
        let derivation = if bits == 4 { Derivation::SwappedNibbles } else { Derivation::Same };
        let shape = vec![rows, cols * bits / 32];
        let packed = tensor("weight_packed", DType::I32, shape, self.codes.clone(), derivation);
        let scales = self.scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
        let scales = tensor("weight_scale", DType::F32, vec![rows, groups], 0..0, Derivation::Bytes(scales));
        // Zero points are packed along the rows.
        let in_word = 32 / bits;
        let mut words = vec![0u32; rows.div_ceil(in_word) * groups];
        for (index, &zero_point) in self.zero_points.iter().enumerate() {
            let (row, group) = (index / groups, index % groups);
            words[row / in_word * groups + group] |= u32::from(zero_point) << (bits * (row % in_word));
        }
        let shape = vec![rows.div_ceil(in_word), groups];
        let words = words.into_iter().flat_map(u32::to_le_bytes).collect();
        let zero_points = tensor("weight_zero_point", DType::I32, shape, 0..0, Derivation::Bytes(words));
        model.derived.extend([packed, scales, zero_points]);
    }
}

/// Returns scale and zero point of a range, which always contains 0.
pub(super) fn scale(min: f32, max: f32, bits: usize) -> (f32, u8) {
    let (min, max) = (min.min(0.0), max.max(0.0));
    let largest = ((1u32 << bits) - 1) as f32;
    let scale = (max - min) / largest;
    if scale == 0.0 || !scale.is_finite() {
        return (0.0, 0);
    }
    (scale, (-min / scale).round().clamp(0.0, largest) as u8)
}
