//! The product of packed inputs and codes.
//!
//! Up to one tile of rows reads each panel once and widens it in registers. More rows compute with
//! blocks of a panel that are widened once for all tiles, into working memory that stays in the
//! cache. Partial sums are in the output between blocks. Both ways compute the same bits.

use std::ops::Range;

use millrace_numbers::codes::CodeType;

use super::super::gemm::SCRATCH;
use super::super::inputs::{GROUP, InputWords, Inputs};
use super::super::memory::Shared;
use super::super::outputs::Outputs;
use super::super::simd::{Extension, Kernel, Simd};
use super::super::step::ProductStep;
use super::super::tile::{AHEAD, Tiles, with_height};
use super::pack::{Layout, Table, TablePanels};
use super::widen::{E4m3, FourBits, Pairs, Singles, Storable, Widen, Widened};

/// The computation of the outputs of some panels for all rows.
pub(super) struct Product<'a> {
    pub(super) inputs: Inputs,
    pub(super) words: InputWords,
    pub(super) w: &'a TablePanels,
    pub(super) outputs: Outputs<'a>,
    pub(super) panels: Range<usize>,
    /// [`SCRATCH`] numbers.
    pub(super) scratch: Shared<f32>,
}

impl Kernel for Product<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: the caller guarantees the instruction set and valid pointers.
        unsafe {
            match (self.words, self.w.layout.codes) {
                (InputWords::Bf16Pairs, CodeType::E4m3) => run::<S, Pairs<E4m3>, 4>(&self),
                (InputWords::Bf16Pairs, CodeType::FourBits) => run::<S, Pairs<FourBits>, 4>(&self),
                (InputWords::F32, CodeType::E4m3) => run::<S, Singles<E4m3>, 8>(&self),
                (InputWords::F32, CodeType::FourBits) => run::<S, Singles<FourBits>, 8>(&self),
            }
        }
    }
}

#[inline(always)]
unsafe fn run<S: Simd, C: Storable<N>, const N: usize>(job: &Product<'_>) {
    let layout = job.w.layout;
    let (tiles, groups) = (Tiles::new(job.inputs.n, S::ROWS), layout.groups());
    // Whole groups that fit the working memory.
    let block = (SCRATCH / (layout.steps(0).max(1) * N * 2 * S::LANES)).max(1);
    // SAFETY: panels, groups and rows are inside the operands.
    unsafe {
        let mut panel = job.panels.start;
        while panel < job.panels.end {
            let source = job.source::<S>(panel);
            if tiles.count() == 1 {
                let at = Place { panel, row: 0, groups: 0..groups };
                let codes = [source, Source { start: job.w.panel(panel + 1), ..source }];
                // One or two rows have too few chains in a panel, and two streams are read faster.
                if job.inputs.n <= 2 && panel + 1 < job.panels.end {
                    if job.inputs.n == 1 {
                        tile::<S, C, N, 1, 4>(job, at, codes, codes);
                    } else {
                        tile::<S, C, N, 2, 4>(job, at, codes, codes);
                    }
                    panel += 2;
                    continue;
                }
                with_height!(1..=S::ROWS, job.inputs.n, one_panel::<S, C, N>(job, at, source, source));
            } else {
                for first in (0..groups).step_by(block) {
                    let groups = first..groups.min(first + block);
                    let start = job.scratch.as_ptr().cast::<u8>();
                    let step_bytes = N * 2 * S::LANES * size_of::<f32>();
                    let group_bytes = layout.steps(0) * step_bytes;
                    widen::<S, C, N>(job, &source, groups.clone());
                    // As if the first group of the panel were before the working memory.
                    let start = start.wrapping_sub(first * group_bytes);
                    let widened = Source { start, group_bytes, step_bytes };
                    for index in 0..tiles.count() {
                        let rows = tiles.rows(index);
                        let at = Place { panel, row: rows.start, groups: groups.clone() };
                        with_height!(
                            Tiles::of_several(S::ROWS),
                            rows.len(),
                            one_panel::<S, Widened<C::Product>, N>(job, at, widened, source)
                        );
                    }
                }
            }
            panel += 1;
        }
    }
}

impl Product<'_> {
    /// Returns the codes of a panel.
    #[inline(always)]
    pub(super) fn source<S: Simd>(&self, panel: usize) -> Source {
        let layout = self.w.layout;
        let step_bytes = layout.step_bytes() * 2 * S::LANES;
        Source { start: self.w.panel(panel), group_bytes: layout.group_bytes(), step_bytes }
    }
}

/// The steps of a panel.
#[derive(Clone, Copy)]
pub(super) struct Source {
    start: *const u8,
    group_bytes: usize,
    step_bytes: usize,
}

impl Source {
    /// Returns the address of a step, which need not be valid.
    #[inline(always)]
    pub(super) fn step(&self, group: usize, step: usize) -> *const u8 {
        self.start.wrapping_add(group * self.group_bytes + step * self.step_bytes)
    }
}

/// The outputs and the groups of a tile.
struct Place {
    panel: usize,
    row: usize,
    groups: Range<usize>,
}

/// Distance of prefetches in bytes while codes are widened.
const WIDEN_AHEAD: usize = 4096;

