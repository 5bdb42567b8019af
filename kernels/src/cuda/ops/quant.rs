//! Products with packed weights of 4 and 8 bits and activations of 16.
//!
//! Weights become numbers of the activations' type in registers; a group's scale is applied to its sum, in f32. Both paths run over k in a fixed order, but
//! not in the same one: a result depends on which [`Path`] computed it, and on nothing else of the batch.

use super::gemv::plain_grid;
use super::product::{Product, Slices, Workspace, halved, rows_of_block};
use super::{countable, typed};
use crate::cuda::pack::{Format, OUTPUTS};
use crate::cuda::{Args, Cost, Device, Elem, Grid, View};
use crate::{Error, Result};

/// From this number of rows on, [`Path::Many`] is the faster one.
pub const MANY_ROWS: usize = 64;

const THREADS: u32 = 256;
/// Outputs and rows of a tile of the kernels for many rows.
const TILE: usize = 128;
/// Steps of k that these have in shared memory.
const STAGES: usize = 4;

/// Which kernels multiply. Callers that promise the same result for a row in any company choose one for all batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Path {
    /// At the speed of memory for 1 to 16 rows; more rows cost that many groups of 16, which find the weights in the L2 cache.
    Few,
    /// On tiles of 128 rows.
    Many,
}

impl Path {
    /// The faster path for so many rows: [`Path::Few`] below [`MANY_ROWS`].
    pub fn fastest(rows: usize) -> Path {
        if rows < MANY_ROWS { Path::Few } else { Path::Many }
    }
}

/// A weight in device memory, as [`crate::cuda::pack::Packed`] lays it out.
#[derive(Debug, Clone, Copy)]
pub struct Weight<'a> {
    /// How a number is stored.
    pub format: Format,
    /// Columns of the weight, padding included: a multiple of 64.
    pub depth: usize,
    /// Columns that share a scale: a power of two, at least 32 (4 bits) or 64 (8 bits).
    pub group: usize,
    /// u8: `[outputs / 16][depth / 64]` tiles of 512 bytes for 4 bits, `[outputs rounded up to 16][depth]` for 8.
    pub data: View<'a>,
    /// u32, `[outputs / 16][groups][16]`.
    pub scales: View<'a>,
    /// i32 `[depth]`: which column of x a column of the weight meets, negative for none. Without it the first `inputs` are x's.
    pub columns: Option<View<'a>>,
}

impl Weight<'_> {
    /// Checks types and lengths against a weight of `experts` times `outputs` outputs.
    pub(crate) fn check(&self, experts: usize, inputs: usize, outputs: usize) -> Result<()> {
        let &Weight { format, depth, group, data, scales, columns } = self;
        if !depth.is_multiple_of(super::product::DEPTH) || depth == 0 {
            return Err(Error::Shape(format!("{depth} columns are not a multiple of 64")));
        }
        let least = format.least_group();
        if !group.is_power_of_two() || !(least..=1 << 30).contains(&group) {
            return Err(Error::Shape(format!(
                "groups of {group} columns: not a power of two from {least} to 2^30"
            )));
        }
        countable(&[depth, outputs.next_multiple_of(OUTPUTS) * depth.div_ceil(group), experts])?;
        let outputs = outputs.next_multiple_of(OUTPUTS) * experts;
        data.expect("weight", Elem::U8, outputs * depth * format.bits() / 8)?;
        scales.expect("scales", Elem::U32, outputs * depth.div_ceil(group))?;
        match columns {
            Some(columns) => columns.expect("columns", Elem::I32, depth),
            None if inputs > depth => Err(Error::Shape(format!("{inputs} inputs for {depth} columns"))),
            None => Ok(()),
        }
    }

    pub(crate) fn group_bits(&self) -> u32 {
        self.group.trailing_zeros()
    }
}

/// `p.out = p.x · weightᵀ + p.bias + p.residual`.
///
/// `ordered`, `[rows, depth]` of the type of `x`, is needed by [`Path::Many`] if the weight's columns are not in the order of x's; it holds x in their order.
/// `workspace` is needed by [`Path::Few`] for `depth` columns. f32, and rows that do not start at multiples of 16 bytes, take the plain kernel.
///
/// # Errors
/// [`Error::Shape`] for views that are too short or of another type, [`Error::Unsupported`] for a type other than f32, f16 and bf16, or what the
/// launch fails with.
pub fn quant_gemm(
    device: &Device,
    path: Path,
    weight: &Weight<'_>,
    p: &Product<'_>,
    workspace: &Workspace<'_>,
    ordered: Option<View<'_>>,
) -> Result<()> {
    let aligned = weight.data.address().is_multiple_of(16) && weight.scales.address().is_multiple_of(16);
    // Columns in an order of their own are gathered one by one, whatever the alignment of x.
    let x_fits = weight.columns.is_some() || p.x.is_vectorisable(p.inputs);
    if !(aligned && x_fits && p.is_half()) {
        return quant_gemm_plain(device, weight, p);
    }
    check(weight, p)?;
    if p.rows == 0 {
        return Ok(());
    }
    match (path, weight.columns) {
        (Path::Few, _) => few(device, weight, p, workspace),
        (Path::Many, None) => many(device, weight, p),
        (Path::Many, Some(columns)) => {
            let Some(ordered) = ordered else {
                return Err(Error::Shape(
                    "a weight with ordered columns needs room for ordered rows".to_owned(),
                ));
            };
            ordered.expect("ordered", p.x.elem(), p.rows * weight.depth)?;
            if !ordered.is_vectorisable(weight.depth) {
                return Err(Error::Shape("ordered rows do not start at multiples of 16 bytes".to_owned()));
            }
            let name = halved!(p.x.elem(), "order_columns")?;
            let args = Args::new().with(ordered).with(p.x).with(columns).with(p.inputs).with(weight.depth);
            // SAFETY: the views were checked, and the arguments are those of the kernel; columns were checked when they were packed.
            unsafe { device.launch("quant_gemm", name, Grid::flat(p.rows, THREADS), &args)? };
            many(device, weight, &Product { x: ordered, inputs: weight.depth, ..*p })
        }
    }
}

