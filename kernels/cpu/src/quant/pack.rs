//! Weights as integers in groups, in the layout that the product reads.
//!
//! A panel holds `width` outputs and is one sequential stream. For each group of columns it has the
//! codes, the scales and, if groups have offsets of their own, the offsets: `[width]` numbers each.
//! They are of type f16, except scales that a checkpoint stores in another type: those are f32.
//!
//! Codes of 8 bits are `[cols / 4][width][4]`: one vector holds four successive columns of some
//! outputs, as the instructions for dot products want it. Codes of 4 bits are bytes
//! `[cols / 8][width][4]`, whose lower halves are the first four of eight columns and whose upper
//! halves are the other four. Missing columns and outputs have zero codes and scales; activations
//! of missing columns are zeros.

use std::sync::{Mutex, PoisonError};

use half::f16;
use millrace_backend::{Error, Result};
use millrace_numbers::integers::{Group, IntFormat, StoredGroups};

use super::super::cache::Packing;
use super::super::memory::{Memory, Shared};
use super::super::simd::{Extension, Kernel, Simd, Target};
use super::activations::STEP;

/// Panels of integers in groups.
#[derive(Debug)]
pub(crate) struct IntPanels {
    pub(super) format: IntFormat,
    pub(super) layout: PanelLayout,
    panel_bytes: usize,
    data: Memory<u8>,
    /// The scales of whole rows, `[out]` padded to whole panels, for a format that has such scales.
    pub(super) row_scales: Memory<f32>,
    /// For each packed column the column of the activations that it is multiplied by, if the order
    /// differs. Padding has weights of 0 and any column of its group.
    pub(super) order: Option<Vec<u32>>,
}

/// The contents that a row is read as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RowContents {
    /// Codes and groups.
    Codes,
    /// Weights, which are quantized next.
    Weights,
}

/// The codes of a row, one per byte.
#[derive(Debug)]
pub(crate) struct RowCodes {
    pub(crate) codes: Vec<u8>,
    /// The scale and the offset of each group.
    pub(crate) groups: Vec<Group>,
    /// The weights of the row, if it is quantized.
    pub(crate) weights: Vec<f32>,
}

/// The parts of a panel, in bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct PanelLayout {
    format: IntFormat,
    /// Columns of a row, with its padding.
    pub(super) cols: usize,
    width: usize,
    /// Columns of a group: of weights, or of activations where the weights of a row are one group.
    pub(super) group: usize,
}

impl PanelLayout {
    fn new(format: IntFormat, cols: usize, width: usize) -> PanelLayout {
        PanelLayout { format, cols, width, group: format.activation_cols(cols) }
    }

    /// Returns the bytes of the codes of `cols` columns.
    pub(super) const fn code_bytes(&self, cols: usize) -> usize {
        cols.next_multiple_of(STEP) * self.width * self.format.bits() / 8
    }

    /// Returns the bytes of a group's scales and offsets.
    const fn scale_bytes(&self) -> usize {
        match self.format {
            IntFormat::Int8 => 0,
            IntFormat::Q8_0 | IntFormat::Q4_0 => 2 * self.width,
            IntFormat::Int4 => 4 * self.width,
            IntFormat::Stored(groups) => {
                (groups.scale_bytes() + if groups.has_offsets { 2 } else { 0 }) * self.width
            }
        }
    }

    /// Returns the distance of the starts of two groups.
    pub(super) const fn group_bytes(&self) -> usize {
        self.code_bytes(self.group) + self.scale_bytes()
    }

    /// Returns whether the scales of groups are of type f32.
    pub(super) const fn has_wide_scales(&self) -> bool {
        matches!(self.format, IntFormat::Stored(StoredGroups { wide_scales: true, .. }))
    }

    fn panel_bytes(&self) -> usize {
        self.code_bytes(self.cols) + self.cols.div_ceil(self.group) * self.scale_bytes()
    }

