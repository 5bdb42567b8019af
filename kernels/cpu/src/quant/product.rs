//! The product of quantized activations and integers in groups.
//!
//! An output element is `sum over groups of (sum of code * byte + correction) * (weight scale *
//! activation scale)`. The inner sum is an exact integer, which the correction for the offset
//! initializes. The groups are added in ascending order.

use std::marker::PhantomData;
use std::ops::Range;

use millrace_numbers::integers::IntFormat;

use super::super::outputs::Outputs;
use super::super::simd::{Extension, Kernel, Simd, Target};
use super::super::tile::AHEAD;
use super::activations::{GroupScale, RowLayout, STEP};
use super::pack::IntPanels;

/// The computation of the outputs of some panels for all rows.
pub(super) struct Product<'a> {
    /// Rows.
    pub(super) n: usize,
    pub(super) layout: RowLayout,
    /// The bytes of the activations.
    pub(super) x: *const i8,
    /// `[n, groups]`.
    pub(super) scales: *const GroupScale,
    pub(super) w: &'a IntPanels,
    pub(super) outputs: Outputs<'a>,
    pub(super) panels: Range<usize>,
}

/// The loops of a format.
trait Loop {
    /// Bits of a code.
    const BITS: usize;
    /// Whether groups have scales. Otherwise rows have.
    const GROUP_SCALES: bool;
    /// Whether groups have offsets of their own.
    const OFFSETS: bool;
    /// Whether the scales of groups are of type f32. Otherwise they are of type f16.
    const WIDE_SCALES: bool = false;
    /// Bytes of a group's scale and offset.
    const GROUP_BYTES: usize = if Self::WIDE_SCALES { 4 } else { 2 } + if Self::OFFSETS { 2 } else { 0 };
}

struct Int8;
struct Q8_0;
struct Q4_0;
struct Int4;

impl Loop for Int8 {
    const BITS: usize = 8;
    const GROUP_SCALES: bool = false;
    const OFFSETS: bool = false;
}

impl Loop for Q8_0 {
    const BITS: usize = 8;
    const GROUP_SCALES: bool = true;
    const OFFSETS: bool = false;
}

impl Loop for Q4_0 {
    const BITS: usize = 4;
    const GROUP_SCALES: bool = true;
    const OFFSETS: bool = false;
}

impl Loop for Int4 {
    const BITS: usize = 4;
    const GROUP_SCALES: bool = true;
    const OFFSETS: bool = true;
}

/// Integers that a checkpoint stores, with scales of type f32.
struct Stored<const BITS: usize, const OFFSETS: bool>;

impl<const BITS: usize, const OFFSETS: bool> Loop for Stored<BITS, OFFSETS> {
    const BITS: usize = BITS;
    const GROUP_SCALES: bool = true;
    const OFFSETS: bool = OFFSETS;
    const WIDE_SCALES: bool = true;
}

impl Product<'_> {
    /// Computes the product with the instruction set of `target`.
    pub(super) fn compute(&self, target: Target) {
        match self.w.format {
            IntFormat::Int8 => target.dispatch(WithLoop::<Int8>::new(self)),
            IntFormat::Q8_0 => target.dispatch(WithLoop::<Q8_0>::new(self)),
            IntFormat::Q4_0 => target.dispatch(WithLoop::<Q4_0>::new(self)),
            IntFormat::Int4 => target.dispatch(WithLoop::<Int4>::new(self)),
            // The loops of other formats serve where they read the same numbers.
            IntFormat::Stored(groups) => match (groups.bits, groups.has_offsets, groups.wide_scales) {
                (4, false, false) => target.dispatch(WithLoop::<Q4_0>::new(self)),
                (4, true, false) => target.dispatch(WithLoop::<Int4>::new(self)),
                (4, false, true) => target.dispatch(WithLoop::<Stored<4, false>>::new(self)),
                (4, true, true) => target.dispatch(WithLoop::<Stored<4, true>>::new(self)),
                (_, false, false) => target.dispatch(WithLoop::<Q8_0>::new(self)),
                (_, true, true) => target.dispatch(WithLoop::<Stored<8, true>>::new(self)),
                (..) => unreachable!("8 bits with either wide scales or offsets; this is a bug"),
            },
        }
    }
}

/// A product with the loops of a format. Each one is a kernel of its own, because compilers take
/// very long for a function with all of them.
struct WithLoop<'a, L>(&'a Product<'a>, PhantomData<L>);

