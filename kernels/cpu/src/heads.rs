//! Products with a matrix of each head.

use std::ops::Range;

use half::{bf16, f16};
use millrace_backend::{HeadRows, Result};
use millrace_numbers::{DType, Part};

use super::kv::padded;
use super::memory::{Memory, Shared};
use super::simd::{Element, Extension, Kernel, Simd};
use super::tile::{Tiles, with_height};
use super::{Buf, Cpu};

/// Tokens that a task multiplies by a head's matrix, which the cache keeps meanwhile.
const TOKENS: usize = 48;

/// A weight matrix of each head.
#[derive(Debug)]
pub struct HeadMatrices {
    heads: usize,
    inputs: usize,
    outputs: usize,
    data: HeadData,
}

/// The numbers, `[heads, inputs, padded outputs]`.
#[derive(Debug)]
enum HeadData {
    F32(Memory<f32>),
    F16(Memory<f16>),
    BF16(Memory<bf16>),
}

impl HeadMatrices {
    pub(super) fn new(heads: &[Vec<Part>], rows: HeadRows, dtype: DType) -> Result<HeadMatrices> {
        let (values, inputs, outputs) = rows.arrange(heads)?;
        let data = match dtype {
            DType::F32 => HeadData::F32(pad(&values, outputs)?),
            DType::F16 => HeadData::F16(pad(&values, outputs)?),
            DType::BF16 => HeadData::BF16(pad(&values, outputs)?),
        };
        Ok(HeadMatrices { heads: heads.len(), inputs, outputs, data })
    }

    /// Returns the bytes of the matrices with their padding.
    pub(super) fn bytes(heads: usize, inputs: usize, outputs: usize, dtype: DType) -> usize {
        heads.saturating_mul(inputs).saturating_mul(padded(outputs)).saturating_mul(dtype.size())
    }
}

/// Returns rows of `cols` values as numbers of type `T`, each padded with zeros to whole vectors.
fn pad<T: Element>(values: &[f32], cols: usize) -> Result<Memory<T>> {
    let (width, cols) = (padded(cols), cols.max(1));
    let mut memory = Memory::zeroed((values.len() / cols).saturating_mul(width), "weights of heads")?;
    for (to, from) in memory.chunks_exact_mut(width.max(1)).zip(values.chunks_exact(cols)) {
        to.iter_mut().zip(from).for_each(|(to, x)| *to = T::from_f32(*x));
    }
    Ok(memory)
}

impl Cpu {
    /// Multiplies the first features of each head by the head's matrix. The caller has checked the
    /// columns of `x` and `out` with [`HeadMatrices::carried`].
    pub(super) fn multiply_heads(&self, n: usize, x: &Buf, w: &HeadMatrices, out: &mut Buf) {
        let &HeadMatrices { heads, inputs, outputs, ref data } = w;
        assert!(heads > 0 && x.cols.is_multiple_of(heads) && out.cols.is_multiple_of(heads), "{heads} heads");
        let (from, to) = (x.cols / heads, out.cols / heads);
        assert!(inputs <= from && from - inputs + outputs == to, "{from} to {to} features of a head");
        let (x, out) = (x.rows(n), Shared::new(out.rows_mut(n)));
        let groups = n.div_ceil(TOKENS);
        self.parallel(heads * groups, n * heads * (inputs * outputs + to), |task, _| {
            let (head, group) = (task / groups, task % groups);
            let tokens = group * TOKENS..n.min((group + 1) * TOKENS);
            let sizes = Sizes { heads, inputs, outputs, from, to };
            match data {
                HeadData::F32(w) => self.target.dispatch(Head { sizes, head, tokens, x, w, out }),
                HeadData::F16(w) => self.target.dispatch(Head { sizes, head, tokens, x, w, out }),
                HeadData::BF16(w) => self.target.dispatch(Head { sizes, head, tokens, x, w, out }),
            }
        });
    }
}

/// The sizes of a product with a matrix of each head.
#[derive(Clone, Copy)]
struct Sizes {
    heads: usize,
    inputs: usize,
    outputs: usize,
    /// Features of a head before the product.
    from: usize,
    /// Features of a head after the product.
    to: usize,
}

