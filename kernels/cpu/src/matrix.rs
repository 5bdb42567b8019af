//! Weights in the layout that the matrix product reads: panels
//! `[ceil(out / width)][ceil(cols / pack)][width][pack]`. A panel is one sequential stream in which
//! each group of `pack` inputs comes with its weights for `width` outputs. Missing outputs of the
//! last panel and missing inputs of the last group are zeros.

use half::{bf16, f16};
use millrace_backend::Result;
use millrace_numbers::codes::CodeRows;
use millrace_numbers::codes::StoredCodes;
use millrace_numbers::formats::ggml::BlockRows;
use millrace_numbers::formats::nf4;
use millrace_numbers::integers::IntegerRows;
use millrace_numbers::tensor::{part_of_row, stacked_shape};
use millrace_numbers::{DType, IntFormat, KFormat, Part, WeightFormat};

use super::cache::Packing;
use super::inputs::InputWords;
use super::memory::{Memory, Shared};
use super::quant::{IntPanels, RowContents};
use super::simd::{Element, Target};
use super::super_blocks::KPanels;
use super::tables::TablePanels;

/// A packed weight matrix `[out, cols]`.
#[derive(Debug)]
pub struct Matrix {
    pub(super) out: usize,
    pub(super) cols: usize,
    pub(super) packed: Packed,
}

/// The formats of packed weights. Each has its own inner loop.
#[derive(Debug)]
pub(super) enum Packed {
    F32(Panels<f32>),
    F16(Panels<f16>),
    BF16(Panels<bf16>),
    /// Two inputs next to each other, for [`Simd::dot_bf16`](super::simd::Simd::dot_bf16).
    Bf16Pairs(Panels<bf16>),
    /// Integers in groups with a scale.
    Int(IntPanels),
    /// Integers in super-blocks.
    SuperBlocks(KPanels),
    /// Codes that stand for numbers.
    Table(TablePanels, InputWords),
    /// Successive rows in other formats than dense ones, each with its own inner loop.
    Stack(Vec<Matrix>),
    /// The rows of an embedding, not packed.
    Stored(StoredRows),
}

/// An embedding whose rows stay where the checkpoint has them.
#[derive(Debug)]
pub(super) struct StoredRows {
    parts: Vec<Part>,
    /// The type to which the numbers are rounded.
    dtype: DType,
}

/// The layout of a packed matrix.
#[derive(Debug, Clone, Copy)]
pub(super) struct PanelLayout {
    /// Outputs of a panel.
    pub(super) width: usize,
    /// Whether bf16 weights are packed in pairs.
    pub(super) bf16_pairs: bool,
}

impl PanelLayout {
    /// Returns the inputs in a group.
    fn pack(self, dtype: DType) -> usize {
        if self.bf16_pairs && dtype == DType::BF16 { 2 } else { 1 }
    }
}

/// Panels of numbers of one type.
#[derive(Debug)]
pub(super) struct Panels<T: Element> {
    shape: PanelShape,
    data: Memory<T>,
}

#[derive(Debug, Clone, Copy)]
struct PanelShape {
    width: usize,
    pack: usize,
    cols: usize,
}

impl PanelShape {
    /// Returns the elements of a panel.
    fn len(self) -> usize {
        self.cols.next_multiple_of(self.pack) * self.width
    }

    /// Returns the index of the weight of an output and an input within the panel.
    fn index(self, lane: usize, col: usize) -> usize {
        (col / self.pack * self.width + lane) * self.pack + col % self.pack
    }
}

impl Matrix {
    /// Packs `parts` as `dtype`.
    pub(super) fn pack(
        parts: &[Part],
        dtype: DType,
        layout: PanelLayout,
        packing: Packing<'_>,
    ) -> Result<Matrix> {
        let (out, cols) = stacked_shape(parts)?;
        let pack = layout.pack(dtype);
        let shape = PanelShape { width: layout.width, pack, cols };
        let packed = match dtype {
            DType::F32 => Packed::F32(Panels::pack(parts, out, shape, packing)?),
            DType::F16 => Packed::F16(Panels::pack(parts, out, shape, packing)?),
            DType::BF16 if pack == 2 => Packed::Bf16Pairs(Panels::pack(parts, out, shape, packing)?),
            DType::BF16 => Packed::BF16(Panels::pack(parts, out, shape, packing)?),
        };
        Ok(Matrix { out, cols, packed })
    }

