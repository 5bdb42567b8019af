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
use super::super::tile::{AHEAD, with_height};
use super::activations::{GroupScale, RowLayout, STEP};
use super::pack::IntPanels;

/// The computation of the outputs of some panels for all rows.
pub(super) struct Product<'a> {
    /// Rows.
    pub(super) n: usize,
    pub(super) layout: RowLayout,
    /// The bytes of the activations, see [`RowLayout`].
    pub(super) x: *const i8,
    /// Their scales.
    pub(super) scales: *const GroupScale,
    pub(super) w: &'a IntPanels,
    pub(super) outputs: Outputs<'a>,
    pub(super) panels: Range<usize>,
}

/// The loops of a format, whose codes have `BITS` bits.
trait Loop: 'static {
    /// Bits of a code.
    const BITS: usize;
    /// Whether groups have scales. Otherwise rows have.
    const GROUP_SCALES: bool = true;
    /// Whether groups have offsets of their own.
    const OFFSETS: bool = false;
    /// Whether the scales of groups are of type f32. Otherwise they are of type f16.
    const WIDE_SCALES: bool = false;
    /// Whether all groups have [`STEP`] columns.
    const ONE_STEP: bool = false;
    /// Bytes of a group's scale and offset.
    const GROUP_BYTES: usize = if Self::WIDE_SCALES { 4 } else { 2 } + if Self::OFFSETS { 2 } else { 0 };
}

struct Int8;

impl Loop for Int8 {
    const BITS: usize = 8;
    const GROUP_SCALES: bool = false;
}

/// The groups of `Q8_0` and `Q4_0`.
struct Smallest<const BITS: usize>;

impl<const BITS: usize> Loop for Smallest<BITS> {
    const BITS: usize = BITS;
    const ONE_STEP: bool = true;
}

/// Groups of any size.
struct Groups<const BITS: usize, const OFFSETS: bool, const WIDE_SCALES: bool>;

impl<const BITS: usize, const OFFSETS: bool, const WIDE_SCALES: bool> Loop
    for Groups<BITS, OFFSETS, WIDE_SCALES>
{
    const BITS: usize = BITS;
    const OFFSETS: bool = OFFSETS;
    const WIDE_SCALES: bool = WIDE_SCALES;
}

