//! Products with packed weights of 4 and 8 bits and activations of 16 bits.
//!
//! The kernels convert weights to the activations' type in registers, and apply a group's scale to
//! the group's sum, in f32. Both paths run over k in a fixed order, but not in the same one: a
//! result depends on the [`QuantGemmPath`] that computed it, and on nothing else of the batch.

use millrace_backend::{Error, Result};

use super::product::{DepthSlices, ProductOperands, ProductWorkspace, plain_grid, rows_of_block};
use super::select::{halved, typed};
use super::shared::quant_gemm::{OrderColumnsParams, QuantGemmParams};
use super::shared::quant_gemv::{QuantGemvParams, QuantPlainParams};
use super::shared::skinny_h::SKINNY_THREADS;
use super::shared::tile_h::{TILE_OUT, TILE_THREADS, WIDE_ROWS};
use super::shared::weights_h::{CodeTableParams, PackedWeightParams};
use super::sizes::{MAX_BLOCKS, int};
use super::tiles::TileStages;
use crate::weights::{PackedFormat, QuantizedWeight};
use crate::{Device, Grid, View};

/// From this number of rows on, [`QuantGemmPath::Many`] is the faster one.
pub const MANY_ROWS: usize = 64;

/// Threads of a block of the kernel that reorders columns.
const ORDER_THREADS: u32 = 256;

/// The kernels that multiply. A caller that promises the same result for a row in any batch uses
/// one path for all batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuantGemmPath {
    /// At the speed of memory for 1 to 16 rows; more rows cost that many groups of 16, which find
    /// the weights in the L2 cache.
    Few,
    /// On tiles of 128 rows.
    Many,
}

impl QuantGemmPath {
    /// The faster path for this number of rows: [`QuantGemmPath::Few`] below [`MANY_ROWS`].
    pub fn fastest(rows: usize) -> QuantGemmPath {
        if rows < MANY_ROWS { QuantGemmPath::Few } else { QuantGemmPath::Many }
    }
}

impl QuantizedWeight<'_> {
    /// The table as kernels take it.
    fn table_params(&self) -> CodeTableParams {
        let [first, second, third, fourth] =
            [0, 4, 8, 12].map(|at| u32::from_le_bytes(std::array::from_fn(|i| self.table[at + i] as u8)));
        CodeTableParams { first, second, third, fourth }
    }

    /// The weight as kernels take it.
    pub(super) fn params(&self) -> PackedWeightParams {
        PackedWeightParams {
            data: self.data.into(),
            scales: self.scales.into(),
            depth: int(self.depth),
            group_bits: self.group_bits() as i32,
            table: self.table_params(),
        }
    }
}

/// Computes `p.out = p.x · weightᵀ + p.bias`.
///
/// [`QuantGemmPath::Many`] needs `ordered`, `[rows, depth]` of the type of `x`, if the weight's
/// columns are not in the order of x's; the operation writes x in their order to it.
/// [`QuantGemmPath::Few`] needs a workspace for `depth` columns. f32, and rows that do not start at
/// multiples of 16 bytes, take the plain kernel.
///
/// # Errors
/// [`Error::Shape`] for views that are too short or of another type,
/// [`Error::Unsupported`] for a type other than f32, f16 and bf16, or an error of the launch.
pub fn quant_gemm(
    device: &Device,
    path: QuantGemmPath,
    weight: &QuantizedWeight<'_>,
    p: &ProductOperands<'_>,
    workspace: &ProductWorkspace<'_>,
    ordered: Option<View<'_>>,
) -> Result<()> {
    let aligned = weight.data.address().is_multiple_of(16) && weight.scales.address().is_multiple_of(16);
    // Columns in an order of their own are gathered one by one, whatever the alignment of x.
    let x_fits = weight.columns.is_some() || p.x.is_vectorizable(p.inputs);
    if !(aligned && x_fits && p.is_half()) {
        return quant_gemm_plain(device, weight, p);
    }
    check(weight, p)?;
    if p.rows == 0 {
        return Ok(());
    }
    match (path, weight.columns) {
        (QuantGemmPath::Few, _) => few(device, weight, p, workspace),
        (QuantGemmPath::Many, None) => many(device, weight, p),
        (QuantGemmPath::Many, Some(columns)) => {
            let Some(ordered) = ordered else {
                return Err(Error::Shape(
                    "a weight with ordered columns needs room for ordered rows".to_owned(),
                ));
            };
            order_columns(device, columns, weight.depth, p, ordered)?;
            many(device, weight, &ProductOperands { x: ordered, inputs: weight.depth, ..*p })
        }
    }
}

