//! Weights in the layout that the matrix product reads: panels `[ceil(out / width)][in][width]`. A
//! panel is one sequential stream in which each input comes with its weights for `width` outputs.
//! Missing outputs of the last panel are zeros.

use half::{bf16, f16};

use super::memory::{Memory, Shared};
use super::simd::Element;
use crate::tensor::stacked_shape;
use crate::thread_pool::ThreadPool;
use crate::{DType, Part, Result};

/// A packed weight matrix `[out, cols]`.
#[derive(Debug)]
pub struct Matrix {
    pub(super) out: usize,
    pub(super) cols: usize,
    pub(super) packed: Packed,
}

/// The element types of packed weights. Each has its own inner loop.
#[derive(Debug)]
pub(super) enum Packed {
    F32(Panels<f32>),
    F16(Panels<f16>),
    BF16(Panels<bf16>),
}

/// Panels of numbers of one type.
#[derive(Debug)]
pub(super) struct Panels<T: Element> {
    width: usize,
    cols: usize,
    data: Memory<T>,
}

impl Matrix {
    /// Packs `parts` as `dtype` in panels of `width` outputs.
    pub(super) fn pack(parts: &[Part], dtype: DType, width: usize, pool: &ThreadPool) -> Result<Matrix> {
        let (out, cols) = stacked_shape(parts)?;
        let packed = match dtype {
            DType::F32 => Packed::F32(Panels::pack(parts, out, cols, width, pool)?),
            DType::F16 => Packed::F16(Panels::pack(parts, out, cols, width, pool)?),
            DType::BF16 => Packed::BF16(Panels::pack(parts, out, cols, width, pool)?),
        };
        Ok(Matrix { out, cols, packed })
    }

    /// Returns the bytes of a packed matrix.
    pub(super) fn bytes(out: usize, cols: usize, dtype: DType, width: usize) -> usize {
        out.next_multiple_of(width) * cols * dtype.size()
    }

    /// Writes row `row` as f32 to `to`.
    pub(super) fn read_row(&self, row: usize, to: &mut [f32]) {
        assert!(row < self.out && to.len() == self.cols, "row {row} of {} x {}", self.out, self.cols);
        match &self.packed {
            Packed::F32(panels) => panels.read_row(row, to),
            Packed::F16(panels) => panels.read_row(row, to),
            Packed::BF16(panels) => panels.read_row(row, to),
        }
    }
}

impl<T: Element> Panels<T> {
    fn pack(parts: &[Part], out: usize, cols: usize, width: usize, pool: &ThreadPool) -> Result<Self> {
        let mut data: Memory<T> = Memory::zeroed(out.next_multiple_of(width) * cols, "weights")?;
        let size = cols * width;
        let shared = Shared::new(&mut data);
        pool.run(out.div_ceil(width), |p, _| {
            // SAFETY: panel p belongs to this task alone.
            let panel = unsafe { shared.slice(p * size, size) };
            let mut values = vec![0.0; cols];
            for (lane, row) in (p * width..out.min((p + 1) * width)).enumerate() {
                let (part, row) = part_of(parts, row);
                part.read_row(row, &mut values);
                for (w, x) in panel[lane..].iter_mut().step_by(width).zip(&values) {
                    *w = T::from_f32(*x);
                }
            }
        });
        Ok(Panels { width, cols, data })
    }

    /// Returns the start of panel `p`, `[cols][width]`.
    pub(super) fn panel(&self, p: usize) -> *const T {
        self.data[p * self.cols * self.width..].as_ptr()
    }

    fn read_row(&self, row: usize, to: &mut [f32]) {
        let at = row / self.width * self.width * self.cols + row % self.width;
        for (x, w) in to.iter_mut().zip(self.data[at..].iter().step_by(self.width)) {
            *x = w.to_f32();
        }
    }
}

/// Returns the part that holds row `row` of the stack, and the row's index within the part. `row`
/// is inside the stack.
fn part_of(parts: &[Part], mut row: usize) -> (&Part, usize) {
    for part in parts {
        if row < part.rows.len() {
            return (part, row);
        }
        row -= part.rows.len();
    }
    unreachable!("a row outside the stack; this is a bug")
}