/// Widens some groups of a panel into the working memory.
///
/// # Safety
/// The machine has the instruction set, and the working memory holds the groups.
#[inline(always)]
pub(super) unsafe fn widen<S: Simd, C: Storable<N>, const N: usize>(
    job: &Product<'_>,
    codes: &Source,
    groups: Range<usize>,
) {
    let (layout, table) = (job.w.layout, job.w.table);
    let mut to = job.scratch.as_ptr();
    for g in groups {
        for step in 0..layout.steps(g) {
            // SAFETY: the caller guarantees the instruction set, and that the working memory holds
            // the groups.
            unsafe {
                let from = codes.step(g, step);
                for line in (0..codes.step_bytes).step_by(64) {
                    S::prefetch(from.wrapping_add(WIDEN_AHEAD + line));
                }
                for v in 0..2 {
                    let words = C::words::<S>(from, v, &table);
                    for (at, word) in words.into_iter().enumerate() {
                        S::store(to.add((2 * at + v) * S::LANES), C::numbers::<S>(word));
                    }
                }
                to = to.add(N * 2 * S::LANES);
            }
        }
    }
}

#[inline(always)]
unsafe fn one_panel<S: Simd, W: Widen<N>, const N: usize, const M: usize>(
    job: &Product<'_>,
    at: Place,
    words: Source,
    codes: Source,
) {
    // SAFETY: the caller guarantees the instruction set and valid pointers.
    unsafe { tile::<S, W, N, M, 2>(job, at, [words; 2], [codes; 2]) }
}

/// Computes M rows and NV / 2 panels. `words` are the steps of each panel that are read, and
/// `codes` those that the factors follow.
#[inline(always)]
unsafe fn tile<S: Simd, W: Widen<N>, const N: usize, const M: usize, const NV: usize>(
    job: &Product<'_>,
    at: Place,
    words: [Source; 2],
    codes: [Source; 2],
) {
    // SAFETY: the caller guarantees the instruction set and valid pointers.
    unsafe { S::call(Tile::<W, N, M, NV> { job, at, words, codes, widen: std::marker::PhantomData }) }
}

struct Tile<'a, W: Widen<N>, const N: usize, const M: usize, const NV: usize> {
    job: &'a Product<'a>,
    at: Place,
    words: [Source; 2],
    codes: [Source; 2],
    widen: std::marker::PhantomData<W>,
}

impl<W: Widen<N>, const N: usize, const M: usize, const NV: usize> Kernel for Tile<'_, W, N, M, NV> {
    const USES: Extension = W::Product::USES;
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Tile { job, at: Place { panel, row, groups }, words, codes, .. } = self;
        let (layout, table) = (job.w.layout, job.w.table);
        let col = |v: usize| (panel * 2 + v) * S::LANES;
        // SAFETY: the creator passes rows and panels inside the operands.
        unsafe {
            let x = job.inputs.tile(row);
            let mut sums = [[S::splat(0.0); NV]; M];
            if groups.start > 0 {
                for (i, sums) in sums.iter_mut().enumerate() {
                    for v in 0..NV {
                        sums[v] = job.outputs.get::<S>(row + i, col(v));
                    }
                }
            }
            for g in groups.clone() {
                let first = g * layout.steps(0) * N;
                let dots = group::<S, W, N, M, NV>((layout, &table), x, first, g, &words);
                for v in 0..NV {
                    let factors = codes[v / 2].step(g, layout.steps(g)).cast::<f32>();
                    let factors = S::load(factors.add(v % 2 * S::LANES));
                    for i in 0..M {
                        sums[i][v] = S::fma(dots[i][v], factors, sums[i][v]);
                    }
                }
            }
            // The last block adds the bias.
            let bias = job.outputs.bias.filter(|_| groups.end == layout.groups());
            let outputs = Outputs { bias, ..job.outputs };
            outputs.put_tile::<S, M, NV>(row, col(0), &sums);
        }
    }
}

/// Returns the products of one group, whose first word is `first`.
#[inline(always)]
unsafe fn group<S: Simd, W: Widen<N>, const N: usize, const M: usize, const NV: usize>(
    (layout, table): (Layout, &Table),
    x: *const u32,
    first: usize,
    g: usize,
    words: &[Source; 2],
) -> [[S::V; NV]; M] {
    // SAFETY: the caller guarantees the instruction set and valid pointers. Rows of inputs are
    // padded to whole steps.
    unsafe {
        let mut sums = [[S::splat(0.0); NV]; M];
        for step in 0..layout.steps(g) {
            let from = [words[0].step(g, step), words[1].step(g, step)];
            if W::STREAMED {
                for from in &from[..NV / 2] {
                    for line in (0..words[0].step_bytes).step_by(64) {
                        S::prefetch(from.wrapping_add(AHEAD + line));
                    }
                }
            }
            // No closure: it would be a function of its own, without the instruction set.
            let mut w = [W::words::<S>(from[0], 0, table); NV];
            for v in 1..NV {
                w[v] = W::words::<S>(from[v / 2], v % 2, table);
            }
            for at in 0..N {
                let word = first + step * N + at;
                let x = x.add(word / GROUP * GROUP * M + word % GROUP);
                for i in 0..M {
                    let x = W::Product::input::<S>(x.add(i * GROUP));
                    for v in 0..NV {
                        sums[i][v] = W::Product::add::<S>(sums[i][v], x, w[v][at]);
                    }
                }
            }
        }
        sums
    }
}
