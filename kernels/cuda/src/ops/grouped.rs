//! Mixture of experts: one product per expert, for rows sorted by expert. Only the device knows how
//! many rows an expert has.

use millrace_backend::{Error, Result};

use super::product::PLAIN_PER_BLOCK;
use super::select::{halved, typed};
use super::shared::experts_h::RoutingParams;
use super::shared::grouped_gemm::{ExpertsParams, GroupedGemmParams, GroupedPackedParams};
use super::shared::tile_h::{NARROW_ROWS, TILE_OUT, TILE_THREADS, WIDE_ROWS};
use super::shared::weights_h::ProductParams;
use super::sizes::{MAX_BLOCKS, countable, int};
use super::tiles::TileStages;
use crate::params::Kernel;
use crate::weights::{PackedFormat, QuantizedWeight};
use crate::{Device, Elem, Grid, View};

/// From this mean number of rows per expert on, the wide tiles are faster. A row's result is the
/// same with both.
const MANY_ROWS: usize = 32;

/// An order of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowOrder {
    /// The order of `sorted_rows`: all rows of the first expert, then those of the next.
    Sorted,
    /// The order of the pairs (row, choice). For x, one row for all choices of a row.
    Pairs,
}

/// The weights of all experts.
#[derive(Debug, Clone, Copy)]
pub enum ExpertWeights<'a> {
    /// `[experts, outputs, inputs]`, of the type of `x`.
    Stored(View<'a>),
    /// Packed, one expert after the other, each padded to a multiple of 16 outputs; columns in
    /// order.
    Packed(QuantizedWeight<'a>),
}

/// The operands of [`grouped_gemm`] besides the weights.
#[derive(Debug, Clone, Copy)]
pub struct GroupedGemm<'a> {
    /// Rows before routing; 0 is allowed and does nothing.
    pub rows: usize,
    /// Choices: experts that each row is multiplied with.
    pub top_k: usize,
    /// Experts whose weights are here.
    pub experts: usize,
    /// Features of a row of `x`.
    pub inputs: usize,
    /// Features of a row of `out`.
    pub outputs: usize,
    /// f32 `[experts, outputs]`: the biases.
    pub bias: Option<View<'a>>,
    /// i32 `[experts + 1]`: where each expert's rows begin in `sorted_rows`; the last at most `rows
    /// * top_k`.
    pub expert_offsets: View<'a>,
    /// i32 `[rows * top_k]`: pairs `row * top_k + choice`, sorted by expert.
    pub sorted_rows: View<'a>,
    /// Order of `x`.
    pub x_order: RowOrder,
    /// `[rows * top_k, inputs]` sorted, or `[rows, inputs]`.
    pub x: View<'a>,
    /// Order of `out`.
    pub out_order: RowOrder,
    /// `[rows * top_k, outputs]`, of the type of `x`. What belongs to no pair of `sorted_rows` is
    /// left as it is.
    pub out: View<'a>,
}

/// Computes `out[pair] = x[row of pair] · weight[expert of pair]ᵀ + bias[expert of pair]` on the
/// tensor cores. f32, and rows that do not start at multiples of 16 bytes, take the plain kernel.
///
/// # Errors
/// [`Error::Shape`] for views that are too short or of another type,
/// [`Error::Unsupported`] for a type other than f32, f16 and bf16, or for packed weights whose
/// columns have an order of their own, or an error of the launch.
pub fn grouped_gemm(device: &Device, experts: ExpertWeights<'_>, g: &GroupedGemm<'_>) -> Result<()> {
    check(experts, g)?;
    let half = g.x.elem().size() == 2 && g.x.is_vectorizable(g.inputs) && g.out.address().is_multiple_of(16);
    let weights_fit = match experts {
        ExpertWeights::Stored(weights) => weights.is_vectorizable(g.inputs),
        ExpertWeights::Packed(weights) => {
            [weights.data, weights.scales].iter().all(|v| v.address().is_multiple_of(16))
        }
    };
    let pairs = g.rows * g.top_k;
    if pairs == 0 || g.experts == 0 {
        return Ok(());
    }
    if !(half && weights_fit) {
        return grouped_gemm_plain(device, experts, g);
    }
    let wide = pairs / g.experts >= MANY_ROWS;
    let (elem, tile_rows) = (g.x.elem(), if wide { WIDE_ROWS } else { NARROW_ROWS });
    let tiles = g.outputs.div_ceil(TILE_OUT);
    if tiles > MAX_BLOCKS {
        return Err(Error::Shape(format!("{} outputs are more than a grid can have", g.outputs)));
    }
    // Whatever rows the experts have, each has at most one piece that is not full.
    let pieces = pairs.div_ceil(tile_rows) + g.experts.min(pairs);
    let grid = |stages: TileStages| Grid {
        blocks: [pieces as u32, tiles as u32, 1],
        threads: [TILE_THREADS as u32, 1, 1],
        shared: stages.shared,
    };
    match experts {
        ExpertWeights::Stored(weights) => {
            let stages = TileStages::of(device, 16, tile_rows);
            let kernel = match (wide, stages.is_few) {
                (false, _) => halved!(GroupedGemmParams, "grouped_gemm", "grouped_narrow", elem),
                (true, false) => halved!(GroupedGemmParams, "grouped_gemm", "grouped_wide", elem),
                (true, true) => halved!(GroupedGemmParams, "grouped_gemm", "grouped_wide_few_stages", elem),
            }?;
            // SAFETY: the views were checked against the shapes.
            unsafe { device.launch(kernel, grid(stages), &stored_params(weights, g)) }
        }
        ExpertWeights::Packed(weight) => {
            let stages = TileStages::of(device, weight.format.bits(), tile_rows);
            let kernel = packed_kernel(weight.format, wide, stages, elem)?;
            // SAFETY: the views were checked against the shapes.
            unsafe { device.launch(kernel, grid(stages), &packed_params(&weight, g)) }
        }
    }
}

