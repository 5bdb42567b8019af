//! FP8 with four bits of exponent, three of mantissa and no infinities (e4m3; Micikevicius et al.,
//! "FP8 Formats for Deep Learning"). Checkpoints have scales for a matrix, its rows, or blocks of
//! rows and columns. In weights that are quantized here, one f32 factor per row scales the row's
//! largest number to the largest number of the format.

use std::ops::Range;
use std::sync::LazyLock;

use bytes::Bytes;

use super::module::{Element, ModuleError, StoredModule};
use super::written::{EncodedRows, WrittenTensor};
use crate::codes::{CodeRow, CodeType, CodedWeights};
use crate::scales::{Numbers, ScaleGrid, Sharing};
use crate::{Encoding, Error, HostTensor, Result};

/// The largest number of the format.
pub const LARGEST: f32 = 448.0;
/// Lower bound of a row's largest magnitude, so that every factor has a finite inverse.
const SMALLEST: f32 = 1e-30;

/// Quantizes `values` to e4m3 numbers in `to` and returns the factor, `max(|values|) / 448`: `to[i]
/// * factor` approximates `values[i]`. The kernel in `fp8.cu` uses the same arithmetic.
///
/// # Errors
/// [`Error::Unsupported`] for a NaN or an infinity.
///
/// # Panics
/// If the lengths differ.
pub fn quantize(values: &[f32], to: &mut [u8]) -> Result<f32> {
    assert_eq!(values.len(), to.len());
    // Magnitudes compare like their bits as integers, with a NaN as the largest.
    let largest = values.iter().fold(0, |most, value| most.max(value.to_bits() & !SIGN));
    let largest = f32::from_bits(largest).max(SMALLEST);
    if !values.iter().fold(true, |finite, value| finite & (value.to_bits() & !SIGN < INFINITY)) {
        return Err(Error::Unsupported("a weight with a NaN or an infinity".to_owned()));
    }
    let inverse = LARGEST / largest;
    for (to, value) in to.iter_mut().zip(values) {
        *to = nearest(value * inverse);
    }
    Ok(largest / LARGEST)
}

const SIGN: u32 = 1 << 31;
const INFINITY: u32 = 0xff << 23;
/// The bits of 2^-6, the smallest number of the format that is not subnormal.
const NORMAL: u32 = (127 - 6) << 23;

/// Returns the number of the format that is nearest to a finite `x`; ties go to the even one, and
/// magnitudes above 448 become 448. The code has no branches, so that compilers vectorize it.
fn nearest(x: f32) -> u8 {
    let bits = x.to_bits();
    let magnitude = (bits & !SIGN).min(LARGEST.to_bits());
    // Below 2^-6 the distance of neighbors is 2^-9. Adding 2^14 rounds to it: lower bits do not fit
    // the mantissa of the sum.
    let small = (f32::from_bits(magnitude) + 16384.0).to_bits().wrapping_sub(16384f32.to_bits());
    let normal = ((magnitude + 0x7_ffff + (magnitude >> 20 & 1)) >> 20).wrapping_sub((127 - 7) << 3);
    let rest = if magnitude < NORMAL { small } else { normal };
    ((bits >> 24 & 0x80) | rest) as u8
}

/// Returns the value of an e4m3 number.
pub fn widen(byte: u8) -> f32 {
    let (exponent, mantissa) = (byte >> 3 & 15, f32::from(byte & 7));
    let magnitude = match (exponent, byte & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa / 512.0,
        (e, _) => (1.0 + mantissa / 8.0) * (f32::from(e) - 7.0).exp2(),
    };
    if byte >> 7 == 1 { -magnitude } else { magnitude }
}

/// The ends of the names of a module's tensors. Scales of activations are not read: activations are
/// quantized with scales of their own.
pub(super) const TENSORS: &[&str] =
    &["weight", "weight_scale", "weight_scale_inv", "input_scale", "activation_scale"];

/// A checkpoint of e4m3 numbers, as its configuration describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fp8 {
    /// Rows and columns of a block, if blocks have scales.
    pub block: Option<[usize; 2]>,
}

impl Fp8 {
    /// The name of the format.
    pub const NAME: &str = "fp8";

