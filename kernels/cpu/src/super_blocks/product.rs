//! The product of quantized activations and super-blocks.
//!
//! An output element is the sum over super-blocks of `integer * (weight scale * activation scale)`,
//! where the integer is the sum over sub-blocks of `scale of the sub-block * (sum of code * byte)`.
//! It is exact: for `Q6_K`, whose offset initializes the inner sum, it is at most 2^27. The minima
//! of `Q4_K` and `Q5_K` are a second integer, `sum of minimum * (sum of bytes)`.

use std::ops::Range;

use millrace_numbers::formats::ggml::KFormat;

use super::super::outputs::Outputs;
use super::super::quant::STEP;
use super::super::simd::{Extension, Kernel, Simd};
use super::super::tile::{Tiles, with_height};
use super::activations::TileBlock;
use super::pack::{KPanels, header_bytes};

/// The computation of the outputs of some panels for all rows.
pub(super) struct Product<'a> {
    /// Rows.
    pub(super) n: usize,
    /// Super-blocks of a row.
    pub(super) blocks: usize,
    /// The quantized activations, see [`TileBlock`].
    pub(super) x: *mut u8,
    pub(super) tiles: Tiles,
    pub(super) w: &'a KPanels,
    pub(super) outputs: Outputs<'a>,
    pub(super) panels: Range<usize>,
}

/// Distance of prefetches in bytes. Twice that of other products was 5 to 10% faster at one row.
const AHEAD: usize = 4096;

/// The inner loop of a format.
pub(super) trait SubBlocks: 'static {
    const FORMAT: KFormat;
    /// Sub-blocks of a super-block.
    const COUNT: usize;
    /// Vectors of bytes with the codes of a sub-block.
    const VECTORS: usize;
    /// Dot products of a sub-block.
    const DOTS: usize;

    /// Returns the codes of four columns from the vectors of a sub-block.
    ///
    /// # Safety
    /// The machine has the instruction set.
    unsafe fn codes<S: Simd>(vectors: &[S::I; MOST_VECTORS], dot: usize) -> S::I;
}

/// Vectors of the format that has the most for a sub-block.
pub(super) const MOST_VECTORS: usize = 5;

pub(super) struct Q4K;
pub(super) struct Q5K;
pub(super) struct Q6K;

impl SubBlocks for Q4K {
    const FORMAT: KFormat = KFormat::Q4K;
    const COUNT: usize = 8;
    const VECTORS: usize = 4;
    const DOTS: usize = 8;

    #[inline(always)]
    unsafe fn codes<S: Simd>(vectors: &[S::I; MOST_VECTORS], dot: usize) -> S::I {
        // SAFETY: the caller guarantees the instruction set.
        unsafe { nibbles::<S>(vectors[dot / 2], dot) }
    }
}

impl SubBlocks for Q5K {
    const FORMAT: KFormat = KFormat::Q5K;
    const COUNT: usize = 8;
    const VECTORS: usize = 5;
    const DOTS: usize = 8;

    #[inline(always)]
    unsafe fn codes<S: Simd>(vectors: &[S::I; MOST_VECTORS], dot: usize) -> S::I {
        // SAFETY: the caller guarantees the instruction set.
        unsafe {
            let fifth = match dot {
                0 => S::shift_left(vectors[4], 4),
                1 => S::shift_left(vectors[4], 3),
                2 => S::shift_left(vectors[4], 2),
                3 => S::shift_left(vectors[4], 1),
                4 => vectors[4],
                5 => S::shift_right(vectors[4], 1),
                6 => S::shift_right(vectors[4], 2),
                _ => S::shift_right(vectors[4], 3),
            };
            S::or_i(nibbles::<S>(vectors[dot / 2], dot), S::and_i(fifth, S::splat_i(0x1010_1010)))
        }
    }
}

impl SubBlocks for Q6K {
    const FORMAT: KFormat = KFormat::Q6K;
    const COUNT: usize = 16;
    const VECTORS: usize = 3;
    const DOTS: usize = 4;

    #[inline(always)]
    unsafe fn codes<S: Simd>(vectors: &[S::I; MOST_VECTORS], dot: usize) -> S::I {
        // SAFETY: the caller guarantees the instruction set.
        unsafe {
            let upper = match dot {
                0 => S::shift_left(vectors[2], 4),
                1 => S::shift_left(vectors[2], 2),
                2 => vectors[2],
                _ => S::shift_right(vectors[2], 2),
            };
            S::or_i(nibbles::<S>(vectors[dot / 2], dot), S::and_i(upper, S::splat_i(0x3030_3030)))
        }
    }
}

