//! Products with weights as they are stored, for few rows.

use millrace_backend::Result;

use super::product::{DEPTH, DepthSlices, ProductOperands, ProductWorkspace, plain_grid, rows_of_block};
use super::select::{halved, typed};
use super::shared::gemv::{GemvParams, GemvPlainParams};
use super::shared::skinny_h::SKINNY_THREADS;
use crate::{Device, Grid, View};

/// Computes `p.out = p.x · weightᵀ + p.bias` at the speed of memory for 1 to 16 rows;
/// more rows take as long as that many groups of 16.
///
/// `weight` is `[outputs, inputs]`, of the type of `x`. Rows whose length is no multiple of 16
/// bytes, and f32, take the plain kernel. A row's result does not depend on the number of rows.
///
/// # Errors
/// [`millrace_backend::Error::Shape`] for views that are too short or of another type,
/// [`millrace_backend::Error::Unsupported`] for a type other than f32, f16 and bf16, or an error of
/// the launch.
pub fn gemv(
    device: &Device,
    weight: View<'_>,
    p: &ProductOperands<'_>,
    workspace: &ProductWorkspace<'_>,
) -> Result<()> {
    if !(p.is_half() && p.x.is_vectorizable(p.inputs) && weight.is_vectorizable(p.inputs)) {
        return gemv_plain(device, weight, p);
    }
    check(weight, p)?;
    workspace.check(p.rows, p.inputs, p.outputs)?;
    if p.rows == 0 {
        return Ok(());
    }
    let slices = DepthSlices::of(p.inputs, p.outputs);
    let kernel = match rows_of_block(p.rows) {
        8 => halved!(GemvParams, "gemv", "gemv8", p.x.elem()),
        _ => halved!(GemvParams, "gemv", "gemv16", p.x.elem()),
    }?;
    let params = GemvParams {
        product: p.params(),
        weights: weight.into(),
        slices: slices.params(workspace, p.inputs.next_multiple_of(DEPTH)),
    };
    let grid = Grid {
        blocks: slices.blocks(p.rows, p.outputs)?,
        threads: [SKINNY_THREADS as u32, 1, 1],
        shared: slices.shared_bytes(p.rows, None),
    };
    // SAFETY: the views were checked against the shapes.
    unsafe { device.launch(kernel, grid, &params) }
}

/// Does the same by the plain kernel, for any type and shape and without a workspace. It is the
/// reference of the fast kernel.
///
/// # Errors
/// As for [`gemv`].
pub fn gemv_plain(device: &Device, weight: View<'_>, p: &ProductOperands<'_>) -> Result<()> {
    check(weight, p)?;
    if p.rows == 0 {
        return Ok(());
    }
    let kernel = typed!(GemvPlainParams, "gemv", "gemv_plain", p.x.elem())?;
    let params = GemvPlainParams { product: p.params(), weights: weight.into() };
    // SAFETY: the views were checked against the shapes.
    unsafe { device.launch(kernel, plain_grid(p), &params) }
}

fn check(weight: View<'_>, p: &ProductOperands<'_>) -> Result<()> {
    p.check()?;
    weight.expect("weight", p.x.elem(), p.outputs * p.inputs)
}