    /// Writes the codes of columns `[first, first + codes.len())` of output `lane`.
    #[inline(always)]
    fn put_codes(&self, panel: &mut [u8], lane: usize, first: usize, codes: &[u8]) {
        let group = first / self.group;
        let start = group * self.group_bytes();
        // Vectors of four codes or bytes before the first column.
        let skipped = (first - group * self.group) * self.format.bits() / 32;
        let mut at = start + (skipped * self.width + lane) * 4;
        let mut put = |four: [u8; 4]| {
            panel[at..at + 4].copy_from_slice(&four);
            at += self.width * 4;
        };
        if self.format.bits() == 8 {
            let (fours, rest) = codes.as_chunks::<4>();
            fours.iter().copied().for_each(&mut put);
            if !rest.is_empty() {
                put(std::array::from_fn(|i| rest.get(i).copied().unwrap_or(0)));
            }
        } else {
            for eight in codes.as_chunks::<8>().0 {
                put(std::array::from_fn(|i| eight[i] | eight[i + 4] << 4));
            }
        }
    }

    /// Writes the scale of group `group` of output `lane`, and its offset if the format has one.
    fn put_scale(&self, panel: &mut [u8], lane: usize, group: usize, values: Group) {
        let at = (group + 1) * self.code_bytes(self.group) + group * self.scale_bytes();
        let mut put = |at: usize, x: f32| {
            panel[at + 2 * lane..][..2].copy_from_slice(&f16::from_f32(x).to_ne_bytes());
        };
        let scale_bytes = if self.has_wide_scales() { 4 } else { 2 };
        if self.format.offset().is_none() {
            put(at + scale_bytes * self.width, f32::from(values.offset));
        }
        if self.has_wide_scales() {
            panel[at + 4 * lane..][..4].copy_from_slice(&values.scale.to_ne_bytes());
        } else {
            put(at, values.scale);
        }
    }
}

/// The parts of a group of a panel: its codes, its scales, and its offsets.
#[cfg(target_arch = "x86_64")]
#[derive(Debug, Clone, Copy)]
pub(super) struct GroupLayout {
    /// Columns of a group. The last group may have fewer.
    pub(super) group: usize,
    /// Bits of a code.
    pub(super) bits: usize,
    /// Bytes of a whole group's codes.
    pub(super) code_bytes: usize,
    /// Bytes of the codes of all groups.
    pub(super) all_code_bytes: usize,
    /// Bytes of a group's scales and offsets.
    pub(super) scale_bytes: usize,
    /// Whether scales are of type f32. Otherwise they are of type f16.
    pub(super) wide_scales: bool,
    /// Whether groups have offsets.
    pub(super) has_offsets: bool,
}