/// Returns the lower or the upper bits of the bytes, for even and odd dot products.
#[inline(always)]
unsafe fn nibbles<S: Simd>(bytes: S::I, dot: usize) -> S::I {
    // SAFETY: the caller guarantees the instruction set.
    unsafe { if dot.is_multiple_of(2) { S::low_nibbles(bytes) } else { S::high_nibbles(bytes) } }
}

impl Kernel for Product<'_> {
    const USES: Extension = Extension::Vnni;
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: the caller guarantees the instruction set and valid pointers.
        unsafe {
            match self.w.format {
                KFormat::Q4K => run::<S, Q4K>(&self),
                KFormat::Q5K => run::<S, Q5K>(&self),
                KFormat::Q6K => run::<S, Q6K>(&self),
            }
        }
    }
}

#[inline(always)]
unsafe fn run<S: Simd, F: SubBlocks>(job: &Product<'_>) {
    let tiles = job.tiles;
    let mut panel = job.panels.start;
    while panel < job.panels.end {
        // A panel has too few chains for one or two rows, and two streams are read faster.
        let pair = job.n <= 2 && panel + 1 < job.panels.end;
        for tile in 0..tiles.count() {
            let rows = tiles.rows(tile);
            // SAFETY: panels and rows are inside the operands.
            unsafe {
                if pair {
                    with_height!(1..=2, rows.len(), two_panels::<S, F>(job, panel, rows.start));
                } else {
                    with_height!(1..=S::ROWS / 2, rows.len(), one_panel::<S, F>(job, panel, rows.start));
                }
            }
        }
        panel += 1 + usize::from(pair);
    }
}

/// Computes the outputs of a panel for M rows.
#[inline(always)]
unsafe fn one_panel<S: Simd, F: SubBlocks, const M: usize>(job: &Product<'_>, panel: usize, row: usize) {
    // SAFETY: the caller guarantees the instruction set and valid pointers.
    unsafe { S::call(Tile::<F, M, 2> { job, panel, row, format: std::marker::PhantomData }) }
}

/// Computes the outputs of a panel and of the next one for M rows.
#[inline(always)]
unsafe fn two_panels<S: Simd, F: SubBlocks, const M: usize>(job: &Product<'_>, panel: usize, row: usize) {
    // SAFETY: the caller guarantees the instruction set and valid pointers.
    unsafe { S::call(Tile::<F, M, 4> { job, panel, row, format: std::marker::PhantomData }) }
}

/// The product of M rows from `row` and NV / 2 panels from `panel`.
struct Tile<'a, F: SubBlocks, const M: usize, const NV: usize> {
    job: &'a Product<'a>,
    panel: usize,
    row: usize,
    format: std::marker::PhantomData<F>,
}

impl<F: SubBlocks, const M: usize, const NV: usize> Kernel for Tile<'_, F, M, NV> {
    const USES: Extension = Extension::Vnni;
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Tile { job, panel, row, .. } = self;
        let width = 2 * S::LANES;
        // SAFETY: the creator passes rows and panels inside the operands.
        unsafe {
            let mut w = [std::ptr::null(); NV];
            for v in 0..NV {
                w[v] = job.w.panel(panel + v / 2);
            }
            let mut sums = [[S::splat(0.0); NV]; M];
            for block in 0..job.blocks {
                let x = TileBlock::new(job.x, job.blocks, row, M, block);
                for v in 0..NV {
                    // Codes prefetch the addresses after their own, which leaves a gap as long as
                    // the header.
                    for line in (v % 2 * 64..header_bytes(F::FORMAT) * width).step_by(128) {
                        S::prefetch(w[v].wrapping_add(AHEAD + line));
                    }
                }
                let dots = dot_block::<S, F, M, NV>(&w, x);
                add_block::<S, F, M, NV>(&mut sums, dots, &w, x);
                for v in 0..NV {
                    w[v] = w[v].add((header_bytes(F::FORMAT) + 4 * F::COUNT * F::VECTORS) * width);
                }
            }
            job.outputs.put_tile::<S, M, NV>(row, panel * width, &sums);
        }
    }
}

