//! The product on the tile unit of Intel AMX.
//!
//! Some groups of a panel at a time are made into signed bytes and f32 scales, which all rows then
//! read from the cache. The unit computes the dot products of a group, and AVX-512 scales and adds
//! them. The results have the same bits as those of [`Product`] on other instruction sets: the
//! offset that a byte lacks here is a whole number, and all dot products are exact.

use std::arch::x86_64::*;
use std::mem::MaybeUninit;
use std::ops::Range;

use super::super::amx::{Amx, Bytes, ROWS, WIDTH};
use super::super::memory::Shared;
use super::super::tile::{AHEAD, Tiles};
use super::activations::{GroupScale, STEP};
use super::pack::GroupLayout;
use super::product::Product;

/// Smallest number of rows for which the tile unit is faster.
const LEAST_ROWS: usize = 9;
/// Fewest columns of a group for which the tile unit is faster. With 32 columns the additions in
/// f32 take most of the time, and storing the tiles takes the rest of what the unit saves.
const LEAST_COLUMNS: usize = 64;

/// Groups whose dot products are computed together.
const BATCH: usize = 2;
/// The dot products of a batch, `[BATCH][ROWS][WIDTH]`.
type Dots = [[[i32; WIDTH]; ROWS]; BATCH];

/// Numbers of working memory for a block of groups, which stays in the L1 cache.
const BLOCK: usize = 6 << 10;
/// Numbers of working memory for sums, between the blocks of a panel.
const SUMS: usize = 32 * ROWS * WIDTH;

/// Numbers of a panel's scales, or offsets, in a group.
const SCALES: usize = WIDTH;

/// The working memory of a task, for some groups of a panel.
#[derive(Clone, Copy)]
struct Unpacked {
    /// `[groups][columns of a group / 4][WIDTH][4]`.
    codes: *mut i8,
    /// `[groups][WIDTH]`.
    scales: *mut f32,
    /// `[groups][WIDTH]`.
    offsets: *mut f32,
}

/// The sums of a tile.
type Sums = [[__m512; 2]; ROWS];

/// A tile of rows and a block of groups.
struct Place {
    panel: usize,
    rows: Range<usize>,
    groups: Range<usize>,
    sums: *mut Sums,
}

/// The place of a batch.
struct Dotted<'a> {
    rows: &'a Range<usize>,
    /// The first group.
    first: usize,
    /// Its place in the working memory.
    at: usize,
}

/// Returns whether the tile unit is the fastest way to compute products of `n` rows whose groups
/// have `group` columns.
pub(super) fn suit(n: usize, group: usize) -> bool {
    n >= LEAST_ROWS && group >= LEAST_COLUMNS
}

