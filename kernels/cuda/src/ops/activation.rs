//! Activation functions, gated and plain, and other elementwise operations: bias, scaled sum, and
//! the soft cap of logits.

use millrace_backend::{Error, Result};

pub use super::shared::activation_h::ActivationKind;

use super::select::typed;
use super::shared::activation::{
    ActivationParams, AddBiasParams, ClampedGateParams, ScaledSumParams, SoftCapParams,
};
use super::sizes::{countable, int, rowwise_grid, vectorizable};
use crate::params::{Kernel, KernelParams};
use crate::{Device, Elem, View};

/// The version of a kernel that an operation launches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KernelVersion {
    /// Vectors of 16 bytes, if widths and addresses allow it.
    Fast,
    /// One element at a time.
    Plain,
}

/// The operands of [`gate`] and [`activate`].
#[derive(Debug, Clone, Copy)]
pub struct ActivationRows<'a> {
    /// Number of rows; 0 is allowed and does nothing.
    pub rows: usize,
    /// Features of a row of `out`.
    pub cols: usize,
    /// `[rows, cols]`, or for [`gate`] `[rows, 2 * cols]` with the gate's features first.
    pub x: View<'a>,
    /// `[rows, cols]`, of the type of `x`.
    pub out: View<'a>,
}

/// Computes `out[t, c] = act(x[t, c]) * x[t, cols + c]`. `out` must not be `x`.
///
/// # Errors
/// [`Error::Shape`] for views that are too short or of another type,
/// [`Error::Unsupported`] for a type other than f32, f16 and bf16, or an error of the launch.
pub fn gate(
    device: &Device,
    version: KernelVersion,
    kind: ActivationKind,
    a: &ActivationRows<'_>,
) -> Result<()> {
    let &ActivationRows { rows, cols, x, out } = a;
    let kernels = [
        typed!(ActivationParams, "activation", "gate", x.elem())?,
        typed!(ActivationParams, "activation", "gate_plain", x.elem())?,
    ];
    if x.address() == out.address() {
        return Err(Error::Shape("the result of a gate cannot replace its input".to_owned()));
    }
    let operands = [("x", x, 2 * cols), ("out", out, cols)];
    let Some(launch) = check(version, rows, cols, &operands)? else { return Ok(()) };
    let params = ActivationParams { out: out.into(), x: x.into(), cols: int(cols), kind };
    launch.run(device, kernels, &params)
}

/// The parameters of [`gate_clamped`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GateClamp {
    /// Factor on the gate inside the sigmoid.
    pub alpha: f32,
    /// Bound on gate and up, above 0.
    pub limit: f32,
}

/// Computes `out[t, c] = g * sigmoid(alpha * g) * (u + 1)`, where g is `x[t, c]`, at most the
/// limit, and u is `x[t, cols + c]` between the limit and its negative. `out` must not be `x`.
///
/// # Errors
/// As for [`gate`]; [`Error::Shape`] for a limit that is not positive.
pub fn gate_clamped(
    device: &Device,
    version: KernelVersion,
    GateClamp { alpha, limit }: GateClamp,
    a: &ActivationRows<'_>,
) -> Result<()> {
    let &ActivationRows { rows, cols, x, out } = a;
    let kernels = [
        typed!(ClampedGateParams, "activation", "gate_clamped", x.elem())?,
        typed!(ClampedGateParams, "activation", "gate_clamped_plain", x.elem())?,
    ];
    if x.address() == out.address() {
        return Err(Error::Shape("the result of a gate cannot replace its input".to_owned()));
    }
    if limit.is_nan() || limit <= 0.0 {
        return Err(Error::Shape(format!("the limit {limit} of a gate is not positive")));
    }
    let operands = [("x", x, 2 * cols), ("out", out, cols)];
    let Some(launch) = check(version, rows, cols, &operands)? else { return Ok(()) };
    launch.run(
        device,
        kernels,
        &ClampedGateParams { out: out.into(), x: x.into(), cols: int(cols), alpha, limit },
    )
}

/// Computes `out = act(x)`; `out` may be `x`.
///
/// # Errors
/// As for [`gate`].
pub fn activate(
    device: &Device,
    version: KernelVersion,
    kind: ActivationKind,
    a: &ActivationRows<'_>,
) -> Result<()> {
    let &ActivationRows { rows, cols, x, out } = a;
    let kernels = [
        typed!(ActivationParams, "activation", "activate", x.elem())?,
        typed!(ActivationParams, "activation", "activate_plain", x.elem())?,
    ];
    let Some(launch) = check(version, rows, cols, &[("x", x, cols), ("out", out, cols)])? else {
        return Ok(());
    };
    let params = ActivationParams { out: out.into(), x: x.into(), cols: int(cols), kind };
    launch.run(device, kernels, &params)
}

/// The operands of [`add_bias`].
#[derive(Debug, Clone, Copy)]
pub struct BiasRows<'a> {
    /// Number of rows; 0 is allowed and does nothing.
    pub rows: usize,
    /// Features of a row.
    pub cols: usize,
    /// `[rows, cols]`.
    pub x: View<'a>,
    /// f32 `[cols]`.
    pub bias: View<'a>,
}

