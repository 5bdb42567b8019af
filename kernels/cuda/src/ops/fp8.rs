//! Quantization of activation rows to FP8, and their product with weights that are FP8 too.

use millrace_backend::{Error, Result};

use super::select::typed;
use super::shared::fp8::{QUANTIZE_THREADS, QuantizeRowsParams};
use super::sizes::{countable, int};
use crate::weights::{PackedFormat, QuantizedWeight};
use crate::{Algorithm, Device, Elem, Gemm, Grid, RowScales, View};

/// The operands of [`quantize_rows`].
#[derive(Debug, Clone, Copy)]
pub struct QuantizeRows<'a> {
    /// Number of rows; 0 is allowed and does nothing.
    pub rows: usize,
    /// Features of a row.
    pub cols: usize,
    /// Columns of a row of `out`: at least `cols`, and a multiple of 16. Columns beyond `cols`
    /// become zeros.
    pub depth: usize,
    /// `[rows, cols]`: f32, f16 or bf16.
    pub x: View<'a>,
    /// `[rows, depth]`, e4m3.
    pub out: View<'a>,
    /// `[rows]`, f32: `out[t] * scales[t]` approximates `x[t]`, with `scales[t] = max(|x[t]|) /
    /// 448`.
    pub scales: View<'a>,
}

/// Quantizes rows to e4m3, saturating, with a scale each. A NaN stays a NaN.
///
/// # Errors
/// [`Error::Shape`] for views that are too short or of another type,
/// [`Error::Unsupported`] for a type other than f32, f16 and bf16, or an error of the launch.
pub fn quantize_rows(device: &Device, rows: &QuantizeRows<'_>) -> Result<()> {
    run(device, rows, false)
}

/// Does the same by the plain kernel, which takes any number of columns and is the reference of the
/// fast one.
///
/// # Errors
/// As for [`quantize_rows`].
pub fn quantize_rows_plain(device: &Device, rows: &QuantizeRows<'_>) -> Result<()> {
    run(device, rows, true)
}

fn run(device: &Device, rows: &QuantizeRows<'_>, plain: bool) -> Result<()> {
    let &QuantizeRows { rows: n, cols, depth, x, out, scales } = rows;
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
    let plain = plain || !x.is_vectorizable(cols) || !out.address().is_multiple_of(16);
    let kernel = if plain {
        typed!(QuantizeRowsParams, "fp8", "quantize_rows_plain", x.elem())
    } else {
        typed!(QuantizeRowsParams, "fp8", "quantize_rows", x.elem())
    }?;
    let params = QuantizeRowsParams {
        out: out.into(),
        scales: scales.into(),
        x: x.into(),
        cols: int(cols),
        depth: int(depth),
    };
    // SAFETY: the views were checked to hold `n` rows.
    unsafe { device.launch(kernel, Grid::flat(n, QUANTIZE_THREADS as u32), &params) }
}

/// The operands of [`scaled_matmul`], for a weight of [`PackedFormat::Fp8`] with a scale per
/// output.
#[derive(Debug, Clone, Copy)]
pub struct ScaledMatmul<'a> {
    /// Rows of `x`; 0 is allowed and does nothing.
    pub rows: usize,
    /// Rows of the weight.
    pub outputs: usize,
    /// `[rows, depth of the weight]`, e4m3.
    pub x: View<'a>,
    /// `[rows]`, f32.
    pub scales: View<'a>,
    /// The weight.
    pub weight: QuantizedWeight<'a>,
    /// `[rows, outputs]`: f16, bf16 or f32.
    pub out: View<'a>,
}

/// Computes `out = (x * scales of its rows) · (weight * scales of its rows)ᵀ` by the device's
/// library, with sums in f32. The algorithm must be one for such products.
///
/// # Errors
/// [`Error::Shape`] for views that are too short or of another type,
/// [`Error::Unsupported`] for another weight, or an error of the device's library: not every
/// library has such products.
pub fn scaled_matmul(device: &Device, m: &ScaledMatmul<'_>, algorithm: Option<Algorithm>) -> Result<()> {
    let &ScaledMatmul { rows, outputs, x, scales, weight, out } = m;
    let inputs = weight.depth;
    weight.check(1, inputs, outputs)?;
    if weight.format != PackedFormat::Fp8 || weight.group < inputs || weight.columns.is_some() {
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
        scales: Some(RowScales { x: scales.address(), w: weight.scales.address() }),
        algorithm,
        ..Gemm::scaled_fp8(rows, inputs, outputs, out.elem())
    };
    // SAFETY: the views were checked to be as long as the shape says.
    unsafe { device.gemm(&product) }
}