    /// Keeps `parts` as an embedding of numbers of type `dtype`.
    pub(super) fn stored(parts: &[Part], dtype: DType) -> Result<Matrix> {
        let (out, cols) = stacked_shape(parts)?;
        Ok(Matrix { out, cols, packed: Packed::Stored(StoredRows { parts: parts.to_vec(), dtype }) })
    }

    /// Packs `parts` as integers of `format` for the instruction set `target`. Integers that are
    /// stored in this format are copied, and all others are quantized.
    pub(super) fn pack_int(
        parts: &[Part],
        format: IntFormat,
        target: Target,
        packing: Packing<'_>,
    ) -> Result<Matrix> {
        let (out, cols) = stacked_shape(parts)?;
        let stored = IntegerRows::new(parts, format);
        let blocks = BlockRows::new(parts, WeightFormat::Int(format));
        let order = stored.as_ref().and_then(|rows| rows.order());
        let panels = IntPanels::pack((out, cols), format, target, order, packing, |row, to| {
            if let Some(stored) = &stored {
                stored.read(row, &mut to.codes, &mut to.groups);
                return Ok(RowContents::Codes);
            }
            if let Some(blocks) = &blocks {
                blocks.read_groups(row, &mut to.codes, &mut to.groups)?;
                return Ok(RowContents::Codes);
            }
            let (part, row) = part_of_row(parts, row);
            part.read_row(row, &mut to.weights);
            Ok(RowContents::Weights)
        })?;
        Ok(Matrix { out, cols, packed: Packed::Int(panels) })
    }

    /// Packs `parts` as super-blocks of `format` for the instruction set `target`. Blocks that are
    /// stored in this format are copied, and all other weights are quantized.
    pub(super) fn pack_super_blocks(
        parts: &[Part],
        format: KFormat,
        target: Target,
        packing: Packing<'_>,
    ) -> Result<Matrix> {
        let (out, cols) = stacked_shape(parts)?;
        let blocks = BlockRows::new(parts, WeightFormat::K(format));
        let panels = KPanels::pack((out, cols), format, target, packing, |row, to| {
            if let Some(blocks) = &blocks {
                blocks.read_super_blocks(row, &mut to.blocks)?;
                return Ok(RowContents::Codes);
            }
            let (part, row) = part_of_row(parts, row);
            part.read_row(row, &mut to.weights);
            Ok(RowContents::Weights)
        })?;
        Ok(Matrix { out, cols, packed: Packed::SuperBlocks(panels) })
    }

    /// Packs `parts`, whose codes are `stored` in `format`, for the instruction set `target`, to be
    /// multiplied with inputs in the form `words`.
    pub(super) fn pack_codes(
        parts: &[Part],
        format: StoredCodes,
        stored: &CodeRows<'_>,
        words: InputWords,
        target: Target,
        packing: Packing<'_>,
    ) -> Result<Matrix> {
        let (out, cols) = stacked_shape(parts)?;
        let table = stored.table().unwrap_or_default();
        let panels = TablePanels::pack((out, cols), format, table, target, packing, |row, to| {
            stored.read(row, &mut to.codes, &mut to.factors)?;
            Ok(RowContents::Codes)
        })?;
        Ok(Matrix { out, cols, packed: Packed::Table(panels, words) })
    }

    /// Quantizes `parts` to FP8 or NF4 and packs them as [`Matrix::pack_codes`] does.
    pub(super) fn pack_quantized_codes(
        parts: &[Part],
        format: StoredCodes,
        words: InputWords,
        target: Target,
        packing: Packing<'_>,
    ) -> Result<Matrix> {
        let (out, cols) = stacked_shape(parts)?;
        let panels = TablePanels::pack((out, cols), format, nf4::TABLE, target, packing, |row, to| {
            let (part, row) = part_of_row(parts, row);
            part.read_row(row, &mut to.weights);
            Ok(RowContents::Weights)
        })?;
        Ok(Matrix { out, cols, packed: Packed::Table(panels, words) })
    }

