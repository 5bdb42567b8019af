//! Packs weights of four bits per number: GPTQ (Frantar et al.) and AWQ (Lin et al.).

use millrace_backend::{Error, Result};

use super::arrange::arrange;
use super::format::{DEPTH, OUTPUTS, PackedFormat, TILE_BYTES};
use super::packed::{PackedWeight, expect_finite, expect_len};

/// Numbers in one 32-bit word.
const PER_WORD: usize = 8;
/// The nibble in which AWQ stores each of eight neighbors.
const AWQ_NIBBLES: [usize; PER_WORD] = [0, 4, 1, 5, 2, 6, 3, 7];

/// A weight in the layout of GPTQ checkpoints: `w[i, o] = scales[g, o] * (q[i, o] - zero[g, o])`
/// with `g = g_idx[i]`.
#[derive(Debug, Clone, Copy)]
pub struct Gptq<'a> {
    /// Rows of the checkpoint's tensors; a multiple of 8.
    pub inputs: usize,
    /// Columns of the checkpoint's tensors; a multiple of 8.
    pub outputs: usize,
    /// Inputs per group; the number of inputs if all are one group.
    pub group_size: usize,
    /// `[inputs / 8, outputs]`, eight inputs per word, the first in the lowest bits.
    pub qweight: &'a [u32],
    /// `[groups, outputs / 8]`, eight outputs per word.
    pub qzeros: &'a [u32],
    /// `[groups, outputs]`.
    pub scales: &'a [f32],
    /// `[inputs]`: the group of each input, for weights in activation order. Without it input i has
    /// group `i / group_size`. The groups may be those of a larger weight of which this is a slice.
    pub g_idx: Option<&'a [u32]>,
    /// The offset that is added to the stored zero points: 1 in the format `gptq`, 0 in `gptq_v2`.
    pub zero_offset: u32,
}

/// A weight in the layout of AWQ checkpoints ("gemm"): `w[i, o] = scales[g, o] * (q[i, o] - zero[g,
/// o])` with `g = i / group_size`.
#[derive(Debug, Clone, Copy)]
pub struct Awq<'a> {
    /// Rows of the checkpoint's tensors.
    pub inputs: usize,
    /// Columns of the checkpoint's tensors; a multiple of 8.
    pub outputs: usize,
    /// Inputs per group; the number of inputs if all are one group.
    pub group_size: usize,
    /// `[inputs, outputs / 8]`, eight outputs per word; output c is in nibble 0, 4, 1, 5, 2, 6, 3,
    /// 7.
    pub qweight: &'a [u32],
    /// `[groups, outputs / 8]`, in the same order.
    pub qzeros: &'a [u32],
    /// `[groups, outputs]`.
    pub scales: &'a [f32],
}

/// Packs a GPTQ weight.
///
/// # Errors
/// [`Error::Shape`] if the tensors do not match, [`Error::Unsupported`] for scales that are not
/// finite.
pub fn gptq(w: &Gptq<'_>) -> Result<PackedWeight> {
    let groups = w.scales.len() / w.outputs.max(1);
    check_sizes(w.inputs, w.outputs, w.group_size)?;
    if !w.inputs.is_multiple_of(PER_WORD) {
        return Err(Error::Shape(format!("{} inputs are not a multiple of 8", w.inputs)));
    }
    if w.zero_offset > 1 {
        return Err(Error::Unsupported(format!("a zero point offset of {}", w.zero_offset)));
    }
    expect_len("qweight", w.qweight.len(), w.inputs / PER_WORD * w.outputs)?;
    let group_of: Vec<usize> = match w.g_idx {
        Some(g_idx) => {
            expect_len("g_idx", g_idx.len(), w.inputs)?;
            g_idx.iter().map(|&g| g as usize).collect()
        }
        None => (0..w.inputs).map(|i| i / w.group_size).collect(),
    };
    let number = |i: usize, o: usize| w.qweight[i / PER_WORD * w.outputs + o] >> (4 * (i % PER_WORD)) & 15;
    let zero = |g: usize, o: usize| {
        (w.qzeros[g * (w.outputs / PER_WORD) + o / PER_WORD] >> (4 * (o % PER_WORD)) & 15) + w.zero_offset
    };
    expect_len("qzeros", w.qzeros.len(), groups * w.outputs / PER_WORD)?;
    pack(w.inputs, w.outputs, w.scales, &group_of, number, zero)
}