impl Product<'_> {
    /// Computes the product with the instruction set of `target`.
    pub(super) fn compute(&self, target: Target) {
        match self.w.format {
            IntFormat::Int8 => target.dispatch(WithLoop::<Int8>::new(self)),
            IntFormat::Q8_0 => target.dispatch(WithLoop::<Smallest<8>>::new(self)),
            IntFormat::Q4_0 => target.dispatch(WithLoop::<Smallest<4>>::new(self)),
            IntFormat::Int4 => target.dispatch(WithLoop::<Groups<4, true, false>>::new(self)),
            IntFormat::Stored(groups) => match (groups.bits, groups.has_offsets, groups.wide_scales) {
                (4, false, false) => target.dispatch(WithLoop::<Groups<4, false, false>>::new(self)),
                (4, true, false) => target.dispatch(WithLoop::<Groups<4, true, false>>::new(self)),
                (4, false, true) => target.dispatch(WithLoop::<Groups<4, false, true>>::new(self)),
                (4, true, true) => target.dispatch(WithLoop::<Groups<4, true, true>>::new(self)),
                (_, false, false) => target.dispatch(WithLoop::<Groups<8, false, false>>::new(self)),
                (_, true, true) => target.dispatch(WithLoop::<Groups<8, true, true>>::new(self)),
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
    let tiles = job.layout.tiles;
    let mut panel = job.panels.start;
    while panel < job.panels.end {
        // A panel has too few chains for one or two rows, and two streams are read faster.
        let pair = job.n <= 2 && panel + 1 < job.panels.end;
        for tile in 0..tiles.count() {
            let rows = tiles.rows(tile);
            // SAFETY: panels and rows are inside the operands.
            unsafe {
                if pair {
                    with_height!(1..=2, rows.len(), two_panels::<S, L>(job, panel, rows.start));
                } else {
                    with_height!(1..=S::ROWS / 2, rows.len(), one_panel::<S, L>(job, panel, rows.start));
                }
            }
        }
        panel += 1 + usize::from(pair);
    }
}

/// Computes the outputs of a panel for M rows.
#[inline(always)]
unsafe fn one_panel<S: Simd, L: Loop, const M: usize>(job: &Product<'_>, panel: usize, row: usize) {
    // SAFETY: the caller guarantees the instruction set and valid pointers.
    unsafe { S::call(Tile::<L, M, 2> { job, panel, row, format: PhantomData }) }
}

/// Computes the outputs of a panel and of the next one for M rows.
#[inline(always)]
unsafe fn two_panels<S: Simd, L: Loop, const M: usize>(job: &Product<'_>, panel: usize, row: usize) {
    // SAFETY: the caller guarantees the instruction set and valid pointers.
    unsafe { S::call(Tile::<L, M, 4> { job, panel, row, format: PhantomData }) }
}

/// The product of the M rows of the tile from `row` and NV / 2 panels from `panel`.
struct Tile<'a, L, const M: usize, const NV: usize> {
    job: &'a Product<'a>,
    panel: usize,
    row: usize,
    format: PhantomData<L>,
}

impl<L: Loop, const M: usize, const NV: usize> Kernel for Tile<'_, L, M, NV> {
    const USES: Extension = Extension::Vnni;
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Tile { job, panel, row, .. } = self;
        let RowLayout { cols, group, .. } = job.layout;
        let step_bytes = STEP * L::BITS / 8 * 2 * S::LANES;
        let first_col = panel * 2 * S::LANES;
        // SAFETY: the creator passes rows and panels inside the operands. A panel has whole steps
        // of columns, and so have the activations.
        unsafe {
            let mut w = [std::ptr::null(); NV];
            for v in 0..NV {
                w[v] = job.w.panel(panel + v / 2);
            }
            let mut x = job.x.add(row * job.layout.stride());
            let mut scales = job.scales.add(row * job.layout.groups());
            let mut sums = [[S::splat(0.0); NV]; M];
            for first in (0..cols).step_by(if L::ONE_STEP { STEP } else { group }) {
                let mut dots = [[S::splat_i(0); NV]; M];
                if !L::OFFSETS {
                    for i in 0..M {
                        dots[i] = [S::splat_i((*scales.add(i)).correction); NV];
                    }
                }
                let steps = if L::ONE_STEP { 1 } else { group.min(cols - first).div_ceil(STEP) };
                for _ in 0..steps {
                    dot_step::<S, L, M, NV>(&mut dots, &w, x);
                    x = x.add(STEP * M);
                    for v in 0..NV {
                        w[v] = w[v].add(step_bytes);
                    }
                }
                add_group::<S, L, M, NV>(&mut sums, &dots, &w, scales);
                scales = scales.add(M);
                if L::GROUP_SCALES {
                    for v in 0..NV {
                        w[v] = w[v].add(2 * S::LANES * L::GROUP_BYTES);
                    }
                }
            }
            if !L::GROUP_SCALES {
                for v in 0..NV {
                    // Scales of rows are padded to whole panels.
                    let scales = S::load(job.w.row_scales.as_ptr().add(first_col + v * S::LANES));
                    for i in 0..M {
                        sums[i][v] = S::mul(sums[i][v], scales);
                    }
                }
            }
            job.outputs.put_tile::<S, M, NV>(row, first_col, &sums);
        }
    }
}

/// Adds the products of [`STEP`] columns. The bytes of the M rows are at `x`.
#[inline(always)]
unsafe fn dot_step<S: Simd, L: Loop, const M: usize, const NV: usize>(
    dots: &mut [[S::I; NV]; M],
    w: &[*const u8; NV],
    x: *const i8,
) {
    let vector = 4 * S::LANES;
    // SAFETY: the caller guarantees the instruction set and valid pointers.
    unsafe {
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
                multiply::<S, M, NV>(dots, &codes, x.add(4 * at));
            } else {
                let (mut low, mut high) = (codes, codes);
                for v in 0..NV {
                    low[v] = S::low_nibbles(codes[v]);
                    high[v] = S::high_nibbles(codes[v]);
                }
                multiply::<S, M, NV>(dots, &low, x.add(8 * at));
                multiply::<S, M, NV>(dots, &high, x.add(8 * at + 4));
            }
        }
    }
}

/// Adds the products of four columns. The bytes of the first row are at `x`.
#[inline(always)]
unsafe fn multiply<S: Simd, const M: usize, const NV: usize>(
    sums: &mut [[S::I; NV]; M],
    codes: &[S::I; NV],
    x: *const i8,
) {
    // SAFETY: the caller guarantees the instruction set and valid pointers.
    unsafe {
        for i in 0..M {
            let x = S::splat_i(x.add(STEP * i).cast::<i32>().read_unaligned());
            for v in 0..NV {
                sums[i][v] = S::dot_u8_i8(sums[i][v], codes[v], x);
            }
        }
    }
}

/// Adds the scaled dot products of a group. The weights' scales are at `w`, and the M rows' scales
/// at `scales`.
#[inline(always)]
unsafe fn add_group<S: Simd, L: Loop, const M: usize, const NV: usize>(
    sums: &mut [[S::V; NV]; M],
    dots: &[[S::I; NV]; M],
    w: &[*const u8; NV],
    scales: *const GroupScale,
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
            let GroupScale { scale, correction } = *scales.add(i);
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
