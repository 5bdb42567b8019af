//! Activations as signed bytes with one scale per row and group.

use std::ops::Range;

use millrace_backend::Result;
use millrace_numbers::integers::IntFormat;

use super::super::memory::{Memory, Plain, Shared};
use super::super::simd::{Extension, Kernel, Simd};
use super::super::tile::Tiles;

/// The smallest number of columns that the product computes at once. Rows are padded to it.
pub(crate) const STEP: usize = 32;
/// The columns of the largest group of activations.
const LARGEST_GROUP: usize = 128;
/// The largest magnitude of a quantized activation.
const LARGEST: f32 = 127.0;
/// Lower bound of a group's largest magnitude, so that every scale has a finite inverse.
const SMALLEST: f32 = 1e-30;

/// The scale of a group of activations, and the sum of the group's bytes, in the form that the
/// product needs.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct GroupScale {
    /// `activation = byte * scale`.
    pub(super) scale: f32,
    /// The sum of the bytes, times the negated offset that all groups of weights have, or -1 if
    /// each has its own.
    pub(super) correction: i32,
}

// SAFETY: both fields are plain numbers.
unsafe impl Plain for GroupScale {}

/// The layout of quantized rows.
///
/// The rows of a tile lie together, so that the product reads their numbers as one stream: bytes as
/// `[columns / STEP][rows of the tile][STEP]`, scales as `[groups][rows of the tile]`. All rows
/// take the same room, so a tile begins behind the rows before it.
#[derive(Debug, Clone, Copy)]
pub(super) struct RowLayout {
    pub(super) cols: usize,
    /// Columns of a group, a multiple of [`STEP`]. The last group may have fewer.
    pub(super) group: usize,
    /// The correction per unit of a group's sum.
    factor: i32,
    pub(super) tiles: Tiles,
}

impl RowLayout {
    /// Returns the layout of rows that are multiplied by weights of `format` with `cols` columns.
    pub(super) fn new(format: IntFormat, cols: usize, tiles: Tiles) -> RowLayout {
        let factor = format.offset().map_or(-1, |offset| -i32::from(offset));
        RowLayout { cols, group: format.activation_cols(cols), factor, tiles }
    }

    /// Returns the groups of a row.
    pub(super) fn groups(&self) -> usize {
        self.cols.div_ceil(self.group)
    }

    /// Returns the bytes of a row, with its padding.
    pub(super) fn stride(&self) -> usize {
        stride(self.cols)
    }
}

/// Returns the distance of two rows of quantized activations in bytes: whole cache lines, and no
/// multiple of a large power of two, so that the rows of a tile do not compete for the same lines
/// of the cache.
const fn stride(cols: usize) -> usize {
    let lines = cols.div_ceil(64);
    64 * if lines.is_multiple_of(16) { lines + 1 } else { lines }
}

/// Returns the bytes that a row of `cols` columns takes in the buffer, in any format.
pub(crate) const fn row_bytes(cols: usize) -> usize {
    stride(cols) + cols.div_ceil(STEP) * size_of::<GroupScale>()
}

/// The buffer for the quantized activations of a product, large enough for the largest one.
#[derive(Debug)]
pub(crate) struct ActivationBuffer {
    rows: usize,
    cols: usize,
    pub(super) bytes: Memory<i8>,
    pub(super) scales: Memory<GroupScale>,
}

impl ActivationBuffer {
    pub(crate) fn new() -> Result<Self> {
        let what = "quantized activations";
        let (bytes, scales) = (Memory::zeroed(0, what)?, Memory::zeroed(0, what)?);
        Ok(ActivationBuffer { rows: 0, cols: 0, bytes, scales })
    }

    /// Enlarges the buffer to products of `rows` rows and `cols` inputs. No bytes are allocated
    /// before there are both.
    pub(crate) fn reserve(&mut self, rows: usize, cols: usize) -> Result<()> {
        (self.rows, self.cols) = (self.rows.max(rows), self.cols.max(cols));
        if self.cols == 0 {
            return Ok(());
        }
        let (bytes, scales) = (stride(self.cols), self.cols.div_ceil(STEP));
        if self.rows.saturating_mul(bytes) > self.bytes.len() {
            self.bytes = Memory::zeroed(self.rows.saturating_mul(bytes), "quantized activations")?;
        }
        if self.rows.saturating_mul(scales) > self.scales.len() {
            self.scales = Memory::zeroed(self.rows.saturating_mul(scales), "quantized activations")?;
        }
        Ok(())
    }
}

