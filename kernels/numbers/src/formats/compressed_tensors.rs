//! compressed-tensors: integers in words (pack-quantized) or signed bytes (int-quantized), with a
//! scale for each group of columns, row or matrix. Its e4m3 numbers (float-quantized) are those of
//! [`super::fp8`].

use std::sync::Arc;

use bytes::Bytes;
use half::f16;

use super::fp8;
use super::module::{Element, ModuleError, StoredModule};
use super::written::{EncodedRows, WrittenTensor};
use crate::integers::{CodeLayout, ColumnGroups, IntFormat, Integers, Offsets, WordLayout, words};
use crate::scales::{Numbers, ScaleGrid, Sharing};
use crate::{Encoding, HostTensor, Result};

/// The ends of the names of a module's tensors. Scales of activations are not read: activations are
/// quantized with scales of their own.
pub(super) const TENSORS: &[&str] = &[
    "weight",
    "weight_packed",
    "weight_scale",
    "weight_zero_point",
    "weight_shape",
    "weight_g_idx",
    "input_scale",
    "input_zero_point",
    "input_global_scale",
    "output_scale",
    "output_zero_point",
];

/// A checkpoint of compressed-tensors, as its configuration describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompressedTensors {
    /// The groups of modules. Which module belongs to which group follows from its tensors.
    pub groups: Vec<CompressedGroup>,
}

/// The quantization of a group of modules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompressedGroup {
    /// The way in which codes are stored.
    pub kind: CompressedKind,
    /// Bits of a code.
    pub bits: usize,
    /// Whether there are no zero points.
    pub symmetric: bool,
    /// The weights that share a scale.
    pub sharing: Sharing,
}

/// The way in which codes are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompressedKind {
    /// Integers in words (`weight_packed`).
    Packed,
    /// Signed bytes.
    Bytes,
    /// e4m3 numbers.
    Float8,
}

impl CompressedTensors {
    /// The name of the format.
    pub const NAME: &str = "compressed-tensors";

    pub(super) fn name(&self) -> &'static str {
        Self::NAME
    }

    /// Returns the tensors of a module with a matrix `[rows, cols]`, in the first group
    /// of modules.
    pub(super) fn layout(&self, rows: usize, cols: usize) -> Vec<WrittenTensor> {
        let Some(group) = self.groups.first() else { return Vec::new() };
        let (name, element, shape, zeros) = match group.kind {
            CompressedKind::Packed => {
                ("weight_packed", Element::I32, [rows, words(cols, group.bits)], words(rows, group.bits))
            }
            CompressedKind::Bytes => ("weight", Element::I8, [rows, cols], rows),
            CompressedKind::Float8 => ("weight", Element::F8_E4M3, [rows, cols], rows),
        };
        let mut tensors = vec![
            WrittenTensor::of_rows(name, element, &shape),
            WrittenTensor::of_rows("weight_scale", Element::F16, &group.sharing.shapes(rows, cols)[0]),
        ];
        if !group.symmetric {
            let groups = cols.div_ceil(group.sharing.group_cols(cols).max(1));
            tensors.push(WrittenTensor::of_rows("weight_zero_point", element, &[zeros, groups]));
        }
        tensors
    }

    pub(super) fn read(&self, module: &StoredModule<'_>) -> Result<Option<HostTensor>, ModuleError> {
        let (kind, codes) = if module.has("weight_packed") {
            (CompressedKind::Packed, "weight_packed")
        } else {
            match module.find("weight").and_then(|tensor| tensor.element) {
                Some(Element::I8) => (CompressedKind::Bytes, "weight"),
                Some(Element::F8_E4M3) => (CompressedKind::Float8, "weight"),
                _ => return Ok(None),
            }
        };
        let of_kind = || self.groups.iter().filter(|group| group.kind == kind);
        // The group with the most tensors of the right shape, or the first one, whose error says
        // what is wrong.
        let Some(group) = of_kind().find(|group| group.fits(module, codes)).or_else(|| of_kind().next())
        else {
            let reason = "no group of quantization_config.config_groups has weights of this type".to_owned();
            return Err(ModuleError::Content { tensor: codes, reason });
        };
        check_shape(module)?;
        group.read(module).map(Some)
    }
}

impl CompressedGroup {
    /// Tells whether the tensors of a module, with its codes in `codes`, have the shapes of the
    /// group.
    fn fits(&self, module: &StoredModule<'_>, codes: &str) -> bool {
        let shape = |tensor: &str| module.find(tensor).map_or(Vec::new(), |tensor| tensor.shape);
        let scales = self.sharing.shapes(module.rows, module.cols);
        (self.kind != CompressedKind::Packed || shape(codes) == self.packed_shape(module))
            && scales.contains(&shape("weight_scale"))
            && (self.symmetric || module.has("weight_zero_point"))
    }

    fn packed_shape(&self, module: &StoredModule<'_>) -> [usize; 2] {
        [module.rows, words(module.cols, self.bits)]
    }

