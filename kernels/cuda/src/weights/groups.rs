//! Packs matrices of codes in groups that share a scale, block after block, so that several threads
//! can pack parts of one matrix at once.
//!
//! The codes are integers or FP8 numbers. They come from a checkpoint as they are, or weights are
//! quantized to integers while they are packed.

use std::ops::Range;

use millrace_backend::{Error, Result};
use millrace_numbers::codes::{CodeRows, CodeType, StoredCodes};
use millrace_numbers::formats::exact_format;
use millrace_numbers::formats::ggml::{BlockRows, SUPER_BLOCK, SuperBlock};
use millrace_numbers::integers::{Group, IntegerRows, Offsets};
use millrace_numbers::scales::NumberType;
use millrace_numbers::tensor::{part_of_row, stacked_shape};
use millrace_numbers::{DType, Encoding, IntFormat, KFormat, Part, WeightFormat};

use super::format::{CodeTable, DEPTH, GROUP, OUTPUTS, PackedFormat, WeightLayout};
use super::k_quants;
use super::tiles::pack_tiles;

/// The offset of all groups of signed bytes.
const MIDDLE_OF_BYTES: u8 = 128;
/// The lowest bits of a 4-bit group's word, which hold the zero point instead of the scale.
const ZERO_POINT: u32 = 31;

/// The sizes of one matrix of codes, or several, in the kernels' layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GroupLayout {
    pub(crate) format: PackedFormat,
    /// Matrices, one after the other.
    count: usize,
    /// Outputs of a matrix.
    outputs: usize,
    /// Columns of the codes, without the padding at the end of rows.
    cols: usize,
    /// Columns, padding included.
    pub(crate) depth: usize,
    /// Columns that share a scale: a power of two.
    pub(crate) group: usize,
}

impl GroupLayout {
    /// Returns the sizes of a matrix `[outputs, inputs]` in `format`. Returns `None` if the kernels
    /// cannot multiply by the format's groups.
    pub(crate) fn of(format: WeightFormat, outputs: usize, inputs: usize) -> Option<GroupLayout> {
        // The columns, and those of a group if a row has several.
        let (packed, cols, group) = match format {
            WeightFormat::Int(format) if !format.fits(inputs) => return None,
            WeightFormat::Int(format) => {
                let packed = if format.bits() == 4 { PackedFormat::Int4 } else { PackedFormat::Int8 };
                let cols = format.packed_cols(inputs);
                (packed, cols, (format != IntFormat::Int8).then(|| format.group_cols(cols)))
            }
            WeightFormat::K(format) if inputs.is_multiple_of(SUPER_BLOCK) => {
                (k_quants::packed_format(format), inputs, Some(GROUP))
            }
            WeightFormat::Fp8 => (PackedFormat::Fp8, inputs, None),
            WeightFormat::Codes(StoredCodes { codes: CodeType::E4m3, cols, by_row }) => {
                (PackedFormat::Fp8, inputs, (!by_row).then_some(cols))
            }
            WeightFormat::Codes(StoredCodes { codes: CodeType::FourBits, cols, .. }) => {
                (PackedFormat::Codes4, inputs, Some(cols))
            }
            _ => return None,
        };
        let depth = cols.next_multiple_of(DEPTH);
        let group = group.unwrap_or(depth.next_power_of_two());
        let fits = group.is_power_of_two() && group >= packed.least_group();
        fits.then_some(GroupLayout { format: packed, count: 1, outputs, cols, depth, group })
    }

    /// Returns how the matrix lies in device memory.
    pub(crate) fn weight_layout(&self) -> WeightLayout {
        WeightLayout::packed(self.format, self.depth, self.group)
    }

    /// Returns the sizes of `count` such matrices, one after the other.
    pub(crate) fn of_experts(self, count: usize) -> GroupLayout {
        GroupLayout { count, ..self }
    }

    /// Returns the number of blocks of 16 outputs. Each matrix begins a block.
    pub(crate) fn blocks(&self) -> usize {
        self.count.saturating_mul(self.outputs.div_ceil(OUTPUTS))
    }

