//! The matrix product.
//!
//! Every output element is one chain of products over the inputs in order, to which the bias is
//! added. Tiles, blocks and threads only divide the elements and the chains among themselves, so
//! that a row's result depends only on the row.
//!
//! The rows of up to one tile are bound by reading the weights. Each panel is read once for all
//! rows. Several panels are streamed together when there are so few accumulators that the latency
//! of the multiplier would limit the speed.
//!
//! More rows are computed tile after tile with a group of panels that stays in the L2 cache. Long
//! panels are cut into blocks of inputs, between which the partial sums are in the output. While
//! the tiles compute, they prefetch the weights that come next, so that memory is not idle.

use std::ops::Range;

use super::inputs::{GROUP, Inputs};
use super::matrix::{Matrix, Packed, Panels};
use super::memory::Shared;
use super::simd::{Element, Extension, Kernel, Simd};
use super::step::{Pair, ProductStep, Single};
use super::tile::{Tiles, with_height};

/// Smallest number of panels in a task at which the kernels are fastest: a single row uses as many
/// together.
pub(super) const BLOCK_PANELS: usize = 4;
/// Numbers in a thread's working memory, for a block of widened weights or for a tile of
/// attention.
pub(super) const SCRATCH: usize = 7 << 14;
/// Steps of the longest block of widened weights: the widest panel fits the working memory.
const WIDENED_STEPS: usize = 2048;
/// Steps of the longest block of a panel that stays in the cache.
const BLOCK_STEPS: usize = 4096;
/// Bytes of a group of panels that stays in the cache, unless a single block is larger.
const GROUP_BYTES: usize = 256 << 10;
/// Distance of prefetches in bytes of one stream.
const AHEAD: usize = 2048;

/// The computation of the outputs of some panels for all rows.
pub(super) struct Linear<'a> {
    pub(super) inputs: Inputs,
    pub(super) w: &'a Matrix,
    pub(super) bias: Option<&'a [f32]>,
    /// `[n, w.out]`.
    pub(super) out: Shared<f32>,
    pub(super) panels: Range<usize>,
    /// [`SCRATCH`] numbers.
    pub(super) scratch: Shared<f32>,
}

impl Kernel for Linear<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: the caller guarantees the instruction set and valid pointers.
        unsafe {
            match &self.w.packed {
                Packed::F32(panels) => single::<S, f32>(&self, panels),
                Packed::F16(panels) => single::<S, half::f16>(&self, panels),
                Packed::BF16(panels) => single::<S, half::bf16>(&self, panels),
                Packed::Bf16Pairs(panels) if S::HAS_BF16 => {
                    by_rows::<S, Pair>(&self, panels.start().cast());
                }
                Packed::Bf16Pairs(_) => unreachable!("pairs without an instruction; this is a bug"),
                Packed::Int(_) | Packed::SuperBlocks(_) | Packed::Table(..) | Packed::Stack(_) => {
                    unreachable!("other formats have products of their own; this is a bug")
                }
                Packed::Stored(_) => unreachable!("tables of rows are not multiplied; this is a bug"),
            }
        }
    }
}

#[inline(always)]
unsafe fn single<S: Simd, T: Element>(job: &Linear<'_>, panels: &Panels<T>) {
    // SAFETY: the caller guarantees the instruction set and valid pointers.
    unsafe {
        if T::SIZE < size_of::<f32>() && job.inputs.n > 2 * S::ROWS {
            widened::<S, T>(job, panels.start())
        } else {
            by_rows::<S, Single<T>>(job, panels.start())
        }
    }
}

#[inline(always)]
unsafe fn by_rows<S: Simd, F: ProductStep>(job: &Linear<'_>, weights: *const F::Weight) {
    // SAFETY: the caller guarantees the instruction set and valid pointers.
    unsafe {
        if job.inputs.n <= S::ROWS { streamed::<S, F>(job, weights) } else { resident::<S, F>(job, weights) }
    }
}