impl Product<'_> {
    /// Computes the product on the tile unit, with `scratch` as working memory of `room` numbers.
    /// Each row of the activations is a tile of its own.
    ///
    /// # Safety
    /// The machine must have the unit, AVX-512 F, BW and VL, and F16C. The working memory must
    /// belong to this task.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
    pub(super) unsafe fn compute_on_tiles(&self, scratch: Shared<f32>, room: usize) {
        let (groups, group) = (self.layout.groups(), self.layout.group);
        let group_numbers = group * WIDTH / 4 + 2 * SCALES;
        let at_once = (BLOCK / group_numbers).max(BATCH);
        assert!(at_once * group_numbers + SUMS <= room, "blocks that do not fit the working memory");
        let sums = scratch.as_ptr();
        let scales = sums.wrapping_add(SUMS);
        let unpacked = Unpacked {
            scales,
            offsets: scales.wrapping_add(at_once * SCALES),
            codes: scales.wrapping_add(2 * at_once * SCALES).cast(),
        };
        let layout = self.w.group_layout(self.layout.cols);
        let tiles = Tiles::new(self.n, ROWS);
        let mut unit = Amx::new();
        for first_tile in (0..tiles.count()).step_by(SUMS / (ROWS * WIDTH)) {
            let tile_range = first_tile..tiles.count().min(first_tile + SUMS / (ROWS * WIDTH));
            for panel in self.panels.clone() {
                for first in (0..groups).step_by(at_once) {
                    let range = first..groups.min(first + at_once);
                    // SAFETY: the caller guarantees the instruction set, and the groups fit the
                    // working memory.
                    unsafe {
                        for g in range.clone() {
                            unpack(&layout, self.w.panel(panel), g, g - first, unpacked);
                        }
                        for tile in tile_range.clone() {
                            let at = Place {
                                panel,
                                rows: tiles.rows(tile),
                                groups: range.clone(),
                                sums: sums.add((tile - first_tile) * ROWS * WIDTH).cast(),
                            };
                            match (layout.scale_bytes > 0, layout.has_offsets) {
                                (false, _) => self.tile::<false, false>(&mut unit, at, unpacked),
                                (_, false) => self.tile::<true, false>(&mut unit, at, unpacked),
                                _ => self.tile::<true, true>(&mut unit, at, unpacked),
                            }
                        }
                    }
                }
            }
        }
    }

    /// Adds the products of some groups to the sums of some rows, and stores the outputs after the
    /// last group.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
    unsafe fn tile<const SCALED: bool, const OFFSETS: bool>(
        &self,
        unit: &mut Amx,
        at: Place,
        from: Unpacked,
    ) {
        let Place { panel, rows, groups, sums } = at;
        // SAFETY: rows, columns and groups are inside the operands, and the working memory is
        // this task's.
        unsafe {
            let sums = &mut *sums;
            if groups.start == 0 {
                *sums = [[_mm512_setzero_ps(); 2]; ROWS];
            }
            // While AVX-512 adds a batch, the unit computes the next one.
            let mut dots = [const { MaybeUninit::<Dots>::uninit() }; 2];
            let mut next = self.batch(&groups, groups.start);
            self.dot_batch(unit, &rows, &next, &groups, from, dots[0].as_mut_ptr());
            let mut buffer = 0;
            while !next.is_empty() {
                let batch = next;
                next = self.batch(&groups, batch.end);
                if !next.is_empty() {
                    self.dot_batch(unit, &rows, &next, &groups, from, dots[1 - buffer].as_mut_ptr());
                }
                let of = Dotted { rows: &rows, first: batch.start, at: batch.start - groups.start };
                let dots = dots[buffer].as_ptr();
                if batch.len() == BATCH {
                    self.add::<BATCH, SCALED, OFFSETS>(sums, of, from, dots);
                } else {
                    self.add::<1, SCALED, OFFSETS>(sums, of, from, dots);
                }
                buffer = 1 - buffer;
            }
            if groups.end == self.layout.groups() {
                self.put::<SCALED>(panel, rows, sums);
            }
        }
    }

    /// Stores the outputs of some rows, with the scales of weights and the bias applied.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
    unsafe fn put<const SCALED: bool>(&self, panel: usize, rows: Range<usize>, sums: &Sums) {
        for v in 0..2 {
            let col = panel * WIDTH + 16 * v;
            let rest = self.outputs.cols.saturating_sub(col);
            let mask = if rest >= 16 { !0 } else { (1 << rest) - 1 };
            // SAFETY: masked lanes, which are outside the operands, are not accessed.
            unsafe {
                let load = |from: &[f32]| _mm512_maskz_loadu_ps(mask, from.as_ptr().wrapping_add(col));
                for (row, sums) in rows.clone().zip(sums) {
                    let mut sum = sums[v];
                    if !SCALED {
                        sum = _mm512_mul_ps(sum, load(&self.w.row_scales));
                    }
                    if let Some(bias) = self.outputs.bias {
                        sum = _mm512_add_ps(sum, load(bias));
                    }
                    let to = self.outputs.out.as_ptr().wrapping_add(row * self.outputs.stride + col);
                    _mm512_mask_storeu_ps(to, mask, sum);
                }
            }
        }
    }

    /// Returns the batch of groups from `first` on: [`BATCH`] of them, or a single one. A group
    /// with fewer columns is a batch of its own.
    fn batch(&self, groups: &Range<usize>, first: usize) -> Range<usize> {
        let end = first + BATCH;
        let are_whole = end <= groups.end && end * self.layout.group <= self.layout.cols;
        first..if are_whole { end } else { groups.end.min(first + 1) }
    }

    /// Starts the dot products of a batch, of the groups that are unpacked at `from`.
    #[inline]
    unsafe fn dot_batch(
        &self,
        unit: &mut Amx,
        rows: &Range<usize>,
        batch: &Range<usize>,
        groups: &Range<usize>,
        from: Unpacked,
        dots: *mut Dots,
    ) {
        let (group, stride) = (self.layout.group, self.layout.stride());
        let first = batch.start * group;
        // SAFETY: the caller guarantees the instruction set and valid pointers.
        unsafe {
            unit.dot_bytes(Bytes {
                height: rows.len(),
                x: self.x.add(rows.start * stride + first),
                x_stride: stride,
                weights: from.codes.add((batch.start - groups.start) * group * WIDTH),
                groups: batch.len(),
                columns: group.min(self.layout.cols - first).next_multiple_of(STEP),
                dots: dots.cast(),
            });
        }
    }

    /// Adds the scaled dot products of a batch of N groups to the sums of all rows.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
    unsafe fn add<const N: usize, const SCALED: bool, const OFFSETS: bool>(
        &self,
        sums: &mut Sums,
        Dotted { rows, first, at }: Dotted<'_>,
        from: Unpacked,
        dots: *const Dots,
    ) {
        let all = self.layout.groups();
        // SAFETY: the caller guarantees valid pointers, and that the dot products of all rows are
        // there.
        unsafe {
            let load =
                |from: *mut f32, k: usize, v: usize| _mm512_loadu_ps(from.add((at + k) * SCALES + 16 * v));
            let mut scales = [[_mm512_setzero_ps(); 2]; N];
            let mut offsets = [[_mm512_setzero_ps(); 2]; N];
            for k in 0..N {
                for v in 0..2 {
                    if SCALED {
                        scales[k][v] = load(from.scales, k, v);
                    }
                    if OFFSETS {
                        offsets[k][v] = load(from.offsets, k, v);
                    }
                }
            }
            let dots = dots.cast::<i32>();
            let next_x = self.x.wrapping_add(rows.end * self.layout.stride() + first * self.layout.group);
            for (i, row) in rows.clone().enumerate() {
                let of_row = self.scales.add(row * all + first);
                // The same groups of the next tile, which are in the L2 cache.
                _mm_prefetch::<_MM_HINT_T0>(next_x.wrapping_add(i * self.layout.stride()));
                _mm_prefetch::<_MM_HINT_T0>(of_row.wrapping_add(rows.len() * all).cast());
                let mut sum = sums[i];
                for k in 0..N {
                    let GroupScale { scale, correction } = *of_row.add(k);
                    for v in 0..2 {
                        let dot = dots.add((k * ROWS + i) * WIDTH + 16 * v);
                        let mut dot = _mm512_cvtepi32_ps(_mm512_loadu_si512(dot.cast()));
                        if OFFSETS {
                            dot = _mm512_fmadd_ps(offsets[k][v], _mm512_set1_ps(correction as f32), dot);
                        }
                        let scale = _mm512_set1_ps(scale);
                        let scale = if SCALED { _mm512_mul_ps(scales[k][v], scale) } else { scale };
                        sum[v] = _mm512_fmadd_ps(dot, scale, sum[v]);
                    }
                }
                sums[i] = sum;
            }
        }
    }
}

