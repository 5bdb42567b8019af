//! Codes in groups, in the layout that the product reads.
//!
//! A panel holds `width` outputs and is one sequential stream. For each group of columns it has the
//! codes, in steps of eight columns, and the factors, `[width]` numbers of type f32. A step of FP8
//! is `[4][width][2]` bytes: pairs of columns. A step of NF4 is `[width]` words of 32 bits, in
//! which column `2 * j + p` has the bits from `16 * p + 4 * j` on. Missing columns and outputs have
//! factors or inputs of 0.

use std::sync::{Mutex, PoisonError};

use super::super::cache::Packing;
use super::super::memory::{Memory, Shared};
use super::super::simd::{Extension, Kernel, Simd, Target};
use crate::quantize::nf4;
use crate::{Error, Result, fp8};

/// Columns of a step.
pub(super) const STEP: usize = 8;

/// The meaning of the codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cpu) enum TableFormat {
    /// FP8 numbers of 8 bits.
    E4m3,
    /// Codes of 4 bits.
    Nf4,
}

impl TableFormat {
    /// Returns the columns of a group of weights that are quantized at load. The factor of a row of
    /// FP8 numbers is repeated for each group, which costs less than 1% of the memory, so that a
    /// group with its activations fits the caches.
    pub(super) const fn group(self) -> usize {
        match self {
            TableFormat::E4m3 => 512,
            TableFormat::Nf4 => nf4::GROUP,
        }
    }

    /// Returns the bytes of a step of one output.
    pub(super) const fn step_bytes(self) -> usize {
        match self {
            TableFormat::E4m3 => 8,
            TableFormat::Nf4 => 4,
        }
    }

    /// Quantizes a row: `codes[col]` and `factors[col / group]`.
    #[inline(always)]
    fn quantize(self, row: &[f32], codes: &mut [u8], factors: &mut [f32]) -> Result<()> {
        match self {
            TableFormat::E4m3 => factors.fill(fp8::quantize(row, codes)?),
            TableFormat::Nf4 => {
                let groups = row.chunks(nf4::GROUP).zip(codes.chunks_mut(nf4::GROUP));
                for ((row, codes), factor) in groups.zip(factors) {
                    *factor = nf4::quantize(row, codes)?;
                }
            }
        }
        Ok(())
    }
}

/// Panels of codes.
#[derive(Debug)]
pub(in crate::cpu) struct TablePanels {
    pub(super) layout: Layout,
    data: Memory<u8>,
}

/// The layout of a panel.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    pub(super) format: TableFormat,
    cols: usize,
    width: usize,
}

impl Layout {
    /// Returns the groups of a row.
    pub(super) fn groups(&self) -> usize {
        self.cols.div_ceil(self.format.group())
    }

    /// Returns the steps of group `group`.
    pub(super) fn steps(&self, group: usize) -> usize {
        let group_cols = self.format.group();
        (self.cols - group * group_cols).min(group_cols).div_ceil(STEP)
    }

    /// Returns the distance of the starts of two groups.
    pub(super) fn group_bytes(&self) -> usize {
        (self.format.group() / STEP * self.format.step_bytes() + size_of::<f32>()) * self.width
    }

    fn panel_bytes(&self) -> usize {
        let steps = self.cols.div_ceil(STEP) * self.format.step_bytes();
        (steps + self.groups() * size_of::<f32>()) * self.width
    }

    /// Writes the codes and factors of output `lane`.
    fn put(&self, panel: &mut [u8], lane: usize, codes: &[u8], factors: &[f32]) {
        let step_bytes = self.format.step_bytes();
        for (g, (codes, factor)) in codes.chunks(self.format.group()).zip(factors).enumerate() {
            let start = g * self.group_bytes();
            for (step, codes) in codes.chunks(STEP).enumerate() {
                let mut eight = [0; STEP];
                eight[..codes.len()].copy_from_slice(codes);
                let to = &mut panel[start + step * step_bytes * self.width..];
                match self.format {
                    TableFormat::E4m3 => {
                        for (j, pair) in eight.as_chunks::<2>().0.iter().enumerate() {
                            to[(j * self.width + lane) * 2..][..2].copy_from_slice(pair);
                        }
                    }
                    TableFormat::Nf4 => {
                        let bits =
                            |(at, code): (usize, &u8)| u32::from(*code) << (16 * (at % 2) + at / 2 * 4);
                        let word: u32 = eight.iter().enumerate().map(bits).sum();
                        to[lane * 4..][..4].copy_from_slice(&word.to_ne_bytes());
                    }
                }
            }
            let at = start + (self.steps(g) * step_bytes * self.width) + lane * size_of::<f32>();
            panel[at..at + size_of::<f32>()].copy_from_slice(&factor.to_ne_bytes());
        }
    }
}

impl TablePanels {
    /// Quantizes and packs a matrix `[out, cols]`, of which `read(row, values)` reads one row.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a NaN or an infinity, and [`Error::OutOfMemory`].
    pub(in crate::cpu) fn pack(
        (out, cols): (usize, usize),
        format: TableFormat,
        target: Target,
        packing: Packing<'_>,
        read: impl Fn(usize, &mut [f32]) + Sync,
    ) -> Result<Self> {
        let width = target.panel_width();
        let layout = Layout { format, cols, width };
        let (panels, panel_bytes) = (out.div_ceil(width), layout.panel_bytes());
        let mut data: Memory<u8> = Memory::zeroed(panels.saturating_mul(panel_bytes), "weights")?;
        if packing.load(&mut [&mut data]) {
            return Ok(TablePanels { layout, data });
        }
        let shared = Shared::new(&mut data);
        let failed: Mutex<Option<Error>> = Mutex::new(None);
        packing.pool.run(panels, |p, _| {
            // SAFETY: panel p belongs to this task alone.
            let panel = unsafe { shared.slice(p * panel_bytes, panel_bytes) };
            let rows = p * width..out.min((p + 1) * width);
            let (mut values, mut codes) = (vec![0.0; cols], vec![0; cols]);
            let mut factors = vec![0.0; layout.groups()];
            for (lane, row) in rows.enumerate() {
                read(row, &mut values);
                let (values, codes, factors) = (&values[..], &mut codes[..], &mut factors[..]);
                if let Err(error) = target.dispatch(QuantizeRow { format, values, codes, factors }) {
                    failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                    return;
                }
                layout.put(panel, lane, codes, factors);
            }
        });
        match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(error),
            None => {
                packing.keep(&mut [&mut data]);
                Ok(TablePanels { layout, data })
            }
        }
    }

    /// Returns the bytes of a packed matrix `[out, cols]`.
    pub(in crate::cpu) fn bytes(out: usize, cols: usize, format: TableFormat, width: usize) -> usize {
        out.div_ceil(width).saturating_mul(Layout { format, cols, width }.panel_bytes())
    }

    /// Returns the start of panel `p`.
    pub(super) fn panel(&self, p: usize) -> *const u8 {
        self.data[p * self.layout.panel_bytes()..].as_ptr()
    }
}

/// The quantization of one row. It is a kernel only so that compilers vectorize its loops for the
/// instruction set of the machine: the codes are the same on all.
struct QuantizeRow<'a> {
    format: TableFormat,
    values: &'a [f32],
    codes: &'a mut [u8],
    factors: &'a mut [f32],
}

impl Kernel for QuantizeRow<'_> {
    const USES: Extension = Extension::None;
    type Output = Result<()>;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> Result<()> {
        self.format.quantize(self.values, self.codes, self.factors)
    }
}
