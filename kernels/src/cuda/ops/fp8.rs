//! Rows of activations as FP8, and their product with weights that are FP8 too.

use super::quant::Weight;
use super::{countable, typed};
use crate::cuda::driver::{Gemm, Scales};
use crate::cuda::pack::Format;
use crate::cuda::{Algorithm, Args, Cost, Device, Elem, Grid, View};
use crate::{Error, Result};

/// Threads of a block, in the fast kernels and in the plain ones.
const THREADS: u32 = 256;

/// Rows to quantise.
#[derive(Debug, Clone, Copy)]
pub struct Rows<'a> {
    /// Number of rows; 0 is allowed and does nothing.
    pub rows: usize,
    /// Features of a row.
    pub cols: usize,
    /// Columns of a row of `out`: at least `cols`, and a multiple of 16. Those beyond are zeros.
    pub depth: usize,
    /// `[rows, cols]`: f32, f16 or bf16.
    pub x: View<'a>,
    /// `[rows, depth]`, e4m3.
    pub out: View<'a>,
    /// `[rows]`, f32: `out[t] * scales[t]` is nearly `x[t]`, with `scales[t] = max(|x[t]|) / 448`.
    pub scales: View<'a>,
}

/// Writes rows as e4m3, saturating, with a factor each. A NaN stays one.
///
/// # Errors
/// [`Error::Shape`] for views that are too short or of another type, [`Error::Unsupported`] for a type other than f32, f16 and bf16, or what the
/// launch fails with.
pub fn quantize_rows(device: &Device, rows: &Rows<'_>) -> Result<()> {
    run(device, rows, false)
}

/// The same by the obvious kernel, which takes any number of columns: what the fast one is compared with.
///
/// # Errors
/// As for [`quantize_rows`].
pub fn quantize_rows_plain(device: &Device, rows: &Rows<'_>) -> Result<()> {
    run(device, rows, true)
}

/// What [`quantize_rows`] costs.
pub fn quantize_cost(elem: Elem, rows: usize, cols: usize) -> Cost {
    Cost { flops: (rows * cols * 2) as f64, ..Cost::moving(rows * cols * (elem.size() + 1) + rows * 4) }
}

fn run(device: &Device, rows: &Rows<'_>, plain: bool) -> Result<()> {
    let &Rows { rows: n, cols, depth, x, out, scales } = rows;
    if cols == 0 || depth < cols || !depth.is_multiple_of(Elem::E4M3.per_vector()) {
        return Err(Error::Shape(format!("rows of {cols} columns as rows of {depth}")));
    }
    countable(&[n, depth])?;
    x.expect("x", x.elem(), n * cols)?;
    out.expect("out", Elem::E4M3, n * depth)?;
    scales.expect("scales", Elem::F32, n)?;
    if n == 0 {
        return Ok(());
    }
    let plain = plain || !x.is_vectorisable(cols) || !out.address().is_multiple_of(16);
    let name =
        if plain { typed!(x.elem(), "quantize_rows_plain") } else { typed!(x.elem(), "quantize_rows") }?;
    let args = Args::new().with(out).with(scales).with(x).with(cols).with(depth);
    // SAFETY: the views were checked to hold `n` rows, and the arguments are those of the kernel chosen.
    unsafe { device.launch("fp8", name, Grid::flat(n, THREADS), &args) }
}

/// `out = (x * scales of its rows) · (weight * scales of its rows)ᵀ`, sums in f32, for a weight of [`Format::E4M3`] with a scale per output.
#[derive(Debug, Clone, Copy)]
pub struct Scaled<'a> {
    /// Rows of `x`; 0 is allowed and does nothing.
    pub rows: usize,
    /// Rows of the weight.
    pub outputs: usize,
    /// `[rows, depth of the weight]`, e4m3.
    pub x: View<'a>,
    /// `[rows]`, f32.
    pub scales: View<'a>,
    /// The weight.
    pub weight: Weight<'a>,
    /// `[rows, outputs]`: f16, bf16 or f32.
    pub out: View<'a>,
}

/// Multiplies by an algorithm of the device's library that is one for such products.
///
/// # Errors
/// [`Error::Shape`] for views that are too short or of another type, [`Error::Unsupported`] for another weight, or what the device's library
/// fails with: not all have such products.
pub fn scaled_matmul(device: &Device, m: &Scaled<'_>, algorithm: Option<Algorithm>) -> Result<()> {
    let &Scaled { rows, outputs, x, scales, weight, out } = m;
    let inputs = weight.depth;
    weight.check(1, inputs, outputs)?;
    if weight.format != Format::E4M3 || weight.group < inputs || weight.columns.is_some() {
        return Err(Error::Unsupported(format!("{:?} in groups, with activations as FP8", weight.format)));
    }
    countable(&[rows, inputs, outputs])?;
    x.expect("x", Elem::E4M3, rows * inputs)?;
    scales.expect("scales", Elem::F32, rows)?;
    out.expect("out", out.elem(), rows * outputs)?;
    if rows == 0 {
        return Ok(());
    }
    let product = Gemm {
        x: x.address(),
        w: weight.data.address(),
        out: out.address(),
        scales: Some(Scales { x: scales.address(), w: weight.scales.address() }),
        ..shape(rows, inputs, outputs, out.elem(), algorithm)
    };
    // SAFETY: the views were checked to be as long as the shape says.
    unsafe { device.gemm(&product) }
}

/// A product as the library sees it; the addresses are nobody's.
pub(crate) fn shape(
    rows: usize,
    inputs: usize,
    outputs: usize,
    out_elem: Elem,
    algorithm: Option<Algorithm>,
) -> Gemm {
    let scales = Some(Scales { x: 16, w: 16 });
    Gemm { rows, inputs, outputs, elem: Elem::E4M3, out_elem, x: 0, w: 0, out: 0, scales, algorithm }
}