impl<'a, L: Loop> WithLoop<'a, L> {
    fn new(product: &'a Product<'a>) -> Self {
        WithLoop(product, PhantomData)
    }
}

impl<L: Loop> Kernel for WithLoop<'_, L> {
    const USES: Extension = Extension::Vnni;
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: the caller guarantees the instruction set and valid pointers.
        unsafe { run::<S, L>(self.0) }
    }
}

#[inline(always)]
unsafe fn run<S: Simd, L: Loop>(job: &Product<'_>) {
    // Two accumulators for each row and vector must fit the registers.
    let highest = S::ROWS / 2;
    // SAFETY: panels and rows are inside the operands.
    unsafe {
        if job.n <= 2 {
            // Two panels are streamed together: there are too few chains in one, and two streams
            // are read faster.
            let mut panel = job.panels.start;
            while panel + 1 < job.panels.end {
                if job.n == 1 {
                    tile::<S, L, 1, 4>(job, panel, 0);
                } else {
                    tile::<S, L, 2, 4>(job, panel, 0);
                }
                panel += 2;
            }
            if panel < job.panels.end {
                with_rows::<S, L>(job, panel, 0, job.n);
            }
            return;
        }
        for panel in job.panels.clone() {
            let mut row = 0;
            while row < job.n {
                // Tiles of nearly equal heights.
                let rest = job.n - row;
                let height = rest.div_ceil(rest.div_ceil(highest));
                with_rows::<S, L>(job, panel, row, height);
                row += height;
            }
        }
    }
}

#[inline(always)]
unsafe fn with_rows<S: Simd, L: Loop>(job: &Product<'_>, panel: usize, row: usize, height: usize) {
    // SAFETY: the caller guarantees the instruction set and valid pointers.
    unsafe {
        match height {
            1 => tile::<S, L, 1, 2>(job, panel, row),
            2 => tile::<S, L, 2, 2>(job, panel, row),
            3 if S::ROWS >= 6 => tile::<S, L, 3, 2>(job, panel, row),
            4 if S::ROWS >= 8 => tile::<S, L, 4, 2>(job, panel, row),
            5 if S::ROWS >= 10 => tile::<S, L, 5, 2>(job, panel, row),
            6 if S::ROWS >= 12 => tile::<S, L, 6, 2>(job, panel, row),
            _ => unreachable!("no tile of this height; this is a bug"),
        }
    }
}

/// Computes M rows from `row` and NV / 2 panels from `panel`.
#[inline(always)]
unsafe fn tile<S: Simd, L: Loop, const M: usize, const NV: usize>(
    job: &Product<'_>,
    panel: usize,
    row: usize,
) {
    let RowLayout { cols, group, .. } = job.layout;
    let (groups, stride) = (job.layout.groups(), job.layout.stride());
    let step_bytes = STEP * L::BITS / 8 * 2 * S::LANES;
    // SAFETY: the caller passes rows and panels inside the operands. A panel has whole steps of
    // columns, and so have the activations.
    unsafe {
        let mut w = [std::ptr::null(); NV];
        for v in 0..NV {
            w[v] = job.w.panel(panel + v / 2);
        }
        let mut x: [*const i8; M] = [std::ptr::null(); M];
        let mut scales: [*const GroupScale; M] = [std::ptr::null(); M];
        for i in 0..M {
            x[i] = job.x.add((row + i) * stride);
            scales[i] = job.scales.add((row + i) * groups);
        }
        let mut sums = [[S::splat(0.0); NV]; M];
        for g in 0..groups {
            let mut dots = [[S::splat_i(0); NV]; M];
            if !L::OFFSETS {
                for i in 0..M {
                    dots[i] = [S::splat_i((*scales[i].add(g)).correction); NV];
                }
            }
            let first = g * group;
            for step in 0..group.min(cols - first).div_ceil(STEP) {
                dot_step::<S, L, M, NV>(&mut dots, &w, &x, first + step * STEP);
                for v in 0..NV {
                    w[v] = w[v].add(step_bytes);
                }
            }
            add_group::<S, L, M, NV>(&mut sums, &dots, &w, &scales, g);
            if L::GROUP_SCALES {
                let bytes = 2 * S::LANES * L::GROUP_BYTES;
                for v in 0..NV {
                    w[v] = w[v].add(bytes);
                }
            }
        }
        for (i, sums) in sums.iter().enumerate() {
            for v in 0..NV {
                let col = (panel * 2 + v) * S::LANES;
                let sums = if L::GROUP_SCALES {
                    sums[v]
                } else {
                    // Scales of rows are padded to whole panels.
                    S::mul(sums[v], S::load(job.w.row_scales.as_ptr().add(col)))
                };
                job.outputs.put::<S>(row + i, col, sums);
            }
        }
    }
}