    /// Returns the rows of a block, counted through all matrices.
    fn rows(&self, block: usize) -> Range<usize> {
        let blocks = self.outputs.div_ceil(OUTPUTS);
        let (first, output) = (block / blocks * self.outputs, block % blocks * OUTPUTS);
        first + output..first + self.outputs.min(output + OUTPUTS)
    }

    /// Returns the bytes of the codes of a block.
    pub(crate) fn block_bytes(&self) -> usize {
        OUTPUTS * self.depth * self.format.bits() / 8
    }

    /// Returns the number of scales of a block, which have a word each.
    pub(crate) fn block_scales(&self) -> usize {
        OUTPUTS * self.depth.div_ceil(self.group)
    }

    /// Returns the bytes of codes and scales.
    pub(crate) fn bytes(&self) -> usize {
        self.blocks().saturating_mul(self.block_bytes() + self.block_scales() * size_of::<u32>())
    }
}

/// Returns the format in which the kernels multiply by the stored numbers of `parts`. `Q4_K` and
/// `Q5_K` have errors as large as bfloat16 has, and all other formats are exact. There is none if
/// the parts are not stored in such a format, if the kernels lack their groups, if signed bytes
/// have zero points, if codes of four bits stand for other numbers than signed bytes, or if scales
/// of 4-bit groups have more than 18 bits of mantissa.
pub(crate) fn stored_format(parts: &[Part]) -> Option<WeightFormat> {
    let format = exact_format(parts)?;
    let part = parts.first()?;
    let layout = GroupLayout::of(format, part.rows.len(), part.cols.len())?;
    let is_exact = |part: &Part| {
        // GGUF's blocks have scales of type f16, and the scale of codes has a whole word.
        let Encoding::Integers(integers) = &part.tensor.encoding else { return true };
        let scales = &integers.scales;
        match layout.format {
            PackedFormat::Int4 => {
                let kind = scales.numbers.kind();
                let is_short = [DType::F16, DType::BF16].map(NumberType::Dense).contains(&kind);
                is_short && scales.divisor == 1.0
            }
            _ => integers.offsets == Offsets::Same(MIDDLE_OF_BYTES),
        }
    };
    let has_table = match format {
        WeightFormat::Codes(codes @ StoredCodes { codes: CodeType::FourBits, .. }) => {
            CodeRows::new(parts, codes).is_some_and(|rows| byte_table(&rows).is_some())
        }
        _ => true,
    };
    (has_table && parts.iter().all(is_exact)).then_some(format)
}

/// Returns what codes of four bits stand for, in units of the second number, if these are signed
/// bytes. The numbers of MXFP4 are halves.
fn byte_table(rows: &CodeRows<'_>) -> Option<(CodeTable, f32)> {
    let values = rows.table()?;
    [1.0, 0.5].into_iter().find_map(|unit| {
        let codes = values.map(|value| value / unit);
        let is_byte = |code: &f32| code.fract() == 0.0 && code.abs() <= f32::from(i8::MAX);
        codes.iter().all(is_byte).then(|| (codes.map(|code| code as i8), unit))
    })
}

/// Returns what [`stored_format`] does, for the parts of a layer's experts. Their columns cannot
/// have an order of their own.
pub(crate) fn stored_expert_format(parts: &[Part]) -> Option<WeightFormat> {
    let format = stored_format(parts)?;
    let is_ordered = |format| IntegerRows::new(parts, format).is_some_and(|rows| rows.order().is_some());
    (!matches!(format, WeightFormat::Int(format) if is_ordered(format))).then_some(format)
}

/// Matrices of codes that are packed in blocks of 16 outputs.
#[derive(Debug)]
pub(crate) struct GroupBlocks<'a> {
    layout: GroupLayout,
    rows: CodeSource<'a>,
}

