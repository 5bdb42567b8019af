//! Encodes stacks of rows.

use half::f16;
use millrace_numbers::formats::fp8;
use millrace_numbers::formats::nf4;
use millrace_numbers::integers::Group;
use millrace_numbers::{IntFormat, Result};

use super::target::{BLOCK, Target};

/// Rows that are encoded together: whole words of zero points, whole FP8 blocks, and, in the
/// sequence of all weights, whole NF4 groups.
pub(super) const STACK: usize = 128;

/// A stack of rows of a matrix.
#[derive(Debug)]
pub(super) struct Rows {
    /// Bytes of the weights.
    pub(super) weights: Vec<u8>,
    /// Bytes of the scales.
    pub(super) scales: Vec<u8>,
    /// Bytes of the zero points, if the format has any.
    pub(super) zero_points: Vec<u8>,
    /// The sum of the squares of the weights.
    pub(super) squares: f64,
    /// The sum of the squares of the errors.
    pub(super) squared_errors: f64,
}

impl Rows {
    /// Encodes rows of `cols` weights. All stacks of a matrix but the last one have [`STACK`] rows.
    ///
    /// # Errors
    /// If a weight is not finite, or too large for the format's scales.
    pub(super) fn encode(target: Target, weights: &[f32], cols: usize) -> Result<Rows> {
        let mut rows = Rows {
            weights: Vec::with_capacity(weights.len()),
            scales: Vec::new(),
            zero_points: Vec::new(),
            squares: 0.0,
            squared_errors: 0.0,
        };
        match target {
            Target::Int8 => rows.int8(weights, cols)?,
            Target::Int4 { group, symmetric: false } => {
                let offsets = rows.groups(IntFormat::Int4, weights, cols, group)?;
                rows.pack_zero_points(&offsets, cols / group);
            }
            Target::Int4 { group, symmetric: true } => {
                rows.groups(IntFormat::Q4_0, weights, cols, group)?;
            }
            Target::Fp8 => rows.fp8(weights, cols)?,
            Target::Fp8Block => rows.fp8_blocks(weights, cols)?,
            Target::Nf4 => rows.nf4(weights)?,
        }
        Ok(rows)
    }

    /// Returns the bytes of the tensors that are made of rows, in the order of
    /// [`Target::tensors`].
    pub(super) fn tensors(&self) -> [&[u8]; 3] {
        [&self.weights, &self.scales, &self.zero_points]
    }

    fn int8(&mut self, weights: &[f32], cols: usize) -> Result<()> {
        let mut codes = vec![0; cols];
        for row in weights.chunks_exact(cols.max(1)) {
            let group = IntFormat::Int8.quantize(row, &mut codes)?;
            self.compare(row, codes.iter().map(|&code| group.value(code)));
            // Signed numbers are stored.
            self.weights.extend(codes.iter().map(|code| code ^ 0x80));
            self.scales.extend(group.scale.to_le_bytes());
        }
        Ok(())
    }

    /// Encodes groups of 4 bits by the arithmetic of `format`, and returns their offsets.
    fn groups(
        &mut self,
        format: IntFormat,
        weights: &[f32],
        cols: usize,
        group_cols: usize,
    ) -> Result<Vec<u8>> {
        let mut codes = vec![0; cols];
        let mut offsets = Vec::new();
        for row in weights.chunks_exact(cols.max(1)) {
            for (weights, codes) in row.chunks_exact(group_cols).zip(codes.chunks_exact_mut(group_cols)) {
                let group: Group = format.quantize(weights, codes)?;
                self.compare(weights, codes.iter().map(|&code| group.value(code)));
                self.scales.extend(f16::from_f32(group.scale).to_le_bytes());
                offsets.push(group.offset);
            }
            // The first of two codes is in the lower half.
            self.weights.extend(codes.as_chunks::<2>().0.iter().map(|[low, high]| low | high << 4));
        }
        Ok(offsets)
    }

    /// Packs the zero points of rows with `groups` groups each.
    fn pack_zero_points(&mut self, offsets: &[u8], groups: usize) {
        for rows in offsets.chunks(8 * groups) {
            // A word holds the zero points of eight rows.
            let word = |group| {
                let of_rows = rows.iter().skip(group).step_by(groups).enumerate();
                of_rows.fold(0, |word, (row, &offset)| word | u32::from(offset) << (4 * row))
            };
            self.zero_points.extend((0..groups).flat_map(|group| word(group).to_le_bytes()));
        }
    }

    fn fp8(&mut self, weights: &[f32], cols: usize) -> Result<()> {
        for row in weights.chunks_exact(cols.max(1)) {
            let start = self.weights.len();
            self.weights.resize(start + cols, 0);
            let scale = fp8::quantize(row, &mut self.weights[start..])?;
            let (squares, errors) =
                distance(row, self.weights[start..].iter().map(|&byte| fp8::widen(byte) * scale));
            self.squares += squares;
            self.squared_errors += errors;
            self.scales.extend(scale.to_le_bytes());
        }
        Ok(())
    }

    fn fp8_blocks(&mut self, weights: &[f32], cols: usize) -> Result<()> {
        self.weights.resize(weights.len(), 0);
        for rows in (0..weights.len()).step_by(BLOCK * cols) {
            for first in (0..cols).step_by(BLOCK) {
                let at = |row: usize| rows + row * cols + first;
                let block: Vec<f32> =
                    (0..BLOCK).flat_map(|row| &weights[at(row)..at(row) + BLOCK]).copied().collect();
                let mut bytes = vec![0; block.len()];
                let scale = fp8::quantize(&block, &mut bytes)?;
                self.compare(&block, bytes.iter().map(|&byte| fp8::widen(byte) * scale));
                for (row, bytes) in bytes.chunks_exact(BLOCK).enumerate() {
                    self.weights[at(row)..at(row) + BLOCK].copy_from_slice(bytes);
                }
                self.scales.extend(scale.to_le_bytes());
            }
        }
        Ok(())
    }

    /// The weights of all rows are one sequence, in which a group may span rows.
    fn nf4(&mut self, weights: &[f32]) -> Result<()> {
        for weights in weights.chunks(nf4::GROUP) {
            let mut codes = [0; nf4::GROUP];
            let codes = &mut codes[..weights.len()];
            let factor = nf4::quantize(weights, codes)?;
            self.compare(weights, codes.iter().map(|&code| nf4::TABLE[usize::from(code)] * factor));
            // The first of two codes is in the higher half.
            self.weights.extend(codes.chunks(2).map(|pair| pair[0] << 4 | pair.get(1).unwrap_or(&0)));
            self.scales.extend(factor.to_le_bytes());
        }
        Ok(())
    }

    /// Adds the squares of `weights`, and of their distances from `values`.
    fn compare(&mut self, weights: &[f32], values: impl Iterator<Item = f32>) {
        let (squares, errors) = distance(weights, values);
        self.squares += squares;
        self.squared_errors += errors;
    }
}

fn distance(weights: &[f32], values: impl Iterator<Item = f32>) -> (f64, f64) {
    let square = |x: f32| f64::from(x) * f64::from(x);
    weights.iter().zip(values).fold((0.0, 0.0), |(squares, errors), (&weight, value)| {
        (squares + square(weight), errors + square(weight - value))
    })
}