/// Writes the columns of x in the order of the weight's to `ordered`.
fn order_columns(
    device: &Device,
    columns: View<'_>,
    depth: usize,
    p: &ProductOperands<'_>,
    ordered: View<'_>,
) -> Result<()> {
    ordered.expect("ordered", p.x.elem(), p.rows * depth)?;
    if !ordered.is_vectorizable(depth) {
        return Err(Error::Shape("ordered rows do not start at multiples of 16 bytes".to_owned()));
    }
    let kernel = halved!(OrderColumnsParams, "quant_gemm", "order_columns", p.x.elem())?;
    let params = OrderColumnsParams {
        out: ordered.into(),
        x: p.x.into(),
        columns: columns.into(),
        inputs: int(p.inputs),
        depth: int(depth),
    };
    // SAFETY: the views were checked; the numbers of columns were checked when the weight was
    // packed.
    unsafe { device.launch(kernel, Grid::flat(p.rows, ORDER_THREADS), &params) }
}

/// Does the same by the plain kernel, for any type and number of rows. It is the reference of the
/// fast kernels.
///
/// # Errors
/// As for [`quant_gemm`].
pub fn quant_gemm_plain(
    device: &Device,
    weight: &QuantizedWeight<'_>,
    p: &ProductOperands<'_>,
) -> Result<()> {
    check(weight, p)?;
    if p.rows == 0 {
        return Ok(());
    }
    let elem = p.x.elem();
    let kernel = match weight.format {
        PackedFormat::Int4 => typed!(QuantPlainParams, "quant_gemv", "int4_plain", elem),
        PackedFormat::Int8 => typed!(QuantPlainParams, "quant_gemv", "int8_plain", elem),
        PackedFormat::Fp8 => typed!(QuantPlainParams, "quant_gemv", "e4m3_plain", elem),
        PackedFormat::Codes4 => typed!(QuantPlainParams, "quant_gemv", "codes4_plain", elem),
        PackedFormat::Q4K => typed!(QuantPlainParams, "quant_gemv", "q4_k_plain", elem),
        PackedFormat::Q5K => typed!(QuantPlainParams, "quant_gemv", "q5_k_plain", elem),
        PackedFormat::Q6K => typed!(QuantPlainParams, "quant_gemv", "q6_k_plain", elem),
    }?;
    let params =
        QuantPlainParams { product: p.params(), weight: weight.params(), columns: weight.columns.into() };
    // SAFETY: the views were checked against the shapes.
    unsafe { device.launch(kernel, plain_grid(p), &params) }
}

fn check(weight: &QuantizedWeight<'_>, p: &ProductOperands<'_>) -> Result<()> {
    p.check()?;
    weight.check(1, p.inputs, p.outputs)
}