    pub(super) fn name(&self) -> &'static str {
        Self::NAME
    }

    /// Returns the tensors of a module with a matrix `[rows, cols]`, as most checkpoints have them.
    pub(super) fn layout(&self, rows: usize, cols: usize) -> Vec<WrittenTensor> {
        let (name, sharing) = match self.block {
            Some(block) => ("weight_scale_inv", Sharing::Block(block)),
            None => ("weight_scale", Sharing::Row),
        };
        vec![
            WrittenTensor::of_rows("weight", Element::F8_E4M3, &[rows, cols]),
            WrittenTensor::of_rows(name, Element::F32, &sharing.shapes(rows, cols)[0]),
        ]
    }

    pub(super) fn read(&self, module: &StoredModule<'_>) -> Result<Option<HostTensor>, ModuleError> {
        if !module.is("weight", Element::F8_E4M3) {
            return Ok(None);
        }
        let (rows, cols) = (module.rows, module.cols);
        let tensor = if module.has("weight_scale_inv") { "weight_scale_inv" } else { "weight_scale" };
        let of_rows =
            module.find(tensor).is_some_and(|tensor| tensor.shape.first() == Some(&rows) && rows > 1);
        let sharing = match self.block {
            Some(block) => Sharing::Block(block),
            None if of_rows => Sharing::Row,
            None => Sharing::Tensor,
        };
        let scales = module.scales(tensor, sharing)?;
        let bytes = module.bytes("weight", &[rows, cols], Element::F8_E4M3)?;
        let block = sharing.block(rows, cols);
        module.built("weight", matrix(rows, cols, bytes, scales, block)).map(Some)
    }
}

/// Creates a matrix of e4m3 numbers `[rows, cols]` with a scale for each block of `block` rows and
/// columns. One scale for the whole matrix is a block of all rows and columns, and one for each row
/// is a block of one row and all columns.
///
/// # Errors
/// [`Error::Shape`] if a tensor has another length.
pub fn matrix(
    rows: usize,
    cols: usize,
    bytes: Bytes,
    scales: Numbers,
    block: [usize; 2],
) -> Result<HostTensor> {
    let [block_rows, block_cols] = block.map(|size| size.max(1));
    let scales = ScaleGrid::new(scales, rows.div_ceil(block_rows), cols.div_ceil(block_cols), false)?;
    HostTensor::new(Encoding::codes(Float8 { block, scales }), rows, cols, bytes)
}

/// Weights as e4m3 numbers times the scale of their block. The numbers `[rows, cols]`, one byte
/// each, are the bytes of the [`HostTensor`].
#[derive(Debug)]
struct Float8 {
    /// Rows and columns of a block.
    block: [usize; 2],
    /// The scale of each block: a "row" is a row of blocks, and a "group" a block in it.
    scales: ScaleGrid,
}

static VALUES: LazyLock<[f32; 256]> = LazyLock::new(|| std::array::from_fn(|byte| widen(byte as u8)));

impl CodedWeights for Float8 {
    fn check(&self, rows: usize, cols: usize, bytes: usize) -> Result<()> {
        let [block_rows, block_cols] = self.block;
        if rows.saturating_mul(cols) != bytes || block_rows == 0 || block_cols == 0 {
            return Err(Error::Shape(format!(
                "an fp8 matrix of {rows} x {cols} in blocks of {block_rows} x {block_cols} with {bytes} bytes"
            )));
        }
        self.scales.check(rows.div_ceil(block_rows), cols.div_ceil(block_cols))
    }

    fn row_bytes(&self, cols: usize) -> Option<usize> {
        Some(cols)
    }

    fn code_type(&self) -> CodeType {
        CodeType::E4m3
    }

    fn values(&self) -> &[f32] {
        &*VALUES
    }

    fn read_codes(&self, row: CodeRow<'_>, cols: Range<usize>, out: &mut [u8]) {
        let first = row.row * row.stored;
        out.copy_from_slice(&row.bytes[first + cols.start..first + cols.end]);
    }

    fn block(&self, row: CodeRow<'_>, col: usize) -> (f32, usize) {
        let end = (col / self.block[1] + 1).saturating_mul(self.block[1]);
        (self.scales.get(row.row / self.block[0], col / self.block[1]), end)
    }

    fn has_groups_of(&self, group: usize, _stored: usize, cols: &Range<usize>) -> bool {
        let block = self.block[1];
        let is_one = cols.is_empty() || cols.start / block == (cols.end - 1) / block;
        is_one || block.is_multiple_of(group) && cols.start.is_multiple_of(group)
    }
}

/// Rows and columns of a block of the checkpoints that are written with blocks.
pub const BLOCK: usize = 128;

/// Returns the tensors of e4m3 numbers with a scale per row.
pub(super) fn row_tensors(rows: usize, cols: usize) -> Vec<WrittenTensor> {
    vec![
        WrittenTensor::of_rows("weight", Element::F8_E4M3, &[rows, cols]),
        WrittenTensor::of_rows("weight_scale", Element::F32, &[rows, 1]),
    ]
}