/// Returns the kernel on tiles for packed experts. Four stages of four bits fit every GPU.
fn packed_kernel(
    format: PackedFormat,
    wide: bool,
    stages: TileStages,
    elem: Elem,
) -> Result<Kernel<GroupedPackedParams>> {
    macro_rules! grouped {
        ($name:literal) => {
            halved!(GroupedPackedParams, "grouped_gemm", $name, elem)
        };
    }
    match (format, wide, stages.is_few) {
        (PackedFormat::Int4, false, _) => grouped!("grouped_int4_narrow"),
        (PackedFormat::Int4, true, _) => grouped!("grouped_int4_wide"),
        (PackedFormat::Int8, false, _) => grouped!("grouped_int8_narrow"),
        (PackedFormat::Int8, true, false) => grouped!("grouped_int8_wide"),
        (PackedFormat::Int8, true, true) => grouped!("grouped_int8_wide_few_stages"),
        (PackedFormat::Fp8, false, _) => grouped!("grouped_e4m3_narrow"),
        (PackedFormat::Fp8, true, false) => grouped!("grouped_e4m3_wide"),
        (PackedFormat::Fp8, true, true) => grouped!("grouped_e4m3_wide_few_stages"),
        (PackedFormat::Codes4, false, _) => grouped!("grouped_codes4_narrow"),
        (PackedFormat::Codes4, true, _) => grouped!("grouped_codes4_wide"),
        (PackedFormat::Q4K, false, _) => grouped!("grouped_q4_k_narrow"),
        (PackedFormat::Q4K, true, _) => grouped!("grouped_q4_k_wide"),
        (PackedFormat::Q5K, false, _) => grouped!("grouped_q5_k_narrow"),
        (PackedFormat::Q5K, true, false) => grouped!("grouped_q5_k_wide"),
        (PackedFormat::Q5K, true, true) => grouped!("grouped_q5_k_wide_few_stages"),
        (PackedFormat::Q6K, false, _) => grouped!("grouped_q6_k_narrow"),
        (PackedFormat::Q6K, true, false) => grouped!("grouped_q6_k_wide"),
        (PackedFormat::Q6K, true, true) => grouped!("grouped_q6_k_wide_few_stages"),
    }
}

