//! Products with weights as they are stored, for few rows.

use super::product::{DEPTH, Product, Slices, Workspace, halved, rows_of_block};
use super::typed;
use crate::Result;
use crate::cuda::{Args, Cost, Device, Elem, Grid, View};

/// Threads of a block, in the fast kernels and in the plain ones.
const THREADS: u32 = 256;
/// Elements of a result that a block of the plain kernel computes.
pub(crate) const PLAIN_PER_BLOCK: usize = THREADS as usize / 32;

/// `p.out = p.x · weightᵀ + p.bias + p.residual` at the speed of memory, for 1 to 16 rows; more rows take as long as that many groups of
/// 16. `weight` is `[outputs, inputs]`, of the type of `x`. Rows whose length is no multiple of 16 bytes, and f32, take the plain kernel. A row's result
/// does not depend on the number of rows.
///
/// # Errors
/// [`crate::Error::Shape`] for views that are too short or of another type, [`crate::Error::Unsupported`] for a type other than f32, f16 and bf16,
/// or what the launch fails with.
pub fn gemv(device: &Device, weight: View<'_>, p: &Product<'_>, workspace: &Workspace<'_>) -> Result<()> {
    if !(p.is_half() && p.x.is_vectorisable(p.inputs) && weight.is_vectorisable(p.inputs)) {
        return gemv_plain(device, weight, p);
    }
    check(weight, p)?;
    workspace.check(p.rows, p.inputs, p.outputs)?;
    if p.rows == 0 {
        return Ok(());
    }
    let slices = Slices::of(p.inputs, p.outputs);
    let name = match rows_of_block(p.rows) {
        8 => halved!(p.x.elem(), "gemv8"),
        _ => halved!(p.x.elem(), "gemv16"),
    }?;
    let args = Args::new().with(p.out).with(p.x).with(weight).with(p.bias).with(p.residual);
    let args = p.sizes(args.with(workspace.partials).with(workspace.counters));
    let args = args.with(p.inputs.next_multiple_of(DEPTH)).with(slices.length);
    let blocks = slices.blocks(p.rows, p.outputs)?;
    let grid = Grid { blocks, threads: [THREADS, 1, 1], shared: slices.shared(p.rows, None) };
    // SAFETY: the views were checked against the shapes, and the arguments are those of the kernel chosen.
    unsafe { device.launch("gemv", name, grid, &args) }
}

/// The same by the obvious kernel, for any type and shape and without a workspace: what the fast one is compared with.
///
/// # Errors
/// As for [`gemv`].
pub fn gemv_plain(device: &Device, weight: View<'_>, p: &Product<'_>) -> Result<()> {
    check(weight, p)?;
    if p.rows == 0 {
        return Ok(());
    }
    let name = typed!(p.x.elem(), "gemv_plain")?;
    let args = p.sizes(Args::new().with(p.out).with(p.x).with(weight).with(p.bias).with(p.residual));
    // SAFETY: as above.
    unsafe { device.launch("gemv", name, plain_grid(p), &args) }
}

/// What the product costs.
pub fn cost(elem: Elem, rows: usize, inputs: usize, outputs: usize) -> Cost {
    let bytes = outputs * inputs * elem.size() + Product::bytes(elem, rows, inputs, outputs);
    Cost { flops: 2.0 * rows as f64 * inputs as f64 * outputs as f64, ..Cost::moving(bytes) }
}

/// A warp per element of the result.
pub(crate) fn plain_grid(p: &Product<'_>) -> Grid {
    Grid::flat((p.rows * p.outputs).div_ceil(PLAIN_PER_BLOCK), THREADS)
}

fn check(weight: View<'_>, p: &Product<'_>) -> Result<()> {
    p.check()?;
    weight.expect("weight", p.x.elem(), p.outputs * p.inputs)
}
