//! The product on the tile unit of Intel AMX.
//!
//! Some groups of a panel at a time become pairs of bf16 numbers in the working memory, for all
//! rows. The unit multiplies each group, and the sums of a group are multiplied by its factor. The
//! order of the sums is that of the unit, for any number of rows.

use std::ops::Range;

use millrace_numbers::codes::CodeType;

use super::super::amx::{Ahead, Amx, Block, ROWS, Unit, WIDTH};
use super::super::gemm::SCRATCH;
use super::super::inputs::GROUP;
use super::super::outputs::Outputs;
use super::super::simd::{Extension, Kernel, Simd};
use super::super::tile::Tiles;
use super::product::{Product, Source, widen};
use super::widen::{E4m3, FourBits, Pairs, Storable};

/// Words of a step of codes.
const WORDS: usize = 4;
/// Numbers of working memory for a block of groups, which stays in the L2 cache with its inputs.
const BLOCK: usize = 16 << 10;
/// The same for so few rows that widening takes most of the time: the block stays in the L1 cache.
const SMALL_BLOCK: usize = 4 << 10;
const _: () = assert!(BLOCK <= SCRATCH);

/// A product whose groups are whole steps of the unit, with inputs in tiles of [`ROWS`] rows.
pub(super) struct OnTiles<'a>(pub(super) Product<'a>);

impl Kernel for OnTiles<'_> {
    const USES: Extension = Extension::None;
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: the caller guarantees the instruction set and valid pointers.
        unsafe {
            match self.0.w.layout.codes {
                CodeType::E4m3 => run::<S, Pairs<E4m3>>(&self.0),
                CodeType::FourBits => run::<S, Pairs<FourBits>>(&self.0),
            }
        }
    }
}

#[inline(always)]
unsafe fn run<S: Simd, C: Storable<WORDS>>(job: &Product<'_>) {
    let layout = job.w.layout;
    let (tiles, groups) = (Tiles::new(job.inputs.n, ROWS), layout.groups());
    let block = if job.inputs.n <= 2 * ROWS { SMALL_BLOCK } else { BLOCK };
    let block = (block / (layout.steps(0).max(1) * WORDS * WIDTH)).max(1);
    let mut unit = Amx::new();
    let mut buffers = Buffers { sums: [[0.0; WIDTH]; 2 * ROWS], dots: [[[0.0; WIDTH]; 2 * ROWS]; 2] };
    for panel in job.panels.clone() {
        let source = job.source::<S>(panel);
        for first in (0..groups).step_by(block) {
            let groups = first..groups.min(first + block);
            // SAFETY: the caller guarantees the instruction set and valid pointers, and the working
            // memory holds the block.
            unsafe {
                widen::<S, C, WORDS>(job, &source, groups.clone());
                for tile in (0..tiles.count()).step_by(2) {
                    let first = tiles.rows(tile);
                    let second = if tile + 1 < tiles.count() { tiles.rows(tile + 1) } else { 0..0 };
                    let at = Place { panel, first, second, groups: groups.clone() };
                    add::<S>(job, &mut unit, &mut buffers, &at, &source);
                }
            }
        }
    }
}

struct Buffers {
    sums: [[f32; WIDTH]; 2 * ROWS],
    /// The products of a group, and of the one before it.
    dots: [[[f32; WIDTH]; 2 * ROWS]; 2],
}

/// The outputs and the groups of up to two tiles of rows.
struct Place {
    panel: usize,
    first: Range<usize>,
    second: Range<usize>,
    groups: Range<usize>,
}

/// Adds the products of the groups in the working memory to the outputs.
#[inline(always)]
unsafe fn add<S: Simd>(
    job: &Product<'_>,
    unit: &mut Amx,
    buffers: &mut Buffers,
    at: &Place,
    source: &Source,
) {
    let Place { panel, first, second, groups } = at;
    let layout = job.w.layout;
    let heights = [first.len(), second.len()];
    let rows = heights[0] + heights[1];
    let col = |v: usize| panel * WIDTH + v * S::LANES;
    let vectors = WIDTH / S::LANES;
    let Buffers { sums, dots } = buffers;
    // SAFETY: the creator passes rows and panels inside the operands. Vectors of sums and products
    // are inside the arrays.
    unsafe {
        if groups.start == 0 {
            sums[..rows].fill([0.0; WIDTH]);
        } else {
            for i in 0..rows {
                for v in 0..vectors {
                    let sum = job.outputs.get::<S>(first.start + i, col(v));
                    S::store(sums[i].as_mut_ptr().add(v * S::LANES), sum);
                }
            }
        }
        for g in groups.clone() {
            let words = layout.steps(0) * WORDS;
            let input = |row: usize, height: usize| job.inputs.tile(row).wrapping_add(g * words * height);
            let dots = &mut dots[g % 2];
            unit.multiply_bf16(&Block {
                heights,
                inputs: [input(first.start, heights[0]).cast(), input(first.end, heights[1]).cast()],
                weights: job.scratch.as_ptr().add((g - groups.start) * words * WIDTH).cast(),
                steps: layout.steps(g) * WORDS / GROUP,
                sums: [dots.as_mut_ptr().cast(), dots.as_mut_ptr().add(heights[0]).cast()],
                fresh: true,
                stride: WIDTH * size_of::<f32>(),
                // The codes of the block that follows.
                ahead: Ahead::From(source.step(g + groups.len(), 0)),
            });
            let factors = source.step(g, layout.steps(g)).cast::<f32>();
            for v in 0..vectors {
                let lane = v * S::LANES;
                let factors = S::load(factors.add(lane));
                for i in 0..rows {
                    let sum = sums[i].as_mut_ptr().add(lane);
                    S::store(sum, S::fma(S::load(dots[i].as_ptr().add(lane)), factors, S::load(sum)));
                }
            }
        }
        // The last block adds the bias.
        let bias = job.outputs.bias.filter(|_| groups.end == layout.groups());
        let outputs = Outputs { bias, ..job.outputs };
        for i in 0..rows {
            for v in 0..vectors {
                outputs.put::<S>(first.start + i, col(v), S::load(sums[i].as_ptr().add(v * S::LANES)));
            }
        }
    }
}
