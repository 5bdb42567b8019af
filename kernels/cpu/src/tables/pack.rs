//! Codes in groups, in the layout that the product reads.
//!
//! A panel holds `width` outputs and is one sequential stream. For each group of columns it has the
//! codes, in steps of eight columns, and the factors, `[width]` numbers of type f32. A step of FP8
//! is `[4][width][2]` bytes: pairs of columns. A step of codes of four bits is `[width]` words of
//! 32 bits, in which column `2 * j + p` has the bits from `16 * p + 4 * j` on. Missing columns and
//! outputs have factors or inputs of 0.

use std::sync::{Mutex, PoisonError};

use half::bf16;
use millrace_backend::{Error, Result};
use millrace_numbers::codes::{CodeType, StoredCodes};
use millrace_numbers::formats::fp8;
use millrace_numbers::formats::nf4;

use super::super::cache::Packing;
use super::super::memory::{Memory, Shared};
use super::super::quant::RowContents;
use super::super::simd::{Extension, Kernel, Simd, Target};

/// Columns of a step.
pub(super) const STEP: usize = 8;

/// FP8 numbers that are quantized at load. The factor of a row is repeated for each group, which
/// costs less than 1% of the memory, so that a group with its activations fits the caches.
pub(crate) const QUANTIZED_FP8: StoredCodes = StoredCodes { codes: CodeType::E4m3, cols: 512, by_row: true };
/// NF4 codes that are quantized at load.
pub(crate) const QUANTIZED_NF4: StoredCodes =
    StoredCodes { codes: CodeType::FourBits, cols: nf4::GROUP, by_row: false };

/// Panels of codes.
#[derive(Debug)]
pub(crate) struct TablePanels {
    pub(super) layout: Layout,
    pub(super) table: Table,
    data: Memory<u8>,
}

/// The values of codes of four bits. Loops copy it to a local variable, which compilers keep in
/// registers: products by one row were 7% faster than with the table read in place.
#[derive(Debug, Clone, Copy)]
pub(super) struct Table {
    pub(super) numbers: [f32; 16],
    /// The numbers, rounded to bf16.
    pub(super) bf16: [u16; 16],
}

impl Table {
    fn new(numbers: [f32; 16]) -> Table {
        Table { numbers, bf16: numbers.map(|number| bf16::from_f32(number).to_bits()) }
    }
}

/// The codes of a row, one per byte.
#[derive(Debug)]
pub(crate) struct CodedRow {
    pub(crate) codes: Vec<u8>,
    /// The factor of each group.
    pub(crate) factors: Vec<f32>,
    /// The weights of the row, if it is quantized.
    pub(crate) weights: Vec<f32>,
}

/// The layout of a panel.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    pub(super) codes: CodeType,
    /// Columns of a group, a multiple of [`STEP`].
    group: usize,
    cols: usize,
    width: usize,
}

impl Layout {
    fn new(format: StoredCodes, cols: usize, width: usize) -> Layout {
        Layout { codes: format.codes, group: format.cols, cols, width }
    }

    /// Returns the bytes of a step of one output.
    pub(super) fn step_bytes(&self) -> usize {
        match self.codes {
            CodeType::E4m3 => STEP,
            CodeType::FourBits => STEP / 2,
        }
    }

    /// Returns the groups of a row.
    pub(super) fn groups(&self) -> usize {
        self.cols.div_ceil(self.group)
    }