/// Where the codes of a row come from.
#[derive(Debug)]
enum CodeSource<'a> {
    /// A checkpoint of integers in groups.
    Stored(IntegerRows<'a>),
    /// A GGUF file, with small blocks.
    Blocks(BlockRows<'a>),
    /// A GGUF file, with super-blocks.
    SuperBlocks(BlockRows<'a>, KFormat),
    /// A checkpoint of FP8 numbers, with the groups of the format.
    Codes(CodeRows<'a>, StoredCodes),
    /// Codes that a table says the numbers of, in this unit.
    Table(CodeRows<'a>, CodeTable, f32),
    /// Weights of any encoding, which are quantized.
    Quantized(&'a [Part], IntFormat),
    /// The same, to super-blocks.
    QuantizedBlocks(&'a [Part], KFormat),
}

/// Working memory for a row.
#[derive(Debug, Default)]
struct RowScratch {
    /// Weights, or factors of groups.
    weights: Vec<f32>,
    groups: Vec<Group>,
    blocks: Vec<SuperBlock>,
}

impl<'a> GroupBlocks<'a> {
    /// Prepares the stacked `parts` of `count` matrices of the same size for packing in `format`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the kernels cannot multiply by the format, or if it is one of
    /// stored numbers and the parts are stored otherwise.
    pub(crate) fn new(parts: &'a [Part], count: usize, format: WeightFormat) -> Result<GroupBlocks<'a>> {
        let (rows, inputs) = stacked_shape(parts)?;
        match format {
            WeightFormat::Int(format) => format.check_cols(inputs)?,
            WeightFormat::K(format) => format.check_cols(inputs)?,
            _ => {}
        }
        let layout = GroupLayout::of(format, rows / count.max(1), inputs);
        let Some(layout) = layout.map(|one| one.of_experts(count)) else {
            return Err(Error::Unsupported(format!(
                "{} weights in their groups of columns; only the CPU has them",
                format.name()
            )));
        };
        let rows = match format {
            WeightFormat::Codes(codes @ StoredCodes { codes: CodeType::E4m3, .. }) => {
                CodeRows::new(parts, codes).map(|rows| CodeSource::Codes(rows, codes))
            }
            WeightFormat::Codes(codes) => CodeRows::new(parts, codes).and_then(|rows| {
                let (table, unit) = byte_table(&rows)?;
                Some(CodeSource::Table(rows, table, unit))
            }),
            WeightFormat::Int(integers) => {
                let stored = IntegerRows::new(parts, integers).map(CodeSource::Stored);
                let blocks = || BlockRows::new(parts, format).map(CodeSource::Blocks);
                let is_stored = matches!(integers, IntFormat::Stored(_));
                let quantized = || (!is_stored).then_some(CodeSource::Quantized(parts, integers));
                stored.or_else(blocks).or_else(quantized)
            }
            WeightFormat::K(k) => {
                let blocks = BlockRows::new(parts, format).map(|rows| CodeSource::SuperBlocks(rows, k));
                Some(blocks.unwrap_or(CodeSource::QuantizedBlocks(parts, k)))
            }
            _ => None,
        };
        match rows {
            Some(rows) => Ok(GroupBlocks { layout, rows }),
            None => Err(Error::Unsupported(format!("other weights as {}", format.name()))),
        }
    }

    pub(crate) fn layout(&self) -> &GroupLayout {
        &self.layout
    }

    /// Returns what codes of four bits stand for.
    pub(crate) fn table(&self) -> CodeTable {
        match &self.rows {
            CodeSource::Table(_, table, _) => *table,
            _ => CodeTable::default(),
        }
    }

    /// Returns the input feature of each packed column, -1 for padding, or `None` if the columns
    /// are in order.
    pub(crate) fn columns(&self) -> Option<Vec<i32>> {
        let CodeSource::Stored(rows) = &self.rows else { return None };
        let order = rows.order()?;
        let mut seen = vec![false; self.layout.cols];
        // A column that comes again is padding of its group.
        let column = |&col: &u32| {
            if std::mem::replace(&mut seen[col as usize], true) { -1 } else { col as i32 }
        };
        let mut columns: Vec<i32> = order.iter().map(column).collect();
        columns.resize(self.layout.depth, -1);
        Some(columns)
    }

    /// Packs block `block`: its codes to `data`, and the words of its groups, `[groups, 16]`, to
    /// `words`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for weights that are not finite, and for scales and zero points that
    /// the layout cannot hold.
    ///
    /// # Panics
    /// If the slices do not have the lengths of a block.
    pub(crate) fn pack(&self, block: usize, data: &mut [u8], words: &mut [u32]) -> Result<()> {
        let GroupLayout { format, cols, depth, group, .. } = self.layout;
        assert_eq!((data.len(), words.len()), (self.layout.block_bytes(), self.layout.block_scales()));
        let mut codes = vec![0; OUTPUTS * depth]; // [OUTPUTS, depth]
        let mut of_row = vec![0; cols.div_ceil(group)];
        let mut scratch = RowScratch::default();
        words.fill(0);
        let rows = self.layout.rows(block).zip(codes.chunks_exact_mut(depth));
        for (output, (row, codes)) in rows.enumerate() {
            self.rows.read(row, format, &mut scratch, &mut codes[..cols], &mut of_row)?;
            for (words, word) in words.chunks_exact_mut(OUTPUTS).zip(&of_row) {
                words[output] = *word;
            }
        }
        match format {
            PackedFormat::Fp8 => data.copy_from_slice(&codes),
            _ => pack_tiles(format, &codes, depth, data),
        }
        Ok(())
    }
}

impl CodeSource<'_> {
    /// Writes the codes of a row as `format` has them, one per byte, and the words of its groups.
    fn read(
        &self,
        row: usize,
        format: PackedFormat,
        scratch: &mut RowScratch,
        codes: &mut [u8],
        words: &mut [u32],
    ) -> Result<()> {
        let RowScratch { weights, groups, blocks } = scratch;
        groups.resize(words.len(), Group { scale: 0.0, offset: 0 });
        match self {
            CodeSource::Stored(rows) => rows.read(row, codes, groups),
            CodeSource::Blocks(rows) => rows.read_groups(row, codes, groups)?,
            CodeSource::Codes(rows, format) => {
                weights.resize(codes.len().div_ceil(format.cols), 0.0);
                rows.read(row, codes, weights)?;
                // If a row is one group here, its factors are equal.
                for (group, &scale) in groups.iter_mut().zip(&*weights) {
                    *group = Group { scale, offset: 0 };
                }
            }
            CodeSource::Table(rows, _, unit) => {
                weights.resize(words.len(), 0.0);
                rows.read(row, codes, weights)?;
                for (word, scale) in words.iter_mut().zip(&*weights) {
                    *word = (scale * unit).to_bits();
                }
                return Ok(());
            }
            CodeSource::Quantized(parts, format) => {
                read_weights(parts, row, codes.len(), weights);
                format.quantize_row(weights, codes, groups)?;
            }
            CodeSource::SuperBlocks(rows, format) => {
                rows.read_super_blocks(row, blocks)?;
                k_quants::pack_row(*format, blocks, codes, words);
                return Ok(());
            }
            CodeSource::QuantizedBlocks(parts, format) => {
                read_weights(parts, row, codes.len(), weights);
                blocks.clear();
                for weights in weights.as_chunks::<SUPER_BLOCK>().0 {
                    blocks.push(format.quantize(weights)?);
                }
                k_quants::pack_row(*format, blocks, codes, words);
                return Ok(());
            }
        }
        for (word, group) in words.iter_mut().zip(&*groups) {
            *word = word_of(format, *group)?;
        }
        if format == PackedFormat::Int8 {
            codes.iter_mut().for_each(|code| *code ^= MIDDLE_OF_BYTES);
        }
        Ok(())
    }
}

/// Reads the `cols` weights of a row of stacked parts.
fn read_weights(parts: &[Part], row: usize, cols: usize, weights: &mut Vec<f32>) {
    let (part, row) = part_of_row(parts, row);
    weights.resize(cols, 0.0);
    part.read_row(row, weights);
}

/// Returns the word of a group, which holds exactly its scale and its zero point.
fn word_of(format: PackedFormat, group: Group) -> Result<u32> {
    let Group { scale, offset } = group;
    if !scale.is_finite() {
        return Err(Error::Unsupported(format!("a scale of {scale}")));
    }
    let bits = scale.to_bits();
    match format {
        PackedFormat::Int4 if bits & ZERO_POINT != 0 => Err(Error::Unsupported(format!(
            "a scale of {scale:e} for weights of 4 bits: it has more than 18 bits of mantissa"
        ))),
        PackedFormat::Int4 => Ok(bits | u32::from(offset)),
        PackedFormat::Int8 if offset != MIDDLE_OF_BYTES => {
            Err(Error::Unsupported(format!("a zero point of {offset} for weights of 8 bits: not 128")))
        }
        _ => Ok(bits),
    }
}