/// Computes one tile of all rows.
#[inline(always)]
unsafe fn streamed<S: Simd, F: ProductStep>(job: &Linear<'_>, weights: *const F::Weight) {
    let (rows, panels) = (job.inputs.n, job.panels.clone());
    // With so many panels the multiplier has at least eight independent chains.
    let at_once = [4, 2, 2].get(rows - 1).copied().unwrap_or(1);
    let len = job.inputs.words * 2 * S::LANES;
    let mut panel = panels.start;
    while panel < panels.end {
        let group = if panels.end - panel >= at_once { at_once } else { 1 };
        let next = if panel + group < panels.end { panel + group } else { panel };
        // SAFETY: panels and rows are inside the operands.
        unsafe {
            let (w, next) = (weights.add(panel * len), weights.add(next * len));
            match (group, rows) {
                (4, _) => streamed_tile::<S, F, 1, 8>(job, panel, w, next),
                (2, 2) => streamed_tile::<S, F, 2, 4>(job, panel, w, next),
                (2, _) => streamed_tile::<S, F, 3, 4>(job, panel, w, next),
                _ => with_height!(1..=S::ROWS, rows, streamed_one::<S, F>(job, panel, w, next)),
            }
        }
        panel += group;
    }
}

#[inline(always)]
unsafe fn streamed_one<S: Simd, F: ProductStep, const M: usize>(
    job: &Linear<'_>,
    panel: usize,
    w: *const F::Weight,
    next: *const F::Weight,
) {
    // SAFETY: the caller guarantees the instruction set and valid pointers.
    unsafe { streamed_tile::<S, F, M, 2>(job, panel, w, next) }
}

/// Computes all M rows with the NV / 2 panels at `w`.
#[inline(always)]
unsafe fn streamed_tile<S: Simd, F: ProductStep, const M: usize, const NV: usize>(
    job: &Linear<'_>,
    panel: usize,
    w: *const F::Weight,
    next: *const F::Weight,
) {
    // SAFETY: the caller passes rows and panels inside the operands.
    unsafe { S::call(StreamedTile::<F, M, NV> { job, panel, w, next }) }
}

/// The product of all M rows with the NV / 2 panels at `w`. Every panel is a stream, which
/// prefetches itself until its end and then its successor among the panels at `next`.
struct StreamedTile<'a, F: ProductStep, const M: usize, const NV: usize> {
    job: &'a Linear<'a>,
    panel: usize,
    w: *const F::Weight,
    next: *const F::Weight,
}

impl<F: ProductStep, const M: usize, const NV: usize> Kernel for StreamedTile<'_, F, M, NV> {
    const USES: Extension = F::USES;
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let StreamedTile { job, panel, w, next } = self;
        let (words, width) = (job.inputs.words, 2 * S::LANES);
        let step_bytes = width * size_of::<F::Weight>();
        let last = words.saturating_sub(AHEAD / step_bytes) / GROUP * GROUP;
        // SAFETY: the caller passes rows and panels inside the operands.
        unsafe {
            let mut sums = [[S::splat(0.0); NV]; M];
            for (start, end) in [(0, last), (last, words)] {
                let mut operands = Operands {
                    x: job.inputs.x.add(start * M),
                    w: [w; NV],
                    ahead: [w.cast(); NV],
                    ahead_step: step_bytes,
                    words: end - start,
                };
                for v in 0..NV {
                    let at = v / 2 * words * width + v % 2 * S::LANES;
                    let own = w.add(at + start * width);
                    operands.w[v] = own;
                    let ahead = if start == 0 {
                        own.cast::<u8>().wrapping_add(AHEAD)
                    } else {
                        next.wrapping_add(at).cast()
                    };
                    operands.ahead[v] = ahead;
                }
                multiply::<S, F, M, NV>(&mut sums, operands);
            }
            put::<S, M, NV>(job, 0, panel * width, sums, true);
        }
    }
}

/// Computes tile after tile with weights that stay in the cache.
#[inline(always)]
unsafe fn resident<S: Simd, F: ProductStep>(job: &Linear<'_>, weights: *const F::Weight) {
    let (words, width) = (job.inputs.words, 2 * S::LANES);
    let step_bytes = width * size_of::<F::Weight>();
    let size = block_steps(words, BLOCK_STEPS);
    let group = (GROUP_BYTES / (size * step_bytes).max(1)).max(1);
    let tiles = Tiles::new(job.inputs.n, S::ROWS);
    for first in job.panels.clone().step_by(group) {
        let end = (first + group).min(job.panels.end);
        for start in block_starts(words, size) {
            let steps = size.min(words - start);
            // The block after this one, of the same panels or of the next ones. Each of the tiles
            // prefetches its share.
            let next = if start + steps < words { (first, start + steps) } else { (end, 0) };
            let mut ahead = weights.wrapping_add((next.0 * words + next.1) * width).cast::<u8>();
            let ahead_step = step_bytes.div_ceil(tiles.count());
            for tile in 0..tiles.count() {
                let rows = tiles.rows(tile);
                for panel in first..end {
                    // SAFETY: the block is inside the weights, and the rows inside the inputs.
                    unsafe {
                        let w = weights.add((panel * words + start) * width);
                        let at = Block { panel, start, steps, row: rows.start };
                        with_height!(
                            Tiles::of_several(S::ROWS),
                            rows.len(),
                            block_tile::<S, F>(job, at, w, ahead, ahead_step)
                        );
                    }
                    ahead = ahead.wrapping_add(ahead_step * steps);
                }
            }
        }
    }
}