    fn read(&self, module: &StoredModule<'_>) -> Result<HostTensor, ModuleError> {
        let (rows, cols, bits) = (module.rows, module.cols, self.bits);
        let group_cols = self.sharing.group_cols(cols).max(1);
        let groups = cols.div_ceil(group_cols);
        let scales = module.scales("weight_scale", self.sharing)?;
        let zero_points = |shape: &[usize], element: Element| {
            if self.symmetric {
                Ok(None)
            } else {
                module.bytes("weight_zero_point", shape, element).map(Some)
            }
        };
        match self.kind {
            CompressedKind::Packed => {
                let shape = self.packed_shape(module);
                let tensors = PackedTensors {
                    bits,
                    group_cols,
                    weight_packed: module.bytes("weight_packed", &shape, Element::I32)?,
                    weight_scale: scales,
                    weight_zero_point: zero_points(&[words(rows, bits), groups], Element::I32)?,
                    weight_g_idx: module.optional_bytes("weight_g_idx", &[cols], Element::I32)?,
                };
                module.built("weight_packed", packed(rows, cols, tensors))
            }
            CompressedKind::Bytes => {
                let weight = module.bytes("weight", &[rows, cols], Element::I8)?;
                let zero_points = zero_points(&[rows, groups], Element::I8)?;
                let tensors = ByteTensors { weight, scales, zero_points, group_cols, divisor: 1.0 };
                module.built("weight", signed_bytes(rows, cols, tensors))
            }
            CompressedKind::Float8 => {
                let bytes = module.bytes("weight", &[rows, cols], Element::F8_E4M3)?;
                let block = self.sharing.block(rows, cols);
                module.built("weight", fp8::matrix(rows, cols, bytes, scales, block))
            }
        }
    }
}

/// Checks `weight_shape`, where it is stored.
fn check_shape(module: &StoredModule<'_>) -> Result<(), ModuleError> {
    let Some(bytes) = module.optional_bytes("weight_shape", &[2], Element::I64)? else {
        return Ok(());
    };
    let shape: Vec<u64> = bytes.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect();
    if shape != [module.rows as u64, module.cols as u64] {
        let reason = format!("holds {shape:?} instead of [{}, {}]", module.rows, module.cols);
        return Err(ModuleError::Content { tensor: "weight_shape", reason });
    }
    Ok(())
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

/// Returns the tensors of signed bytes with a scale per row.
pub(super) fn int8_tensors(rows: usize, cols: usize) -> Vec<WrittenTensor> {
    vec![
        WrittenTensor::of_rows("weight", Element::I8, &[rows, cols]),
        WrittenTensor::of_rows("weight_scale", Element::F32, &[rows, 1]),
    ]
}

/// Encodes rows of `cols` weights as signed bytes.
pub(super) fn encode_int8(weights: &[f32], cols: usize, rows: &mut EncodedRows) -> Result<()> {
    let mut codes = vec![0; cols];
    for row in weights.chunks_exact(cols.max(1)) {
        let group = IntFormat::Int8.quantize(row, &mut codes)?;
        rows.compare(row, codes.iter().map(|&code| group.value(code)));
        // Signed numbers are stored.
        rows.weights.extend(codes.iter().map(|code| code ^ 0x80));
        rows.scales.extend(group.scale.to_le_bytes());
    }
    Ok(())
}

/// Returns the tensors of integers of four bits in words.
pub(super) fn int4_tensors(rows: usize, cols: usize, group: usize, symmetric: bool) -> Vec<WrittenTensor> {
    let groups = cols / group;
    let shape = [rows as i64, cols as i64].iter().flat_map(|size| size.to_le_bytes()).collect();
    let mut tensors = vec![
        WrittenTensor::of_rows("weight_packed", Element::I32, &[rows, cols / 8]),
        WrittenTensor::of_rows("weight_scale", Element::F16, &[rows, groups]),
    ];
    if !symmetric {
        let shape = [words(rows, 4), groups];
        tensors.push(WrittenTensor::of_rows("weight_zero_point", Element::I32, &shape));
    }
    tensors.push(WrittenTensor::constant("weight_shape", Element::I64, 2, shape));
    tensors
}

/// Encodes rows of `cols` weights as integers of four bits in groups of `group` columns.
pub(super) fn encode_int4(
    weights: &[f32],
    cols: usize,
    group: usize,
    symmetric: bool,
    rows: &mut EncodedRows,
) -> Result<()> {
    let format = if symmetric { IntFormat::Q4_0 } else { IntFormat::Int4 };
    let mut codes = vec![0; cols];
    let mut offsets = Vec::new();
    for row in weights.chunks_exact(cols.max(1)) {
        for (weights, codes) in row.chunks_exact(group).zip(codes.chunks_exact_mut(group)) {
            let group = format.quantize(weights, codes)?;
            rows.compare(weights, codes.iter().map(|&code| group.value(code)));
            rows.scales.extend(f16::from_f32(group.scale).to_le_bytes());
            offsets.push(group.offset);
        }
        // The first of two codes is in the lower half.
        rows.weights.extend(codes.as_chunks::<2>().0.iter().map(|[low, high]| low | high << 4));
    }
    if !symmetric {
        pack_zero_points(&offsets, cols / group, &mut rows.zero_points);
    }
    Ok(())
}

/// Packs the zero points of rows with `groups` groups each.
fn pack_zero_points(offsets: &[u8], groups: usize, to: &mut Vec<u8>) {
    for rows in offsets.chunks(8 * groups) {
        // A word holds the zero points of eight rows.
        let word = |group| {
            let of_rows = rows.iter().skip(group).step_by(groups).enumerate();
            of_rows.fold(0, |word, (row, &offset)| word | u32::from(offset) << (4 * row))
        };
        to.extend((0..groups).flat_map(|group| word(group).to_le_bytes()));
    }
}