/// Encodes rows of `cols` weights, with a scale for each.
pub(super) fn encode_rows(weights: &[f32], cols: usize, rows: &mut EncodedRows) -> Result<()> {
    let mut bytes = vec![0; cols];
    for row in weights.chunks_exact(cols.max(1)) {
        let scale = quantize(row, &mut bytes)?;
        rows.compare(row, bytes.iter().map(|&byte| widen(byte) * scale));
        rows.weights.extend_from_slice(&bytes);
        rows.scales.extend(scale.to_le_bytes());
    }
    Ok(())
}

/// Returns the tensors of e4m3 numbers with a scale per block.
pub(super) fn block_tensors(rows: usize, cols: usize) -> Vec<WrittenTensor> {
    vec![
        WrittenTensor::of_rows("weight", Element::F8_E4M3, &[rows, cols]),
        WrittenTensor::of_rows("weight_scale_inv", Element::F32, &[rows / BLOCK, cols / BLOCK]),
    ]
}

/// Returns the reason why a matrix cannot be written in blocks, if there is one.
pub(super) fn block_misfit(rows: usize, cols: usize) -> Option<String> {
    // vLLM refuses blocks that span two ranks or two parts of a fused matrix.
    (!rows.is_multiple_of(BLOCK) || !cols.is_multiple_of(BLOCK))
        .then(|| format!("{rows} x {cols} is not a multiple of blocks of {BLOCK} x {BLOCK}"))
}

/// Encodes rows of `cols` weights, with a scale for each block.
pub(super) fn encode_blocks(weights: &[f32], cols: usize, rows: &mut EncodedRows) -> Result<()> {
    rows.weights.resize(weights.len(), 0);
    for of_blocks in (0..weights.len()).step_by(BLOCK * cols) {
        for first in (0..cols).step_by(BLOCK) {
            let at = |row: usize| of_blocks + row * cols + first;
            let block: Vec<f32> =
                (0..BLOCK).flat_map(|row| &weights[at(row)..at(row) + BLOCK]).copied().collect();
            let mut bytes = vec![0; block.len()];
            let scale = quantize(&block, &mut bytes)?;
            rows.compare(&block, bytes.iter().map(|&byte| widen(byte) * scale));
            for (row, bytes) in bytes.chunks_exact(BLOCK).enumerate() {
                rows.weights[at(row)..at(row) + BLOCK].copy_from_slice(bytes);
            }
            rows.scales.extend(scale.to_le_bytes());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Finds the nearest number by a search of all numbers of the format. Of two equally near ones,
    /// the even one is taken.
    fn searched(x: f32) -> u8 {
        let distance = |byte: u8| (f64::from(widen(byte)) - f64::from(x.abs())).abs();
        let found =
            (0..0x7f).min_by(|&a, &b| distance(a).total_cmp(&distance(b)).then((a & 1).cmp(&(b & 1))));
        found.unwrap() | if x.is_sign_negative() { 0x80 } else { 0 }
    }

    proptest! {
        #[test]
        fn quantization_finds_the_nearest_number(exponent in -12f32..10.0, mantissa in 1f32..2.0, negative: bool) {
            let x = mantissa * exponent.floor().exp2() * if negative { -1.0 } else { 1.0 };
            prop_assert_eq!(nearest(x), searched(x));
        }

        #[test]
        fn the_largest_number_of_a_row_becomes_the_largest_of_the_format(values in prop::collection::vec(-1e4f32..1e4, 1..50)) {
            let mut to = vec![0; values.len()];
            let factor = quantize(&values, &mut to).unwrap();
            let largest = values.iter().fold(0f32, |most, value| most.max(value.abs()));
            prop_assert_eq!(factor, largest / 448.0);
            for (value, byte) in values.iter().zip(to) {
                // Half the distance of neighbors, for three bits of mantissa and for subnormal
                // numbers.
                let bound = (value.abs() / 16.0).max(factor / 1024.0) * 1.0001;
                prop_assert!((widen(byte) * factor - value).abs() <= bound, "{value}: {byte:#x} times {factor}");
            }
        }
    }

    #[test]
    fn numbers_of_the_format_are_unchanged() {
        for byte in (0..=255).filter(|byte| byte & 0x7f != 0x7f) {
            assert_eq!(nearest(widen(byte)), byte);
        }
        assert_eq!((nearest(1e9), nearest(-1e9)), (0x7e, 0xfe));
    }

    #[test]
    fn zeros_stay_zeros_and_non_finite_numbers_are_refused() {
        let mut to = [1; 2];
        assert!(quantize(&[0.0, -0.0], &mut to).unwrap() > 0.0);
        assert_eq!(to, [0, 0x80]);
        for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert!(quantize(&[1.0, bad], &mut to).unwrap_err().to_string().contains("NaN"));
        }
    }
}
