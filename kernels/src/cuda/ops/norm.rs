//! RMSNorm (Zhang and Sennrich) and LayerNorm (Ba et al.), alone or after a residual addition.

use super::{countable, typed};
use crate::cuda::{Args, Cost, Device, Elem, Grid, View};
use crate::{Error, Result};

/// Threads of a block, in the fast kernels and in the plain ones.
const THREADS: u32 = 256;

/// How rows are normalised.
#[derive(Debug, Clone, Copy)]
pub enum Norm<'a> {
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

/// Rows to normalise.
#[derive(Debug, Clone, Copy)]
pub struct Rows<'a> {
    /// Number of rows; 0 is allowed and does nothing.
    pub rows: usize,
    /// Features of a row.
    pub cols: usize,
    /// Added to the variance.
    pub eps: f32,
    /// `[rows, cols]`.
    pub x: View<'a>,
    /// `[rows, cols]`; if it is given, `x` is added to it first, and the sum is normalised.
    pub residual: Option<View<'a>>,
    /// `[rows, cols]`, of the type of `x`. May be `x`.
    pub out: View<'a>,
}

/// `out = norm(x)`, or `residual += x; out = norm(residual)`.
///
/// # Errors
/// [`Error::Shape`] for views that are too short or of another type, [`Error::Unsupported`] for a type other than f32, f16 and
/// bf16, or what the launch fails with.
pub fn norm(device: &Device, norm: Norm<'_>, rows: &Rows<'_>) -> Result<()> {
    run(device, norm, rows, false)
}

/// The same by the obvious kernel, which takes any number of columns: what the fast one is compared with.
///
/// # Errors
/// As for [`norm`].
pub fn norm_plain(device: &Device, norm: Norm<'_>, rows: &Rows<'_>) -> Result<()> {
    run(device, norm, rows, true)
}

/// What the rows cost.
pub fn cost(elem: Elem, rows: usize, cols: usize, with_residual: bool) -> Cost {
    let per_element = elem.size() * if with_residual { 4 } else { 2 };
    Cost { flops: (rows * cols * 4) as f64, ..Cost::moving(rows * cols * per_element + cols * 4) }
}

fn run(device: &Device, norm: Norm<'_>, rows: &Rows<'_>, plain: bool) -> Result<()> {
    let &Rows { rows: n, cols, eps, x, residual, out } = rows;
    let elem = x.elem();
    if cols == 0 {
        return Err(Error::Shape("rows of no columns cannot be normalised".to_owned()));
    }
    countable(&[n, cols])?;
    x.expect("x", elem, n * cols)?;
    out.expect("out", elem, n * cols)?;
    if let Some(residual) = residual {
        residual.expect("residual", elem, n * cols)?;
    }
    let (weight, bias) = match norm {
        Norm::Rms { weight } => (weight, None),
        Norm::Layer { weight, bias } => (weight, Some(bias)),
    };
    weight.expect("weight", Elem::F32, cols)?;
    if let Some(Some(bias)) = bias {
        bias.expect("bias", Elem::F32, cols)?;
    }
    if n == 0 {
        return Ok(());
    }
    let views = [Some(x), Some(out), residual];
    let plain = plain || !views.iter().flatten().all(|v| v.is_vectorisable(cols));
    let name = match (bias.is_some(), residual.is_some(), plain) {
        (false, false, false) => typed!(elem, "rms_norm"),
        (false, true, false) => typed!(elem, "add_rms_norm"),
        (false, false, true) => typed!(elem, "rms_norm_plain"),
        (false, true, true) => typed!(elem, "add_rms_norm_plain"),
        (true, false, false) => typed!(elem, "layer_norm"),
        (true, true, false) => typed!(elem, "add_layer_norm"),
        (true, false, true) => typed!(elem, "layer_norm_plain"),
        (true, true, true) => typed!(elem, "add_layer_norm_plain"),
    }?;
    let args = Args::new().with(out).with_some(residual).with(x).with(weight).with_some(bias);
    let args = args.with(cols).with(eps);
    // SAFETY: the views were checked to hold `n` rows of `cols` elements, and the arguments are those of the kernel chosen.
    unsafe { device.launch("norm", name, Grid::flat(n, THREADS), &args) }
}