impl IntPanels {
    /// Packs a matrix `[out, cols]`, of which `read(row, codes)` reads the codes of one row, with
    /// its padding. `order` is the order of the columns in the codes.
    ///
    /// # Errors
    /// As [`IntFormat::check_cols`] and as `read`, and [`Error::OutOfMemory`].
    pub(crate) fn pack(
        (out, cols): (usize, usize),
        format: IntFormat,
        target: Target,
        order: Option<&[u32]>,
        packing: Packing<'_>,
        read: impl Fn(usize, &mut RowCodes) -> Result<RowContents> + Sync,
    ) -> Result<Self> {
        format.check_cols(cols)?;
        let width = target.panel_width();
        let layout = PanelLayout::new(format, format.packed_cols(cols), width);
        let (panels, panel_bytes) = (out.div_ceil(width), layout.panel_bytes());
        let mut data: Memory<u8> = Memory::zeroed(panels.saturating_mul(panel_bytes), "weights")?;
        let scales = if format == IntFormat::Int8 { panels * width } else { 0 };
        let mut row_scales: Memory<f32> = Memory::zeroed(scales, "scales of weights")?;
        let order = order.map(<[u32]>::to_vec);
        if packing.load(&mut [&mut data, &mut row_scales]) {
            return Ok(IntPanels { format, layout, panel_bytes, data, row_scales, order });
        }
        let (shared, shared_scales) = (Shared::new(&mut data), Shared::new(&mut row_scales));
        let failed: Mutex<Option<Error>> = Mutex::new(None);
        packing.pool.run(panels, |p, _| {
            // SAFETY: panel p and its scales belong to this task alone.
            let (panel, scales) = unsafe {
                let scales = if scales > 0 { shared_scales.slice(p * width, width) } else { &mut [] };
                (shared.slice(p * panel_bytes, panel_bytes), scales)
            };
            let rows = p * width..out.min((p + 1) * width);
            let read = |lane, to: &mut RowCodes| read(rows.start + lane, to);
            let job = PackPanel { layout, rows: rows.len(), panel, row_scales: scales, read };
            if let Err(error) = target.dispatch(job) {
                failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            }
        });
        match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(error),
            None => {
                packing.keep(&mut [&mut data, &mut row_scales]);
                Ok(IntPanels { format, layout, panel_bytes, data, row_scales, order })
            }
        }
    }

    /// Returns the bytes of a packed matrix `[out, cols]`.
    pub(crate) fn bytes(out: usize, cols: usize, format: IntFormat, width: usize) -> usize {
        let scales = if format == IntFormat::Int8 { width * size_of::<f32>() } else { 0 };
        let layout = PanelLayout::new(format, format.packed_cols(cols), width);
        out.div_ceil(width).saturating_mul(layout.panel_bytes() + scales)
    }

    /// Returns the parts of a group of a matrix with `cols` columns.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn group_layout(&self, cols: usize) -> GroupLayout {
        let layout = PanelLayout::new(self.format, cols, super::super::amx::WIDTH);
        GroupLayout {
            group: layout.group,
            bits: self.format.bits(),
            code_bytes: layout.code_bytes(layout.group),
            all_code_bytes: layout.code_bytes(cols),
            scale_bytes: layout.scale_bytes(),
            wide_scales: layout.has_wide_scales(),
            has_offsets: self.format.offset().is_none(),
        }
    }

    /// Returns the start of panel `p`.
    pub(super) fn panel(&self, p: usize) -> *const u8 {
        self.data[p * self.panel_bytes..].as_ptr()
    }
}

/// The packing of `rows` rows to one panel. It is a kernel only so that compilers vectorize its
/// loops for the instruction set of the machine: the codes are the same on all.
struct PackPanel<'a, R: Fn(usize, &mut RowCodes) -> Result<RowContents>> {
    layout: PanelLayout,
    rows: usize,
    panel: &'a mut [u8],
    /// The scales of the rows, or empty.
    row_scales: &'a mut [f32],
    /// Reads the codes of a row, counted from the first row of the panel.
    read: R,
}

impl<R: Fn(usize, &mut RowCodes) -> Result<RowContents>> Kernel for PackPanel<'_, R> {
    const USES: Extension = Extension::None;
    type Output = Result<()>;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> Result<()> {
        let PackPanel { layout, rows, panel, row_scales, read } = self;
        let group = layout.format.group_cols(layout.cols).max(1);
        let groups = vec![Group { scale: 0.0, offset: 0 }; layout.cols.div_ceil(group)];
        let mut row = RowCodes { codes: vec![0; layout.cols], groups, weights: vec![0.0; layout.cols] };
        for lane in 0..rows {
            if read(lane, &mut row)? == RowContents::Weights {
                layout.format.quantize_row(&row.weights, &mut row.codes, &mut row.groups)?;
            }
            for (index, (codes, &scale)) in row.codes.chunks(group).zip(&row.groups).enumerate() {
                match row_scales.get_mut(lane) {
                    Some(to) => {
                        *to = scale.scale;
                        for (index, codes) in codes.chunks(layout.group).enumerate() {
                            layout.put_codes(panel, lane, index * layout.group, codes);
                        }
                    }
                    None => {
                        layout.put_codes(panel, lane, index * group, codes);
                        layout.put_scale(panel, lane, index, scale);
                    }
                }
            }
        }
        Ok(())
    }
}