/// Computes tile after tile with blocks of weights that are widened to f32 once for all of them.
#[inline(always)]
unsafe fn widened<S: Simd, T: Element>(job: &Linear<'_>, weights: *const T) {
    let (words, width) = (job.inputs.words, 2 * S::LANES);
    let size = block_steps(words, WIDENED_STEPS);
    let tiles = Tiles::new(job.inputs.n, S::ROWS);
    for panel in job.panels.clone() {
        for start in block_starts(words, size) {
            let steps = size.min(words - start);
            // SAFETY: the block is inside the weights, and the working memory holds WIDENED_STEPS
            // steps of the widest panel.
            unsafe {
                let block = job.scratch.as_ptr();
                let from = weights.add((panel * words + start) * width);
                for at in (0..steps * width).step_by(S::LANES) {
                    S::store(block.add(at), T::load::<S>(from.add(at)));
                }
                let mut ahead = from.wrapping_add(steps * width).cast::<u8>();
                let ahead_step = (width * T::SIZE).div_ceil(tiles.count());
                for tile in 0..tiles.count() {
                    let rows = tiles.rows(tile);
                    let at = Block { panel, start, steps, row: rows.start };
                    with_height!(
                        Tiles::of_several(S::ROWS),
                        rows.len(),
                        block_tile::<S, Single<f32>>(job, at, block, ahead, ahead_step)
                    );
                    ahead = ahead.wrapping_add(ahead_step * steps);
                }
            }
        }
    }
}

/// Returns the steps of the blocks of a panel of `words` steps: equal parts of at most `largest`.
#[inline(always)]
fn block_steps(words: usize, largest: usize) -> usize {
    words.div_ceil(words.div_ceil(largest).max(1)).next_multiple_of(GROUP)
}

/// Returns the first steps of the blocks of a panel. A panel without steps is one empty block.
#[inline(always)]
fn block_starts(words: usize, size: usize) -> impl Iterator<Item = usize> {
    (0..words.max(1)).step_by(size.max(1))
}

/// A block of one panel and a tile of rows.
#[derive(Clone, Copy)]
struct Block {
    panel: usize,
    /// The first step, a multiple of [`GROUP`].
    start: usize,
    steps: usize,
    /// The first row.
    row: usize,
}

/// Multiplies M rows by one block of weights.
#[inline(always)]
unsafe fn block_tile<S: Simd, F: ProductStep, const M: usize>(
    job: &Linear<'_>,
    at: Block,
    w: *const F::Weight,
    ahead: *const u8,
    ahead_step: usize,
) {
    // SAFETY: the caller passes rows and panels inside the operands.
    unsafe { S::call(BlockTile::<F, M> { job, at, w, ahead, ahead_step }) }
}

/// The product of M rows with one block of weights, added to the partial sums of the blocks before
/// it.
struct BlockTile<'a, F: ProductStep, const M: usize> {
    job: &'a Linear<'a>,
    at: Block,
    w: *const F::Weight,
    ahead: *const u8,
    ahead_step: usize,
}

impl<F: ProductStep, const M: usize> Kernel for BlockTile<'_, F, M> {
    const USES: Extension = F::USES;
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let BlockTile { job, at: Block { panel, start, steps, row }, w, ahead, ahead_step } = self;
        let col = panel * 2 * S::LANES;
        // SAFETY: the creator passes rows and panels inside the operands.
        unsafe {
            let mut sums = [[S::splat(0.0); 2]; M];
            if start > 0 {
                sums = get::<S, M>(job, row, col);
            }
            let operands = Operands {
                x: job.inputs.tile(row).add(start * M),
                w: [w, w.add(S::LANES)],
                ahead: [ahead, ahead],
                ahead_step,
                words: steps,
            };
            multiply::<S, F, M, 2>(&mut sums, operands);
            put::<S, M, 2>(job, row, col, sums, start + steps == job.inputs.words);
        }
    }
}