/// Writes the codes of group `g` of a panel as signed bytes, and its scales and offsets as f32
/// numbers, to place `at`. Bytes are codes less half of the range of unsigned ones, and so are
/// offsets. Formats without offsets of groups have exactly this one.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
unsafe fn unpack(layout: &GroupLayout, panel: *const u8, g: usize, at: usize, to: Unpacked) {
    let half = 1u8 << (layout.bits - 1);
    // SAFETY: the caller guarantees that the group is inside the panel and fits the working memory.
    unsafe {
        let from = panel.add(g * (layout.code_bytes + layout.scale_bytes));
        let code_bytes = layout.code_bytes.min(layout.all_code_bytes - g * layout.code_bytes);
        let codes = to.codes.add(at * layout.group * WIDTH);
        let offset = _mm512_set1_epi8(half.cast_signed());
        let low = _mm512_set1_epi8(15);
        for line in (0..code_bytes).step_by(64) {
            _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(line + AHEAD).cast());
            let bytes = _mm512_loadu_si512(from.add(line).cast());
            if layout.bits == 8 {
                _mm512_storeu_si512(codes.add(line).cast(), _mm512_sub_epi8(bytes, offset));
            } else {
                // Two lines are four columns of all outputs in the lower halves of their bytes, and
                // the next four in the upper halves.
                let place = line / 128 * 256 + line % 128;
                let lower = _mm512_and_si512(bytes, low);
                let upper = _mm512_and_si512(_mm512_srli_epi16::<4>(bytes), low);
                _mm512_storeu_si512(codes.add(place).cast(), _mm512_sub_epi8(lower, offset));
                _mm512_storeu_si512(codes.add(place + 128).cast(), _mm512_sub_epi8(upper, offset));
            }
        }
        let scales = from.add(code_bytes);
        let f16 = |from: *const u8, v: usize| _mm512_cvtph_ps(_mm256_loadu_si256(from.add(32 * v).cast()));
        for v in 0..2 {
            let at = at * SCALES + 16 * v;
            if layout.scale_bytes > 0 {
                let scale = if layout.wide_scales {
                    _mm512_loadu_ps(scales.add(64 * v).cast())
                } else {
                    f16(scales, v)
                };
                _mm512_storeu_ps(to.scales.add(at), scale);
            }
            if layout.has_offsets {
                let offsets = scales.add(if layout.wide_scales { 128 } else { 64 });
                let offset = _mm512_sub_ps(f16(offsets, v), _mm512_set1_ps(f32::from(half)));
                _mm512_storeu_ps(to.offsets.add(at), offset);
            }
        }
    }
}