/// Does the same by the plain kernel, for any type and shape. It is the reference of the fast
/// kernels.
///
/// # Errors
/// As for [`grouped_gemm`].
pub fn grouped_gemm_plain(device: &Device, experts: ExpertWeights<'_>, g: &GroupedGemm<'_>) -> Result<()> {
    check(experts, g)?;
    let pairs = g.rows * g.top_k;
    if pairs > MAX_BLOCKS {
        return Err(Error::Unsupported(format!("{pairs} pairs are too many for the plain kernel")));
    }
    if pairs == 0 || g.experts == 0 {
        return Ok(());
    }
    let blocks = [g.outputs.div_ceil(PLAIN_PER_BLOCK) as u32, pairs as u32, 1];
    let grid = Grid { blocks, threads: [TILE_THREADS as u32, 1, 1], shared: 0 };
    match experts {
        ExpertWeights::Stored(weights) => {
            let kernel = typed!(GroupedGemmParams, "grouped_gemm", "grouped_plain", g.x.elem())?;
            // SAFETY: the views were checked against the shapes.
            unsafe { device.launch(kernel, grid, &stored_params(weights, g)) }
        }
        ExpertWeights::Packed(weight) => {
            let elem = g.x.elem();
            let kernel = match weight.format {
                PackedFormat::Int4 => {
                    typed!(GroupedPackedParams, "grouped_gemm", "grouped_int4_plain", elem)
                }
                PackedFormat::Int8 => {
                    typed!(GroupedPackedParams, "grouped_gemm", "grouped_int8_plain", elem)
                }
                PackedFormat::Fp8 => {
                    typed!(GroupedPackedParams, "grouped_gemm", "grouped_e4m3_plain", elem)
                }
                PackedFormat::Codes4 => {
                    typed!(GroupedPackedParams, "grouped_gemm", "grouped_codes4_plain", elem)
                }
                PackedFormat::Q4K => {
                    typed!(GroupedPackedParams, "grouped_gemm", "grouped_q4_k_plain", elem)
                }
                PackedFormat::Q5K => {
                    typed!(GroupedPackedParams, "grouped_gemm", "grouped_q5_k_plain", elem)
                }
                PackedFormat::Q6K => {
                    typed!(GroupedPackedParams, "grouped_gemm", "grouped_q6_k_plain", elem)
                }
            }?;
            // SAFETY: the views were checked against the shapes.
            unsafe { device.launch(kernel, grid, &packed_params(&weight, g)) }
        }
    }
}

fn stored_params(weights: View<'_>, g: &GroupedGemm<'_>) -> GroupedGemmParams {
    GroupedGemmParams { product: product_params(g), weights: weights.into(), experts: experts_params(g) }
}

fn packed_params(weight: &QuantizedWeight<'_>, g: &GroupedGemm<'_>) -> GroupedPackedParams {
    GroupedPackedParams { product: product_params(g), weight: weight.params(), experts: experts_params(g) }
}

fn product_params(g: &GroupedGemm<'_>) -> ProductParams {
    ProductParams {
        out: g.out.into(),
        x: g.x.into(),
        bias: g.bias.into(),
        rows: 0,
        outputs: int(g.outputs),
        inputs: int(g.inputs),
        stride: int(g.outputs),
    }
}

fn experts_params(g: &GroupedGemm<'_>) -> ExpertsParams {
    ExpertsParams {
        offsets: g.expert_offsets.into(),
        experts: int(g.experts),
        routing: RoutingParams {
            sorted_rows: g.sorted_rows.into(),
            top_k: int(g.top_k),
            x_sorted: i32::from(g.x_order == RowOrder::Sorted),
            out_sorted: i32::from(g.out_order == RowOrder::Sorted),
        },
    }
}

fn check(experts: ExpertWeights<'_>, g: &GroupedGemm<'_>) -> Result<()> {
    let elem = g.x.elem();
    if g.inputs == 0 || g.outputs == 0 || g.top_k == 0 {
        return Err(Error::Shape(format!(
            "experts of {} by {} for {} choices",
            g.outputs, g.inputs, g.top_k
        )));
    }
    let pairs = g.rows * g.top_k;
    countable(&[g.rows, pairs, g.experts, g.inputs, g.outputs, g.experts * g.outputs])?;
    g.expert_offsets.expect("expert_offsets", Elem::I32, g.experts + 1)?;
    if let Some(bias) = g.bias {
        bias.expect("bias", Elem::F32, g.experts * g.outputs)?;
    }
    g.sorted_rows.expect("sorted_rows", Elem::I32, pairs)?;
    g.x.expect("x", elem, if g.x_order == RowOrder::Sorted { pairs } else { g.rows } * g.inputs)?;
    g.out.expect("out", elem, pairs * g.outputs)?;
    match experts {
        ExpertWeights::Stored(weights) => weights.expect("weights", elem, g.experts * g.outputs * g.inputs),
        ExpertWeights::Packed(weight) if weight.columns.is_some() => {
            Err(Error::Unsupported("packed experts with columns in an order of their own".to_owned()))
        }
        ExpertWeights::Packed(weight) => weight.check(g.experts, g.inputs, g.outputs),
    }
}