/// The product of some tokens with the matrix of one head.
struct Head<'a, T: Element> {
    sizes: Sizes,
    head: usize,
    tokens: Range<usize>,
    /// `[n, heads * from]`
    x: &'a [f32],
    /// `[heads, inputs, padded outputs]`
    w: &'a [T],
    /// `[n, heads * to]`
    out: Shared<f32>,
}

impl<T: Element> Kernel for Head<'_, T> {
    const USES: Extension = Extension::None;
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Sizes { heads, inputs, from, to, outputs } = self.sizes;
        let carried = from - inputs;
        for t in self.tokens.clone() {
            let x = &self.x[(t * heads + self.head) * from..][..from];
            // SAFETY: this head of the token belongs to this task alone.
            let out = unsafe { self.out.slice((t * heads + self.head) * to, to - outputs) };
            out[..carried].copy_from_slice(&x[inputs..]);
        }
        let tiles = Tiles::new(self.tokens.len(), S::ROWS);
        for rows in (0..tiles.count()).map(|tile| tiles.rows(tile)) {
            let first = self.tokens.start + rows.start;
            // SAFETY: the caller guarantees the instruction set.
            unsafe { with_height!(1..=S::ROWS, rows.len(), tile::<S, T>(&self, first)) }
        }
    }
}

/// Computes the outputs of M tokens from `first`.
#[inline(always)]
unsafe fn tile<S: Simd, T: Element, const M: usize>(head: &Head<'_, T>, first: usize) {
    // SAFETY: the caller guarantees the instruction set.
    unsafe { S::call(HeadTile::<T, M> { head, first }) }
}

struct HeadTile<'a, T: Element, const M: usize> {
    head: &'a Head<'a, T>,
    first: usize,
}

impl<T: Element, const M: usize> Kernel for HeadTile<'_, T, M> {
    const USES: Extension = Extension::None;
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let width = padded(self.head.sizes.outputs);
        let mut o = 0;
        while o < width {
            // SAFETY: the creator guarantees the instruction set, and all columns are in a row.
            unsafe {
                if o + 2 * S::LANES <= width {
                    self.columns::<S, 2>(o);
                    o += 2 * S::LANES;
                } else {
                    self.columns::<S, 1>(o);
                    o += S::LANES;
                }
            }
        }
    }
}

impl<T: Element, const M: usize> HeadTile<'_, T, M> {
    /// Computes NV vectors of outputs from `o`. Each sum runs in the order of the inputs.
    #[inline(always)]
    unsafe fn columns<S: Simd, const NV: usize>(&self, o: usize) {
        let &HeadTile { head, first } = self;
        let Sizes { heads, inputs, outputs, from, to } = head.sizes;
        let width = padded(outputs);
        let w = &head.w[head.head * inputs * width..][..inputs * width];
        let x: [&[f32]; M] =
            std::array::from_fn(|i| &head.x[((first + i) * heads + head.head) * from..][..inputs]);
        // SAFETY: the vectors of the matrix are inside its padded rows, and the outputs of these
        // tokens' heads belong to this task alone.
        unsafe {
            let mut sums = [[S::splat(0.0); NV]; M];
            for k in 0..inputs {
                let row = w.as_ptr().add(k * width + o);
                let weights: [S::V; NV] = std::array::from_fn(|v| T::load::<S>(row.add(v * S::LANES)));
                for i in 0..M {
                    let input = S::splat(*x[i].get_unchecked(k));
                    for v in 0..NV {
                        sums[i][v] = S::fma(input, weights[v], sums[i][v]);
                    }
                }
            }
            for i in 0..M {
                let start = ((first + i) * heads + head.head) * to + to - outputs;
                for v in 0..NV {
                    let at = o + v * S::LANES;
                    let place = head.out.as_ptr().add(start + at);
                    if at + S::LANES <= outputs {
                        S::store(place, sums[i][v]);
                    } else if at < outputs {
                        S::store_first(place, sums[i][v], outputs - at);
                    }
                }
            }
        }
    }
}