/// Adds the products of 32 columns from `first` on.
#[inline(always)]
unsafe fn dot_step<S: Simd, L: Loop, const M: usize, const NV: usize>(
    dots: &mut [[S::I; NV]; M],
    w: &[*const u8; NV],
    x: &[*const i8; M],
    first: usize,
) {
    let vector = 4 * S::LANES;
    // SAFETY: the caller guarantees the instruction set and valid pointers.
    unsafe {
        let mut sums = *dots;
        for at in 0..STEP * L::BITS / 32 {
            let mut codes = [S::splat_i(0); NV];
            for v in 0..NV {
                let from = w[v].add((2 * at + v % 2) * vector);
                if (v % 2 * vector).is_multiple_of(64) {
                    S::prefetch(from.wrapping_add(AHEAD));
                }
                codes[v] = S::load_i(from.cast());
            }
            if L::BITS == 8 {
                multiply::<S, M, NV>(&mut sums, codes, x, first + 4 * at);
            } else {
                multiply::<S, M, NV>(&mut sums, codes.map(|c| S::low_nibbles(c)), x, first + 8 * at);
                multiply::<S, M, NV>(&mut sums, codes.map(|c| S::high_nibbles(c)), x, first + 8 * at + 4);
            }
        }
        *dots = sums;
    }
}

/// Adds the products of four columns from `col` on.
#[inline(always)]
unsafe fn multiply<S: Simd, const M: usize, const NV: usize>(
    sums: &mut [[S::I; NV]; M],
    codes: [S::I; NV],
    x: &[*const i8; M],
    col: usize,
) {
    // SAFETY: the caller guarantees the instruction set and valid pointers.
    unsafe {
        for i in 0..M {
            let x = S::splat_i(x[i].add(col).cast::<i32>().read_unaligned());
            for v in 0..NV {
                sums[i][v] = S::dot_u8_i8(sums[i][v], codes[v], x);
            }
        }
    }
}

/// Adds the scaled dot products of group `g`. The scales of the weights are at `w`.
#[inline(always)]
unsafe fn add_group<S: Simd, L: Loop, const M: usize, const NV: usize>(
    sums: &mut [[S::V; NV]; M],
    dots: &[[S::I; NV]; M],
    w: &[*const u8; NV],
    scales: &[*const GroupScale; M],
    g: usize,
) {
    // SAFETY: the caller guarantees the instruction set and valid pointers.
    unsafe {
        let mut weight_scales = [S::splat(0.0); NV];
        let mut offsets = [S::splat(0.0); NV];
        if L::GROUP_SCALES {
            for v in 0..NV {
                // The scales of a panel's two vectors, then their offsets.
                let lane = v % 2 * S::LANES;
                let scale_bytes = if L::WIDE_SCALES { 4 } else { 2 };
                weight_scales[v] = if L::WIDE_SCALES {
                    S::load(w[v].cast::<f32>().add(lane))
                } else {
                    S::load_f16(w[v].cast::<u16>().add(lane))
                };
                if L::OFFSETS {
                    let at = w[v].add(scale_bytes * 2 * S::LANES);
                    offsets[v] = S::load_f16(at.cast::<u16>().add(lane));
                }
            }
        }
        for i in 0..M {
            let GroupScale { scale, correction } = *scales[i].add(g);
            let scale = S::splat(scale);
            for v in 0..NV {
                let mut dot = S::to_f32(dots[i][v]);
                if L::OFFSETS {
                    // All numbers are integers below 2^24: the result is exact.
                    dot = S::fma(offsets[v], S::to_f32(S::splat_i(correction)), dot);
                }
                let scale = if L::GROUP_SCALES { S::mul(weight_scales[v], scale) } else { scale };
                sums[i][v] = S::fma_once(dot, scale, sums[i][v]);
            }
        }
    }
}