/// Packs an AWQ weight.
///
/// # Errors
/// As for [`gptq`].
pub fn awq(w: &Awq<'_>) -> Result<PackedWeight> {
    let groups = w.scales.len() / w.outputs.max(1);
    check_sizes(w.inputs, w.outputs, w.group_size)?;
    let words = w.outputs / PER_WORD;
    expect_len("qweight", w.qweight.len(), w.inputs * words)?;
    expect_len("qzeros", w.qzeros.len(), groups * words)?;
    let group_of: Vec<usize> = (0..w.inputs).map(|i| i / w.group_size).collect();
    let nibble = |word: u32, o: usize| word >> (4 * AWQ_NIBBLES[o % PER_WORD]) & 15;
    let number = |i: usize, o: usize| nibble(w.qweight[i * words + o / PER_WORD], o);
    let zero = |g: usize, o: usize| nibble(w.qzeros[g * words + o / PER_WORD], o);
    pack(w.inputs, w.outputs, w.scales, &group_of, number, zero)
}

fn check_sizes(inputs: usize, outputs: usize, group_size: usize) -> Result<()> {
    if inputs == 0 || outputs == 0 || group_size == 0 {
        return Err(Error::Shape(format!("a weight of {inputs} by {outputs} in groups of {group_size}")));
    }
    if !outputs.is_multiple_of(PER_WORD) {
        return Err(Error::Shape(format!("{outputs} outputs are not a multiple of 8")));
    }
    Ok(())
}

/// Packs numbers and zero points that `number(input, output)` and `zero(group, output)` read from
/// the checkpoint.
fn pack(
    inputs: usize,
    outputs: usize,
    scales: &[f32],
    group_of: &[usize],
    number: impl Fn(usize, usize) -> u32,
    zero: impl Fn(usize, usize) -> u32,
) -> Result<PackedWeight> {
    let groups = scales.len() / outputs;
    expect_len("scales", scales.len(), groups * outputs)?;
    expect_finite(scales)?;
    let arranged = arrange(groups, group_of)?;
    let mut packed =
        PackedWeight::zeros(PackedFormat::Int4, outputs, inputs, arranged.columns.len(), arranged.group);
    for (at, &g) in arranged.groups.iter().enumerate() {
        for output in 0..outputs {
            let index = packed.scale_index(at, output);
            packed.scales[index] = word(scales[g * outputs + output], zero(g, output));
        }
    }
    let tiles = packed.depth / DEPTH;
    for tile in 0..packed.data.len() / TILE_BYTES {
        let (first_output, first_column) = (tile / tiles * OUTPUTS, tile % tiles * DEPTH);
        let bytes = &mut packed.data[tile * TILE_BYTES..(tile + 1) * TILE_BYTES];
        for (place, to) in bytes.chunks_exact_mut(4).enumerate() {
            // A lane's four words: two for each chunk of 32 columns, of which lane 4g + t has
            // eight.
            let (lane, half, chunk) = (place / 4, place % 2, place / 2 % 2);
            let column = first_column + chunk * 32 + lane % 4 * 8 + half * 4;
            let mut bits = 0;
            for i in 0..PER_WORD {
                let (of_pair, lower, later) = (i % 2, i / 2 % 2, i / 4);
                let output = first_output + lane / 4 + lower * 8;
                let shift = 4 * (later * 2 + lower) + 16 * of_pair;
                if let (true, Some(input)) =
                    (output < outputs, arranged.columns[column + later * 2 + of_pair])
                {
                    bits |= number(input, output) << shift;
                }
            }
            to.copy_from_slice(&bits.to_le_bytes());
        }
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