/// The operands of [`multiply`].
struct Operands<F: ProductStep, const NV: usize> {
    /// A tile of inputs.
    x: *const u32,
    /// The first address of each vector of weights. The next one is a panel's width further.
    w: [*const F::Weight; NV],
    /// The addresses to prefetch, which need not be valid.
    ahead: [*const u8; NV],
    /// Bytes by which these addresses advance in a step.
    ahead_step: usize,
    words: usize,
}

/// Adds the products of M rows with NV vectors of weights to `sums`, in the order of the inputs.
/// Each element is one chain, independent of M, of NV, and of how the words are divided into calls.
#[inline(always)]
unsafe fn multiply<S: Simd, F: ProductStep, const M: usize, const NV: usize>(
    sums: &mut [[S::V; NV]; M],
    from: Operands<F, NV>,
) {
    // Vectors in one cache line need one prefetch.
    let per_line = (64 / (S::LANES * size_of::<F::Weight>())).max(1);
    // SAFETY: the caller guarantees the instruction set, and so many words and weights.
    unsafe {
        let mut acc = *sums;
        let mut k = 0;
        while k < from.words {
            let group = from.x.add(k * M);
            for j in 0..GROUP.min(from.words - k) {
                let at = (k + j) * 2 * S::LANES;
                let w: [F::Vector<S>; NV] = std::array::from_fn(|v| F::weights::<S>(from.w[v].add(at)));
                for v in (0..NV).step_by(per_line) {
                    S::prefetch(from.ahead[v].wrapping_add((k + j) * from.ahead_step));
                }
                // The inputs of high tiles are a stream of their own, often from the L2 cache.
                if M >= 6 {
                    S::prefetch(group.wrapping_add(j * M).wrapping_byte_add(AHEAD).cast());
                }
                for i in 0..M {
                    let x = F::input::<S>(group.add(i * GROUP + j));
                    for v in 0..NV {
                        acc[i][v] = F::add::<S>(acc[i][v], x, w[v]);
                    }
                }
            }
            k += GROUP;
        }
        *sums = acc;
    }
}

/// Returns the partial sums of M rows from `row` and the panel of outputs that starts with `col`.
#[inline(always)]
unsafe fn get<S: Simd, const M: usize>(job: &Linear<'_>, row: usize, col: usize) -> [[S::V; 2]; M] {
    let (out, width) = (job.w.out, 2 * S::LANES);
    // SAFETY: the elements are inside the output, of which this task owns these columns. Panels
    // have at most 32 outputs.
    unsafe {
        let mut sums = [[S::splat(0.0); 2]; M];
        for i in 0..M {
            let mut from = job.out.as_ptr().add((row + i) * out + col).cast_const();
            let mut edge = [0.0; 32];
            if col + width > out {
                std::ptr::copy_nonoverlapping(from, edge.as_mut_ptr(), out - col);
                from = edge.as_ptr();
            }
            sums[i] = [S::load(from), S::load(from.add(S::LANES))];
        }
        sums
    }
}

/// Stores the sums of M rows from `row` and of NV vectors of outputs from `col`. The last block
/// adds the bias.
#[inline(always)]
unsafe fn put<S: Simd, const M: usize, const NV: usize>(
    job: &Linear<'_>,
    row: usize,
    col: usize,
    mut sums: [[S::V; NV]; M],
    last: bool,
) {
    let (out, whole) = (job.w.out, col + NV * S::LANES <= job.w.out);
    // SAFETY: the elements are inside the output, of which this task owns these columns.
    unsafe {
        if let (Some(bias), true) = (job.bias, last) {
            for v in 0..NV {
                let col = col + v * S::LANES;
                let bias = if whole {
                    S::load(bias.as_ptr().add(col))
                } else {
                    let rest = bias.get(col..).unwrap_or_default();
                    S::load_first(rest.as_ptr(), rest.len().min(S::LANES))
                };
                for i in 0..M {
                    sums[i][v] = S::add(sums[i][v], bias);
                }
            }
        }
        let to = job.out.as_ptr().add(row * out + col);
        if whole {
            for i in 0..M {
                for v in 0..NV {
                    S::store(to.add(i * out + v * S::LANES), sums[i][v]);
                }
            }
        } else {
            // NV vectors have at most 128 numbers.
            let mut edge = [[0f32; 128]; M];
            for i in 0..M {
                for v in 0..NV {
                    S::store(edge[i].as_mut_ptr().add(v * S::LANES), sums[i][v]);
                }
            }
            for (i, edge) in edge.iter().enumerate() {
                std::ptr::copy_nonoverlapping(edge.as_ptr(), to.add(i * out), out - col);
            }
        }
    }
}
