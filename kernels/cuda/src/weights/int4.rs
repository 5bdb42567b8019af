//! Packs integers of four bits in groups, as GPTQ, AWQ and compressed-tensors store them.

use millrace_backend::{Error, Result};
use millrace_numbers::{Encoding, Part};

use super::arrange::arrange;
use super::format::{OUTPUTS, PackedFormat};
use super::packed::{PackedWeight, expect_finite};
use super::tiles::pack_tiles;

/// Packs a matrix `[outputs, inputs]` that a checkpoint stores as integers of at most four bits.
///
/// # Errors
/// [`Error::Unsupported`] for another encoding, and for scales that are not finite, and
/// [`Error::Shape`] for a matrix without elements.
pub fn int4(part: &Part) -> Result<PackedWeight> {
    let integers = match &part.tensor.encoding {
        Encoding::Integers(integers) if integers.codes.bits() <= 4 => integers,
        _ => return Err(Error::Unsupported("other weights than integers of four bits".to_owned())),
    };
    let (outputs, inputs) = (part.rows.len(), part.cols.len());
    if outputs == 0 || inputs == 0 {
        return Err(Error::Shape(format!("a weight of {outputs} by {inputs}")));
    }
    let mut codes = vec![0; outputs * inputs]; // [outputs, inputs]
    for (row, codes) in part.rows.clone().zip(codes.chunks_exact_mut(inputs)) {
        integers.codes.read_row(&part.tensor.bytes, row, part.cols.clone(), codes);
    }
    let group_of: Vec<usize> = part.cols.clone().map(|col| integers.groups.group(col)).collect();
    let arranged = arrange(group_of.iter().max().map_or(0, |last| last + 1), &group_of)?;
    let mut packed =
        PackedWeight::zeros(PackedFormat::Int4, outputs, inputs, arranged.columns.len(), arranged.group);
    for (at, &group) in arranged.groups.iter().enumerate() {
        for output in 0..outputs {
            let group = integers.group(part.rows.start + output, group);
            expect_finite(&[group.scale])?;
            let index = packed.scale_index(at, output);
            packed.scales[index] = word(group.scale, u32::from(group.offset));
        }
    }
    let depth = packed.depth;
    let block_bytes = OUTPUTS * depth / 2;
    for (block, data) in packed.data.chunks_exact_mut(block_bytes).enumerate() {
        let mut ordered = vec![0; OUTPUTS * depth]; // [OUTPUTS, depth]
        let rows = codes.chunks_exact(inputs).skip(block * OUTPUTS);
        for (row, ordered) in rows.zip(ordered.chunks_exact_mut(depth)) {
            for (code, column) in ordered.iter_mut().zip(&arranged.columns) {
                *code = column.map_or(0, |input| row[input]);
            }
        }
        pack_tiles(PackedFormat::Int4, &ordered, depth, data);
    }
    if !arranged.is_identity(inputs) {
        packed.columns = Some(arranged.columns.iter().map(|c| c.map_or(-1, |c| c as i32)).collect());
    }
    Ok(packed)
}

/// The scale, rounded to 18 bits of mantissa, with the zero point in the bits that this frees.
fn word(scale: f32, zero: u32) -> u32 {
    let rounded = (scale.to_bits() + 16) & !31;
    rounded | zero
}