fn few(
    device: &Device,
    weight: &QuantizedWeight<'_>,
    p: &ProductOperands<'_>,
    workspace: &ProductWorkspace<'_>,
) -> Result<()> {
    workspace.check(p.rows, weight.depth, p.outputs)?;
    let slices = DepthSlices::of(weight.depth, p.outputs);
    let elem = p.x.elem();
    let kernel = match (weight.format, rows_of_block(p.rows)) {
        (PackedFormat::Int4, 8) => halved!(QuantGemvParams, "quant_gemv", "int4_gemv8", elem),
        (PackedFormat::Int4, _) => halved!(QuantGemvParams, "quant_gemv", "int4_gemv16", elem),
        (PackedFormat::Int8, 8) => halved!(QuantGemvParams, "quant_gemv", "int8_gemv8", elem),
        (PackedFormat::Int8, _) => halved!(QuantGemvParams, "quant_gemv", "int8_gemv16", elem),
        (PackedFormat::Fp8, 8) => halved!(QuantGemvParams, "quant_gemv", "e4m3_gemv8", elem),
        (PackedFormat::Fp8, _) => halved!(QuantGemvParams, "quant_gemv", "e4m3_gemv16", elem),
        (PackedFormat::Codes4, 8) => halved!(QuantGemvParams, "quant_gemv", "codes4_gemv8", elem),
        (PackedFormat::Codes4, _) => halved!(QuantGemvParams, "quant_gemv", "codes4_gemv16", elem),
        (PackedFormat::Q4K, 8) => halved!(QuantGemvParams, "quant_gemv", "q4_k_gemv8", elem),
        (PackedFormat::Q4K, _) => halved!(QuantGemvParams, "quant_gemv", "q4_k_gemv16", elem),
        (PackedFormat::Q5K, 8) => halved!(QuantGemvParams, "quant_gemv", "q5_k_gemv8", elem),
        (PackedFormat::Q5K, _) => halved!(QuantGemvParams, "quant_gemv", "q5_k_gemv16", elem),
        (PackedFormat::Q6K, 8) => halved!(QuantGemvParams, "quant_gemv", "q6_k_gemv8", elem),
        (PackedFormat::Q6K, _) => halved!(QuantGemvParams, "quant_gemv", "q6_k_gemv16", elem),
    }?;
    let params = QuantGemvParams {
        product: p.params(),
        weight: weight.params(),
        columns: weight.columns.into(),
        slices: slices.params(workspace, weight.depth),
    };
    let grid = Grid {
        blocks: slices.blocks(p.rows, p.outputs)?,
        threads: [SKINNY_THREADS as u32, 1, 1],
        shared: slices.shared_bytes(p.rows, Some(weight.group_bits())),
    };
    // SAFETY: the views were checked against the shapes.
    unsafe { device.launch(kernel, grid, &params) }
}

fn many(device: &Device, weight: &QuantizedWeight<'_>, p: &ProductOperands<'_>) -> Result<()> {
    let elem = p.x.elem();
    let stages = TileStages::of(device, weight.format.bits(), WIDE_ROWS);
    let kernel = match (weight.format, stages.is_few) {
        (PackedFormat::Int4, _) => halved!(QuantGemmParams, "quant_gemm", "int4_gemm", elem),
        (PackedFormat::Int8, false) => halved!(QuantGemmParams, "quant_gemm", "int8_gemm", elem),
        (PackedFormat::Int8, true) => halved!(QuantGemmParams, "quant_gemm", "int8_gemm_few_stages", elem),
        (PackedFormat::Fp8, false) => halved!(QuantGemmParams, "quant_gemm", "e4m3_gemm", elem),
        (PackedFormat::Fp8, true) => halved!(QuantGemmParams, "quant_gemm", "e4m3_gemm_few_stages", elem),
        (PackedFormat::Codes4, _) => halved!(QuantGemmParams, "quant_gemm", "codes4_gemm", elem),
        (PackedFormat::Q4K, _) => halved!(QuantGemmParams, "quant_gemm", "q4_k_gemm", elem),
        (PackedFormat::Q5K, false) => halved!(QuantGemmParams, "quant_gemm", "q5_k_gemm", elem),
        (PackedFormat::Q5K, true) => halved!(QuantGemmParams, "quant_gemm", "q5_k_gemm_few_stages", elem),
        (PackedFormat::Q6K, false) => halved!(QuantGemmParams, "quant_gemm", "q6_k_gemm", elem),
        (PackedFormat::Q6K, true) => halved!(QuantGemmParams, "quant_gemm", "q6_k_gemm_few_stages", elem),
    }?;
    let tiles = p.outputs.div_ceil(TILE_OUT);
    if tiles > MAX_BLOCKS {
        return Err(Error::Shape(format!("{} outputs are more than a grid can have", p.outputs)));
    }
    let grid = Grid {
        blocks: [p.rows.div_ceil(WIDE_ROWS) as u32, tiles as u32, 1],
        threads: [TILE_THREADS as u32, 1, 1],
        shared: stages.shared,
    };
    let params = QuantGemmParams { product: p.params(), weight: weight.params() };
    // SAFETY: the views were checked against the shapes.
    unsafe { device.launch(kernel, grid, &params) }
}
