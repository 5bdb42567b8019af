//! Packs weights of eight bits per number: integers and FP8, with scales.

use millrace_backend::{Error, Result};

use super::format::{DEPTH, OUTPUTS, PackedFormat};
use super::packed::{PackedWeight, expect_finite, expect_len};
use super::tiles::pack_tiles;

/// The scales of a weight's numbers.
#[derive(Debug, Clone, Copy)]
pub enum WeightScales<'a> {
    /// One scale for all numbers.
    Tensor(f32),
    /// One scale for each output: `[outputs]`.
    Outputs(&'a [f32]),
    /// One scale for each block: `[outputs / rows, inputs / columns]`, both rounded up.
    Blocks {
        /// Outputs of a block.
        rows: usize,
        /// Inputs of a block: a power of two, at least 32 (integers) or 64 (FP8).
        columns: usize,
        /// The scales.
        values: &'a [f32],
    },
}

/// Packs signed bytes `[outputs, inputs]`.
///
/// # Errors
/// [`Error::Shape`] if the lengths do not match, [`Error::Unsupported`] for scales that are not
/// finite or blocks that the kernels cannot read.
pub fn int8(outputs: usize, inputs: usize, values: &[i8], scales: WeightScales<'_>) -> Result<PackedWeight> {
    pack(PackedFormat::Int8, outputs, inputs, values.len(), scales, |i| values[i] as u8)
}

/// Packs FP8 numbers (e4m3) `[outputs, inputs]`.
///
/// # Errors
/// As for [`int8`], and [`Error::Unsupported`] for a weight that contains a NaN.
pub fn e4m3(outputs: usize, inputs: usize, values: &[u8], scales: WeightScales<'_>) -> Result<PackedWeight> {
    if values.iter().any(|v| v & 0x7f == 0x7f) {
        return Err(Error::Unsupported("a weight that contains a NaN".to_owned()));
    }
    pack(PackedFormat::Fp8, outputs, inputs, values.len(), scales, |i| values[i])
}

fn pack(
    format: PackedFormat,
    outputs: usize,
    inputs: usize,
    len: usize,
    scales: WeightScales<'_>,
    value: impl Fn(usize) -> u8,
) -> Result<PackedWeight> {
    if outputs == 0 || inputs == 0 {
        return Err(Error::Shape(format!("a weight of {outputs} by {inputs}")));
    }
    expect_len("the weight", len, outputs * inputs)?;
    let depth = inputs.next_multiple_of(DEPTH);
    let tensor;
    let (rows, columns, values) = match scales {
        WeightScales::Tensor(scale) => {
            tensor = [scale];
            (outputs, depth, &tensor[..])
        }
        WeightScales::Outputs(values) => (1, depth, values),
        WeightScales::Blocks { rows, columns, values } => {
            if rows == 0 || !columns.is_power_of_two() || columns < format.least_group() {
                return Err(Error::Unsupported(format!("scales for blocks of {rows} by {columns}")));
            }
            (rows, columns, values)
        }
    };
    let across = inputs.div_ceil(columns);
    expect_len("scales", values.len(), outputs.div_ceil(rows) * across)?;
    expect_finite(values)?;
    let mut packed = PackedWeight::zeros(format, outputs, inputs, depth, columns);
    for group in 0..across {
        for output in 0..outputs {
            let index = packed.scale_index(group, output);
            packed.scales[index] = values[output / rows * across + group].to_bits();
        }
    }
    let mut rows = vec![0; packed.data.len()]; // [outputs rounded up, depth]
    for (output, row) in rows.chunks_exact_mut(depth).take(outputs).enumerate() {
        for (column, to) in row[..inputs].iter_mut().enumerate() {
            *to = value(output * inputs + column);
        }
    }
    match format {
        PackedFormat::Fp8 => packed.data = rows,
        _ => {
            let block = OUTPUTS * depth;
            for (rows, to) in rows.chunks_exact(block).zip(packed.data.chunks_exact_mut(block)) {
                pack_tiles(format, rows, depth, to);
            }
        }
    }
    Ok(packed)
}