/// Adds the bias to each row of `x`.
///
/// # Errors
/// As for [`gate`].
pub fn add_bias(device: &Device, version: KernelVersion, b: &BiasRows<'_>) -> Result<()> {
    let &BiasRows { rows, cols, x, bias } = b;
    bias.expect("bias", Elem::F32, cols)?;
    let version = if bias.address().is_multiple_of(16) { version } else { KernelVersion::Plain };
    let kernels = [
        typed!(AddBiasParams, "activation", "add_bias", x.elem())?,
        typed!(AddBiasParams, "activation", "add_bias_plain", x.elem())?,
    ];
    let Some(launch) = check(version, rows, cols, &[("x", x, cols)])? else { return Ok(()) };
    launch.run(device, kernels, &AddBiasParams { x: x.into(), bias: bias.into(), cols: int(cols) })
}

/// The operands of [`soft_cap`].
#[derive(Debug, Clone, Copy)]
pub struct SoftCapRows<'a> {
    /// Number of rows; 0 is allowed and does nothing.
    pub rows: usize,
    /// Features of a row.
    pub cols: usize,
    /// `[rows, cols]`.
    pub x: View<'a>,
    /// The bound on absolute values, above 0.
    pub cap: f32,
}

/// Computes `x = cap * tanh(x / cap)`.
///
/// # Errors
/// As for [`gate`]; [`Error::Shape`] for a cap that is not positive.
pub fn soft_cap(device: &Device, version: KernelVersion, s: &SoftCapRows<'_>) -> Result<()> {
    let &SoftCapRows { rows, cols, x, cap } = s;
    if cap.is_nan() || cap <= 0.0 {
        return Err(Error::Shape(format!("a soft cap of {cap} is not positive")));
    }
    let kernels = [
        typed!(SoftCapParams, "activation", "soft_cap", x.elem())?,
        typed!(SoftCapParams, "activation", "soft_cap_plain", x.elem())?,
    ];
    let Some(launch) = check(version, rows, cols, &[("x", x, cols)])? else { return Ok(()) };
    launch.run(device, kernels, &SoftCapParams { x: x.into(), cols: int(cols), cap })
}

/// The operands of [`scaled_sum`].
#[derive(Debug, Clone, Copy)]
pub struct ScaledSum<'a> {
    /// Number of rows; 0 is allowed and does nothing.
    pub rows: usize,
    /// Features of a row.
    pub cols: usize,
    /// `[rows, cols]` and its factor.
    pub x: (f32, View<'a>),
    /// `[rows, cols]` and its factor, of the type of `x`.
    pub y: Option<(f32, View<'a>)>,
    /// `[rows, cols]`; may be `x` or `y`.
    pub out: View<'a>,
}

/// Computes `out = a * x + b * y`, or `out = a * x` without a `y`: a residual addition or a
/// scaling. The result is rounded once.
///
/// # Errors
/// As for [`gate`].
pub fn scaled_sum(device: &Device, version: KernelVersion, sum: &ScaledSum<'_>) -> Result<()> {
    let &ScaledSum { rows, cols, x: (x_factor, x), y, out } = sum;
    let kernels = [
        typed!(ScaledSumParams, "activation", "scaled_sum", x.elem())?,
        typed!(ScaledSumParams, "activation", "scaled_sum_plain", x.elem())?,
    ];
    let (y_factor, y) = y.map_or((0.0, None), |(factor, y)| (factor, Some(y)));
    let operands = [("x", x, cols), ("out", out, cols), ("y", y.unwrap_or(x), cols)];
    let Some(launch) = check(version, rows, cols, &operands)? else { return Ok(()) };
    let params =
        ScaledSumParams { out: out.into(), x: x.into(), y: y.into(), cols: int(cols), x_factor, y_factor };
    launch.run(device, kernels, &params)
}

/// A launch over `rows` rows of `cols` columns whose views were checked.
struct ElementwiseLaunch {
    rows: usize,
    cols: usize,
    /// Elements that a thread moves at once; 1 for the plain kernel.
    per_unit: usize,
}

/// Checks the operands (name, view, columns of a row). Returns nothing if there is nothing to do.
fn check(
    version: KernelVersion,
    rows: usize,
    cols: usize,
    operands: &[(&str, View<'_>, usize)],
) -> Result<Option<ElementwiseLaunch>> {
    countable(&[rows, 2 * cols])?;
    let elem = operands[0].1.elem();
    for (name, view, width) in operands {
        view.expect(name, elem, rows * width)?;
    }
    if rows == 0 || cols == 0 {
        return Ok(None);
    }
    let fast =
        version == KernelVersion::Fast && operands.iter().all(|(_, view, _)| vectorizable(&[*view], cols));
    Ok(Some(ElementwiseLaunch { rows, cols, per_unit: if fast { elem.per_vector() } else { 1 } }))
}

impl ElementwiseLaunch {
    /// Launches the first of the kernels, which is the fast one, or the second.
    fn run<P: KernelParams>(&self, device: &Device, [fast, plain]: [Kernel<P>; 2], params: &P) -> Result<()> {
        let kernel = if self.per_unit > 1 { fast } else { plain };
        // SAFETY: `check` has compared all views with the rows and columns that the kernel touches.
        unsafe { device.launch(kernel, rowwise_grid(self.rows, self.cols / self.per_unit), params) }
    }
}
