//! RMSNorm (Zhang and Sennrich) and LayerNorm (Ba et al.), alone or after a residual addition.

use millrace_backend::{Error, Result, RowParts};

use super::select::typed;
use super::shared::norm::{NORM_THREADS, NormParams, NormPartsParams};
use super::sizes::{MAX_BLOCKS, countable, int};
use crate::{Device, Elem, Grid, View};

/// A norm with its weights.
#[derive(Debug, Clone, Copy)]
pub enum NormKind<'a> {
    /// `x / sqrt(mean(x²) + eps) * weight`.
    Rms {
        /// `[cols]`, f32.
        weight: View<'a>,
    },
    /// `(x - mean(x)) / sqrt(var(x) + eps) * weight + bias`.
    Layer {
        /// `[cols]`, f32.
        weight: View<'a>,
        /// `[cols]`, f32.
        bias: Option<View<'a>>,
    },
}

/// The operands of [`norm`] besides the weights.
#[derive(Debug, Clone, Copy)]
pub struct NormRows<'a> {
    /// Number of rows; 0 is allowed and does nothing.
    pub rows: usize,
    /// Features of a row.
    pub cols: usize,
    /// Added to the variance.
    pub eps: f32,
    /// `[rows, cols]`.
    pub x: View<'a>,
    /// `[rows, cols]`. If it is given, `x` is added to it first, and the sum is normalized.
    pub residual: Option<View<'a>>,
    /// `[rows, cols]`, of the type of `x`. May be `x`.
    pub out: View<'a>,
}

/// Computes `out = norm(x)`, or `residual += x; out = norm(residual)`.
///
/// # Errors
/// [`Error::Shape`] for views that are too short or of another type,
/// [`Error::Unsupported`] for a type other than f32, f16 and bf16, or an error of the launch.
pub fn norm(device: &Device, norm: NormKind<'_>, rows: &NormRows<'_>) -> Result<()> {
    run(device, norm, rows, false)
}

/// Does the same by the plain kernel, which takes any number of columns and is the reference of the
/// fast one.
///
/// # Errors
/// As for [`norm`].
pub fn norm_plain(device: &Device, norm: NormKind<'_>, rows: &NormRows<'_>) -> Result<()> {
    run(device, norm, rows, true)
}

/// The operands of [`norm_parts`] besides the weights.
#[derive(Debug, Clone, Copy)]
pub struct PartRows<'a> {
    /// Number of rows; 0 is allowed and does nothing.
    pub rows: usize,
    /// Features of a row.
    pub row_cols: usize,
    /// The parts of each row. The weights are `[cols]`, or `[count * cols]` if each part has its
    /// own.
    pub parts: RowParts,
    /// Added to the variance.
    pub eps: f32,
    /// `[rows, row_cols]`, updated in place.
    pub x: View<'a>,
}

/// Normalizes parts of rows, each by itself.
///
/// # Errors
/// As for [`norm`].
pub fn norm_parts(device: &Device, norm: NormKind<'_>, of: &PartRows<'_>) -> Result<()> {
    let &PartRows { rows, row_cols, parts: RowParts { first, count, cols }, eps, x } = of;
    countable(&[rows, row_cols, count])?;
    if cols == 0 || count > MAX_BLOCKS || first + count * cols > row_cols {
        return Err(Error::Shape(format!("{count} parts of {cols} columns in rows of {row_cols}")));
    }
    x.expect("x", x.elem(), rows * row_cols)?;
    let (weight, bias, layer) = match norm {
        NormKind::Rms { weight } => (weight, None, false),
        NormKind::Layer { weight, bias } => (weight, bias, true),
    };
    let own = weight.len() > cols;
    let scales = if own { count * cols } else { cols };
    weight.expect("weight", Elem::F32, scales)?;
    if let Some(bias) = bias {
        bias.expect("bias", Elem::F32, scales)?;
    }
    if rows == 0 || count == 0 {
        return Ok(());
    }
    let params = NormPartsParams {
        x: x.into(),
        weight: weight.into(),
        bias: bias.into(),
        row_cols: int(row_cols),
        first: int(first),
        parts: int(count),
        cols: int(cols),
        own: own.into(),
        layer: layer.into(),
        eps,
    };
    let kernel = typed!(NormPartsParams, "norm", "norm_parts", x.elem())?;
    let blocks = [int(rows) as u32, int(count) as u32, 1];
    let grid = Grid { blocks, threads: [NORM_THREADS as u32, 1, 1], shared: 0 };
    // SAFETY: the views were checked to hold all parts of `rows` rows.
    unsafe { device.launch(kernel, grid, &params) }
}

fn run(device: &Device, norm: NormKind<'_>, rows: &NormRows<'_>, plain: bool) -> Result<()> {
    let &NormRows { rows: n, cols, eps, x, residual, out } = rows;
    let elem = x.elem();
    if cols == 0 {
        return Err(Error::Shape("rows of no columns cannot be normalized".to_owned()));
    }
    countable(&[n, cols])?;
    x.expect("x", elem, n * cols)?;
    out.expect("out", elem, n * cols)?;
    if let Some(residual) = residual {
        residual.expect("residual", elem, n * cols)?;
    }
    let (weight, bias) = match norm {
        NormKind::Rms { weight } => (weight, None),
        NormKind::Layer { weight, bias } => (weight, Some(bias)),
    };
    weight.expect("weight", Elem::F32, cols)?;
    if let Some(Some(bias)) = bias {
        bias.expect("bias", Elem::F32, cols)?;
    }
    if n == 0 {
        return Ok(());
    }
    let views = [Some(x), Some(out), residual, Some(weight), bias.flatten()];
    let plain = plain || !views.iter().flatten().all(|v| v.is_vectorizable(cols));
    let kernel = match (bias.is_some(), residual.is_some(), plain) {
        (false, false, false) => typed!(NormParams, "norm", "rms_norm", elem),
        (false, true, false) => typed!(NormParams, "norm", "add_rms_norm", elem),
        (false, false, true) => typed!(NormParams, "norm", "rms_norm_plain", elem),
        (false, true, true) => typed!(NormParams, "norm", "add_rms_norm_plain", elem),
        (true, false, false) => typed!(NormParams, "norm", "layer_norm", elem),
        (true, true, false) => typed!(NormParams, "norm", "add_layer_norm", elem),
        (true, false, true) => typed!(NormParams, "norm", "layer_norm_plain", elem),
        (true, true, true) => typed!(NormParams, "norm", "add_layer_norm_plain", elem),
    }?;
    let params = NormParams {
        out: out.into(),
        residual: residual.into(),
        x: x.into(),
        weight: weight.into(),
        bias: bias.flatten().into(),
        cols: int(cols),
        eps,
    };
    // SAFETY: the views were checked to hold `n` rows of `cols` elements.
    unsafe { device.launch(kernel, Grid::flat(n, NORM_THREADS as u32), &params) }
}