    /// Tells whether the weights are numbers of one type, which can be read by rows.
    pub(super) fn is_dense(&self) -> bool {
        !matches!(self.packed, Packed::Int(_) | Packed::SuperBlocks(_) | Packed::Table(..) | Packed::Stack(_))
    }

    /// Returns the bytes of a packed matrix.
    pub(super) fn bytes(out: usize, cols: usize, dtype: DType, layout: PanelLayout) -> usize {
        out.next_multiple_of(layout.width) * cols.next_multiple_of(layout.pack(dtype)) * dtype.size()
    }

    /// Returns the form of the inputs that the weights are multiplied with.
    pub(super) fn words(&self) -> InputWords {
        match self.packed {
            Packed::F32(_) | Packed::F16(_) | Packed::BF16(_) => InputWords::F32,
            // Unless activations become bytes.
            Packed::Int(_) | Packed::SuperBlocks(_) => InputWords::F32,
            Packed::Bf16Pairs(_) => InputWords::Bf16Pairs,
            Packed::Table(_, words) => words,
            Packed::Stack(_) | Packed::Stored(_) => {
                unreachable!("rows of an embedding, or of several formats, have no inner loop; this is a bug")
            }
        }
    }

    /// Writes row `row` as f32 to `to`.
    pub(super) fn read_row(&self, row: usize, to: &mut [f32]) {
        assert!(row < self.out && to.len() == self.cols, "row {row} of {} x {}", self.out, self.cols);
        match &self.packed {
            Packed::F32(panels) => panels.read_row(row, to),
            Packed::F16(panels) => panels.read_row(row, to),
            Packed::BF16(panels) | Packed::Bf16Pairs(panels) => panels.read_row(row, to),
            Packed::Stored(StoredRows { parts, dtype }) => {
                let (part, row) = part_of_row(parts, row);
                part.read_row(row, to);
                to.iter_mut().for_each(|x| *x = dtype.round(*x));
            }
            Packed::Int(_) | Packed::SuperBlocks(_) | Packed::Table(..) | Packed::Stack(_) => {
                unreachable!("only rows of dense matrices are looked up; this is a bug")
            }
        }
    }
}

impl<T: Element> Panels<T> {
    fn pack(parts: &[Part], out: usize, shape: PanelShape, packing: Packing<'_>) -> Result<Self> {
        let (width, size) = (shape.width, shape.len());
        let mut data: Memory<T> = Memory::zeroed(out.div_ceil(width) * size, "weights")?;
        if packing.load(&mut [&mut data]) {
            return Ok(Panels { shape, data });
        }
        let shared = Shared::new(&mut data);
        packing.pool.run(out.div_ceil(width), |p, _| {
            // SAFETY: panel p belongs to this task alone.
            let panel = unsafe { shared.slice(p * size, size) };
            let mut values = vec![0.0; shape.cols];
            for (lane, row) in (p * width..out.min((p + 1) * width)).enumerate() {
                let (part, row) = part_of_row(parts, row);
                part.read_row(row, &mut values);
                for (col, x) in values.iter().enumerate() {
                    panel[shape.index(lane, col)] = T::from_f32(*x);
                }
            }
        });
        packing.keep(&mut [&mut data]);
        Ok(Panels { shape, data })
    }

    /// Returns the start of the first panel.
    pub(super) fn start(&self) -> *const T {
        self.data.as_ptr()
    }

    fn read_row(&self, row: usize, to: &mut [f32]) {
        let panel = &self.data[row / self.shape.width * self.shape.len()..];
        for (col, x) in to.iter_mut().enumerate() {
            *x = panel[self.shape.index(row % self.shape.width, col)].to_f32();
        }
    }
}
