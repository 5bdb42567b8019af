//! Non-linearities, gated and not, and what else is done to single elements: bias, scaled sums, the soft cap of logits.

use super::rowwise::{grid, vectorisable};
use super::{countable, typed};
use crate::cuda::{Args, Cost, Device, Elem, View};
use crate::{Error, Result};

/// Elementwise non-linearities.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x³)))` (Hendrycks and Gimpel's approximation).
    GeluTanh,
    /// `x / 2 * (1 + erf(x / sqrt(2)))`.
    Gelu,
    /// `max(x, 0)`.
    Relu,
}

/// Which kernel: the fast one where it can be used, or the obvious one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// Vectors of 16 bytes, if widths and addresses allow it.
    Fast,
    /// One element at a time.
    Plain,
}

/// `out[t, c] = act(x[t, c]) * x[t, cols + c]` for `x` of `[rows, 2 * cols]`: gate features first, then up. `out` must not be `x`.
///
/// # Errors
/// [`Error::Shape`] for views that are too short or of another type, [`Error::Unsupported`] for a type other than f32, f16 and bf16, or
/// what the launch fails with.
pub fn gate(
    device: &Device,
    version: Version,
    act: Activation,
    rows: usize,
    cols: usize,
    x: View<'_>,
    out: View<'_>,
) -> Result<()> {
    let name = [typed!(x.elem(), "gate")?, typed!(x.elem(), "gate_plain")?];
    if x.address() == out.address() {
        return Err(Error::Shape("the result of a gate cannot replace its input".to_owned()));
    }
    let args = Args::new().with(out).with(x).with(cols).with(act as usize);
    run(device, version, name, rows, cols, &[("x", x, 2 * cols), ("out", out, cols)], &args)
}

/// `out = act(x)` over `[rows, cols]`; `out` may be `x`.
///
/// # Errors
/// As for [`gate`].
pub fn activate(
    device: &Device,
    version: Version,
    act: Activation,
    rows: usize,
    cols: usize,
    x: View<'_>,
    out: View<'_>,
) -> Result<()> {
    let name = [typed!(x.elem(), "activate")?, typed!(x.elem(), "activate_plain")?];
    let args = Args::new().with(out).with(x).with(cols).with(act as usize);
    run(device, version, name, rows, cols, &[("x", x, cols), ("out", out, cols)], &args)
}

/// `x[t] += bias` over `[rows, cols]`, with `bias` f32 `[cols]`.
///
/// # Errors
/// As for [`gate`].
pub fn add_bias(
    device: &Device,
    version: Version,
    rows: usize,
    cols: usize,
    x: View<'_>,
    bias: View<'_>,
) -> Result<()> {
    bias.expect("bias", Elem::F32, cols)?;
    let version = if bias.address().is_multiple_of(16) { version } else { Version::Plain };
    let name = [typed!(x.elem(), "add_bias")?, typed!(x.elem(), "add_bias_plain")?];
    run(device, version, name, rows, cols, &[("x", x, cols)], &Args::new().with(x).with(bias).with(cols))
}

/// `x = cap * tanh(x / cap)` over `[rows, cols]`.
///
/// # Errors
/// As for [`gate`]; [`Error::Shape`] for a cap that is not positive.
pub fn soft_cap(
    device: &Device,
    version: Version,
    rows: usize,
    cols: usize,
    x: View<'_>,
    cap: f32,
) -> Result<()> {
    if cap.is_nan() || cap <= 0.0 {
        return Err(Error::Shape(format!("a soft cap of {cap} is not positive")));
    }
    let name = [typed!(x.elem(), "soft_cap")?, typed!(x.elem(), "soft_cap_plain")?];
    run(device, version, name, rows, cols, &[("x", x, cols)], &Args::new().with(x).with(cols).with(cap))
}

/// A sum of rows, or rows times a number.
#[derive(Debug, Clone, Copy)]
pub struct ScaledSum<'a> {
    /// Number of rows; 0 is allowed and does nothing.
    pub rows: usize,
    /// Features of a row.
    pub cols: usize,
    /// `[rows, cols]` and its factor.
    pub x: (f32, View<'a>),
    /// Likewise, of the type of `x`.
    pub y: Option<(f32, View<'a>)>,
    /// `[rows, cols]`; may be `x` or `y`.
    pub out: View<'a>,
}

/// `out = a * x + b * y`: a residual addition, scaled or not, or a scaling. Rounded once.
///
/// # Errors
/// As for [`gate`].
pub fn scaled_sum(device: &Device, version: Version, sum: &ScaledSum<'_>) -> Result<()> {
    let &ScaledSum { rows, cols, x: (a, x), y, out } = sum;
    let name = [typed!(x.elem(), "scaled_sum")?, typed!(x.elem(), "scaled_sum_plain")?];
    let (b, y) = y.map_or((0.0, None), |(b, y)| (b, Some(y)));
    let args = Args::new().with(out).with(x).with(y).with(cols).with(a).with(b);
    let views = [("x", x, cols), ("out", out, cols), ("y", y.unwrap_or(x), cols)];
    run(device, version, name, rows, cols, &views, &args)
}

/// What `gate` costs, and `activate` with `gated` false.
pub fn activation_cost(elem: Elem, rows: usize, cols: usize, gated: bool) -> Cost {
    Cost::moving(rows * cols * elem.size() * if gated { 3 } else { 2 })
}

/// What an operation costs that reads `inputs` arrays of `[rows, cols]` and writes one.
pub fn elementwise_cost(elem: Elem, rows: usize, cols: usize, inputs: usize) -> Cost {
    Cost::moving(rows * cols * elem.size() * (inputs + 1))
}

/// Checks the views (name, view, columns of a row), and launches the first or the second of `names`.
fn run(
    device: &Device,
    version: Version,
    names: [&'static str; 2],
    rows: usize,
    cols: usize,
    views: &[(&str, View<'_>, usize)],
    args: &Args,
) -> Result<()> {
    countable(&[rows, 2 * cols])?;
    let elem = views[0].1.elem();
    for (what, view, width) in views {
        view.expect(what, elem, rows * width)?;
    }
    if rows == 0 || cols == 0 {
        return Ok(());
    }
    let fast =
        version == Version::Fast && views.iter().all(|(_, view, _)| vectorisable(&[Some(*view)], cols));
    let (name, units) = if fast { (names[0], cols / elem.per_vector()) } else { (names[1], cols) };
    // SAFETY: the views were checked to hold `rows` rows, and the arguments are those of the kernel chosen.
    unsafe { device.launch("activation", name, grid(rows, units), args) }
}