/// Returns the sums of the scaled dot products of a super-block.
#[inline(always)]
unsafe fn dot_block<S: Simd, F: SubBlocks, const M: usize, const NV: usize>(
    w: &[*const u8; NV],
    x: TileBlock,
) -> [[S::I; NV]; M] {
    let width = 2 * S::LANES;
    // The scales follow one or two numbers of type f16.
    let scales = header_bytes(F::FORMAT) - 16;
    // SAFETY: the caller guarantees the instruction set and valid pointers.
    unsafe {
        let mut sums = [[S::splat_i(0); NV]; M];
        for s in 0..F::COUNT {
            let load = |v: usize, at: usize| {
                let vector = (s * F::VECTORS + at) * 2 + v % 2;
                let from = w[v].add(header_bytes(F::FORMAT) * width + vector * 4 * S::LANES);
                if (v % 2 * 4 * S::LANES).is_multiple_of(64) {
                    S::prefetch(from.wrapping_add(AHEAD));
                }
                S::load_i(from.cast())
            };
            let mut vectors = [[S::splat_i(0); MOST_VECTORS]; NV];
            let mut dots = [[S::splat_i(0); NV]; M];
            if F::FORMAT.offset() != 0 {
                for i in 0..M {
                    dots[i] = [S::splat_i((*x.sums(i))[s]); NV];
                }
            }
            for dot in 0..F::DOTS {
                let mut codes = [S::splat_i(0); NV];
                for v in 0..NV {
                    // Loads come as late as possible, so that prefetches are evenly spread.
                    if dot == 0 && F::VECTORS > F::DOTS / 2 {
                        vectors[v][F::VECTORS - 1] = load(v, F::VECTORS - 1);
                    }
                    if dot.is_multiple_of(2) {
                        vectors[v][dot / 2] = load(v, dot / 2);
                    }
                    codes[v] = F::codes::<S>(&vectors[v], dot);
                }
                let x = x.bytes(4 * (s * F::DOTS + dot));
                for i in 0..M {
                    let x = S::splat_i(x.add(i * STEP).cast::<i32>().read_unaligned());
                    for v in 0..NV {
                        dots[i][v] = S::dot_u8_i8(dots[i][v], codes[v], x);
                    }
                }
            }
            for v in 0..NV {
                let at = w[v].add((scales + s) * width + v % 2 * S::LANES);
                let scale = S::widen_i8(at.cast());
                for i in 0..M {
                    sums[i][v] = S::add_i(sums[i][v], S::mul_i(dots[i][v], scale));
                }
            }
        }
        sums
    }
}

/// Adds the sums of a super-block, scaled, and subtracts the minima.
#[inline(always)]
unsafe fn add_block<S: Simd, F: SubBlocks, const M: usize, const NV: usize>(
    sums: &mut [[S::V; NV]; M],
    dots: [[S::I; NV]; M],
    w: &[*const u8; NV],
    x: TileBlock,
) {
    let width = 2 * S::LANES;
    // SAFETY: the caller guarantees the instruction set and valid pointers.
    unsafe {
        for v in 0..NV {
            let numbers: *const u16 = w[v].cast();
            let weight_scale = S::load_f16(numbers.add(v % 2 * S::LANES));
            for i in 0..M {
                let scale = S::mul(weight_scale, S::splat(*x.scale(i)));
                sums[i][v] = S::fma_once(S::to_f32(dots[i][v]), scale, sums[i][v]);
            }
            if F::FORMAT.has_minima() {
                let weight_min = S::load_f16(numbers.add(width + v % 2 * S::LANES));
                let at = |half: usize| w[v].add(12 * width + (half * 2 + v % 2) * 4 * S::LANES);
                let mins = [S::load_i(at(0).cast()), S::load_i(at(1).cast())];
                for i in 0..M {
                    let parts = &*x.sums(i);
                    let pair = |first: usize| {
                        let dot = S::dot_u8_i8(S::splat_i(0), mins[0], S::splat_i(parts[first]));
                        S::dot_u8_i8(dot, mins[1], S::splat_i(parts[first + 1]))
                    };
                    let dot = S::add_i(pair(0), S::shift_left(pair(2), 7));
                    let scale = S::mul(weight_min, S::splat(-*x.scale(i)));
                    sums[i][v] = S::fma_once(S::to_f32(dot), scale, sums[i][v]);
                }
            }
        }
    }
}