/// The quantization of some groups of the rows of a tile. Each group's largest magnitude becomes
/// 127. The scale of a group with a NaN or an infinity is NaN.
pub(super) struct QuantizeTile<'a> {
    /// All rows, `[n, inputs]`.
    pub(super) x: &'a [f32],
    pub(super) inputs: usize,
    pub(super) layout: RowLayout,
    /// The column of `x` for each column of the quantized row, if they differ.
    pub(super) order: Option<&'a [u32]>,
    pub(super) tile: usize,
    pub(super) groups: Range<usize>,
    /// The bytes of all rows.
    pub(super) bytes: Shared<i8>,
    /// The scales of all rows.
    pub(super) scales: Shared<GroupScale>,
}

impl Kernel for QuantizeTile<'_> {
    const USES: Extension = Extension::None;
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let layout = self.layout;
        let rows = layout.tiles.rows(self.tile);
        let height = rows.len();
        for (i, x) in self.x.chunks_exact(self.inputs).skip(rows.start).take(height).enumerate() {
            for index in self.groups.clone() {
                let mut gathered = [0f32; LARGEST_GROUP];
                let x = self.group(x, index, &mut gathered);
                // SAFETY: rows and groups are inside the buffers, and this task alone writes them.
                // A padded group ends before the next row: rows are padded to whole cache lines.
                unsafe {
                    let to = self.bytes.as_ptr().add(rows.start * layout.stride());
                    let to = to.add(index * layout.group * height + i * STEP);
                    let (scale, sum) = quantize_group::<S>(x, to, height * STEP);
                    let to = self.scales.as_ptr().add(rows.start * layout.groups() + index * height + i);
                    *to = GroupScale { scale, correction: layout.factor * sum };
                }
            }
        }
    }
}

impl QuantizeTile<'_> {
    /// Returns the numbers of a group of a row, in the order of the quantized row and with zeros up
    /// to a multiple of [`STEP`]: a part of the row, or `gathered`.
    #[inline(always)]
    fn group<'g>(&self, row: &'g [f32], index: usize, gathered: &'g mut [f32; LARGEST_GROUP]) -> &'g [f32] {
        let RowLayout { cols, group, .. } = self.layout;
        let first = index * group;
        let len = group.min(cols - first);
        match self.order {
            None if len.is_multiple_of(STEP) => return &row[first..first + len],
            None => gathered[..len].copy_from_slice(&row[first..first + len]),
            Some(order) => {
                let order = &order[first..first + len];
                gathered.iter_mut().zip(order).for_each(|(to, &col)| *to = row[col as usize]);
            }
        }
        &gathered[..len.next_multiple_of(STEP)]
    }
}

/// Quantizes the numbers of a group, a multiple of [`STEP`], and returns the scale and the sum of
/// the bytes. Each [`STEP`] bytes are written at a distance of `stride` bytes.
#[inline(always)]
pub(crate) unsafe fn quantize_group<S: Simd>(x: &[f32], to: *mut i8, stride: usize) -> (f32, i32) {
    // SAFETY: the caller guarantees the instruction set and room for the bytes. The number of lanes
    // divides `STEP`.
    unsafe {
        let zero = S::splat(0.0);
        let (mut largest, mut check) = (zero, zero);
        for at in (0..x.len()).step_by(S::LANES) {
            let x = S::load(x.as_ptr().add(at));
            largest = S::max(largest, S::max(x, S::sub(zero, x)));
            check = S::fma(x, zero, check);
        }
        // 0, or NaN if a number is a NaN or an infinity.
        let check = S::sum(check);
        let largest = S::greatest(largest).max(SMALLEST);
        let inverse = S::splat(LARGEST / largest);
        let mut sums = S::splat_i(0);
        for at in (0..x.len()).step_by(S::LANES) {
            let bytes = S::to_i(S::mul(S::load(x.as_ptr().add(at)), inverse));
            S::store_i8(to.add(at / STEP * stride + at % STEP), bytes);
            sums = S::add_i(sums, bytes);
        }
        // The sum is exact: it is below 2^24. Numbers that are not finite have arbitrary bytes.
        let sum = if check.is_nan() { 0 } else { S::sum(S::to_f32(sums)) as i32 };
        (largest / LARGEST + check, sum)
    }
}