/// The same by the obvious kernel, for any type and number of rows: what the fast ones are compared with.
///
/// # Errors
/// As for [`quant_gemm`].
pub fn quant_gemm_plain(device: &Device, weight: &Weight<'_>, p: &Product<'_>) -> Result<()> {
    check(weight, p)?;
    if p.rows == 0 {
        return Ok(());
    }
    let name = match weight.format {
        Format::Int4 => typed!(p.x.elem(), "int4_plain"),
        Format::Int8 => typed!(p.x.elem(), "int8_plain"),
        Format::E4M3 => typed!(p.x.elem(), "e4m3_plain"),
    }?;
    let args = p.sizes(operands(weight, p, true)).with(weight.depth).with(weight.group_bits());
    // SAFETY: the views were checked against the shapes, and the arguments are those of the kernel chosen.
    unsafe { device.launch("quant_gemv", name, plain_grid(p), &args) }
}

/// What the product costs. `group` is the number of columns that share a scale.
pub fn cost(format: Format, elem: Elem, rows: usize, inputs: usize, outputs: usize, group: usize) -> Cost {
    let weight = outputs * inputs * format.bits() / 8 + outputs * inputs.div_ceil(group) * 4;
    let bytes = weight + Product::bytes(elem, rows, inputs, outputs);
    Cost { flops: 2.0 * rows as f64 * inputs as f64 * outputs as f64, ..Cost::moving(bytes) }
}

fn check(weight: &Weight<'_>, p: &Product<'_>) -> Result<()> {
    p.check()?;
    weight.check(1, p.inputs, p.outputs)
}

/// Out, x, weight, scales, columns (where the kernel takes them), bias, residual.
fn operands(weight: &Weight<'_>, p: &Product<'_>, with_columns: bool) -> Args {
    let args = Args::new().with(p.out).with(p.x).with(weight.data).with(weight.scales);
    args.with_some(with_columns.then_some(weight.columns)).with(p.bias).with(p.residual)
}

fn few(device: &Device, weight: &Weight<'_>, p: &Product<'_>, workspace: &Workspace<'_>) -> Result<()> {
    workspace.check(p.rows, weight.depth, p.outputs)?;
    let slices = Slices::of(weight.depth, p.outputs);
    let elem = p.x.elem();
    let name = match (weight.format, rows_of_block(p.rows)) {
        (Format::Int4, 8) => halved!(elem, "int4_gemv8"),
        (Format::Int4, _) => halved!(elem, "int4_gemv16"),
        (Format::Int8, 8) => halved!(elem, "int8_gemv8"),
        (Format::Int8, _) => halved!(elem, "int8_gemv16"),
        (Format::E4M3, 8) => halved!(elem, "e4m3_gemv8"),
        (Format::E4M3, _) => halved!(elem, "e4m3_gemv16"),
    }?;
    let args = operands(weight, p, true).with(workspace.partials).with(workspace.counters);
    let args = p.sizes(args).with(weight.depth).with(weight.group_bits()).with(slices.length);
    let grid = Grid {
        blocks: slices.blocks(p.rows, p.outputs)?,
        threads: [THREADS, 1, 1],
        shared: slices.shared(p.rows, Some(weight.group_bits())),
    };
    // SAFETY: the views were checked against the shapes, and the arguments are those of the kernel chosen.
    unsafe { device.launch("quant_gemv", name, grid, &args) }
}

fn many(device: &Device, weight: &Weight<'_>, p: &Product<'_>) -> Result<()> {
    let name = match weight.format {
        Format::Int4 => halved!(p.x.elem(), "int4_gemm"),
        Format::Int8 => halved!(p.x.elem(), "int8_gemm"),
        Format::E4M3 => halved!(p.x.elem(), "e4m3_gemm"),
    }?;
    let args = p.sizes(operands(weight, p, false)).with(weight.depth).with(weight.group_bits());
    let tiles = p.outputs.div_ceil(TILE);
    if tiles > 65535 {
        return Err(Error::Shape(format!("{} outputs are more than a grid can have", p.outputs)));
    }
    let grid = Grid {
        blocks: [p.rows.div_ceil(TILE) as u32, tiles as u32, 1],
        threads: [THREADS, 1, 1],
        shared: shared_of_tiles(weight.format.bits(), TILE, STAGES),
    };
    // SAFETY: the views were checked against the shapes, and the arguments are those of the kernel chosen.
    unsafe { device.launch("quant_gemm", name, grid, &args) }
}

/// Bytes of shared memory of the kernels on tiles of 128 outputs, `rows` rows and 64 k, for weights of `bits` bits: in each stage the weights, for packed ones
/// two words per output, and the rows.
pub(crate) fn shared_of_tiles(bits: usize, rows: usize, stages: usize) -> usize {
    let words = if bits < 16 { TILE * 2 * 4 } else { 0 };
    stages * (TILE * 64 * bits / 8 + words + rows * 64 * 2)
}