    /// Returns whether all groups consist of whole steps of `cols` columns.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn has_steps_of(&self, cols: usize) -> bool {
        self.group.is_multiple_of(cols) && self.cols.is_multiple_of(cols)
    }

    /// Returns the steps of group `group`.
    pub(super) fn steps(&self, group: usize) -> usize {
        (self.cols - group * self.group).min(self.group).div_ceil(STEP)
    }

    /// Returns the distance of the starts of two groups.
    pub(super) fn group_bytes(&self) -> usize {
        (self.group / STEP * self.step_bytes() + size_of::<f32>()) * self.width
    }

    fn panel_bytes(&self) -> usize {
        let steps = self.cols.div_ceil(STEP) * self.step_bytes();
        (steps + self.groups() * size_of::<f32>()) * self.width
    }

    /// Writes the codes and factors of output `lane`.
    fn put(&self, panel: &mut [u8], lane: usize, codes: &[u8], factors: &[f32]) {
        let step_bytes = self.step_bytes();
        for (g, (codes, factor)) in codes.chunks(self.group).zip(factors).enumerate() {
            let start = g * self.group_bytes();
            for (step, codes) in codes.chunks(STEP).enumerate() {
                let mut eight = [0; STEP];
                eight[..codes.len()].copy_from_slice(codes);
                let to = &mut panel[start + step * step_bytes * self.width..];
                match self.codes {
                    CodeType::E4m3 => {
                        for (j, pair) in eight.as_chunks::<2>().0.iter().enumerate() {
                            to[(j * self.width + lane) * 2..][..2].copy_from_slice(pair);
                        }
                    }
                    CodeType::FourBits => {
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
    /// Packs a matrix `[out, cols]`, of which `read(row, to)` reads one row. `table` has the values
    /// of codes of four bits. Weights are quantized to FP8 or NF4.
    ///
    /// # Errors
    /// As `read`, [`Error::Unsupported`] for weights with a NaN or an infinity, and
    /// [`Error::OutOfMemory`].
    pub(crate) fn pack(
        (out, cols): (usize, usize),
        format: StoredCodes,
        table: [f32; 16],
        target: Target,
        packing: Packing<'_>,
        read: impl Fn(usize, &mut CodedRow) -> Result<RowContents> + Sync,
    ) -> Result<Self> {
        let (width, table) = (target.panel_width(), Table::new(table));
        let layout = Layout::new(format, cols, width);
        let (panels, panel_bytes) = (out.div_ceil(width), layout.panel_bytes());
        let mut data: Memory<u8> = Memory::zeroed(panels.saturating_mul(panel_bytes), "weights")?;
        if packing.load(&mut [&mut data]) {
            return Ok(TablePanels { layout, table, data });
        }
        let shared = Shared::new(&mut data);
        let failed: Mutex<Option<Error>> = Mutex::new(None);
        packing.pool.run(panels, |p, _| {
            // SAFETY: panel p belongs to this task alone.
            let panel = unsafe { shared.slice(p * panel_bytes, panel_bytes) };
            let rows = p * width..out.min((p + 1) * width);
            let (codes, factors) = (vec![0; cols], vec![0.0; layout.groups()]);
            let mut to = CodedRow { codes, factors, weights: vec![0.0; cols] };
            for (lane, row) in rows.enumerate() {
                let filled = read(row, &mut to).and_then(|contents| match contents {
                    RowContents::Codes => Ok(()),
                    RowContents::Weights => {
                        target.dispatch(QuantizeRow { codes: format.codes, row: &mut to })
                    }
                });
                if let Err(error) = filled {
                    failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                    return;
                }
                layout.put(panel, lane, &to.codes, &to.factors);
            }
        });
        match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(error),
            None => {
                packing.keep(&mut [&mut data]);
                Ok(TablePanels { layout, table, data })
            }
        }
    }

    /// Returns the bytes of a packed matrix `[out, cols]`.
    pub(crate) fn bytes(out: usize, cols: usize, format: StoredCodes, width: usize) -> usize {
        out.div_ceil(width).saturating_mul(Layout::new(format, cols, width).panel_bytes())
    }

    /// Returns the start of panel `p`.
    pub(super) fn panel(&self, p: usize) -> *const u8 {
        self.data[p * self.layout.panel_bytes()..].as_ptr()
    }
}

/// The quantization of the weights of one row, to FP8 with one factor or to NF4. It is a kernel
/// only so that compilers vectorize its loops for the instruction set of the machine: the codes are
/// the same on all.
struct QuantizeRow<'a> {
    codes: CodeType,
    row: &'a mut CodedRow,
}

impl Kernel for QuantizeRow<'_> {
    const USES: Extension = Extension::None;
    type Output = Result<()>;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> Result<()> {
        let CodedRow { codes, factors, weights } = self.row;
        match self.codes {
            CodeType::E4m3 => factors.fill(fp8::quantize(weights, codes)?),
            CodeType::FourBits => {
                let groups = weights.chunks(nf4::GROUP).zip(codes.chunks_mut(nf4::GROUP));
                for ((weights, codes), factor) in groups.zip(factors) {
                    *factor = nf4::quantize(weights, codes)?;
                }
            }
        }
        Ok(())
    }
}
