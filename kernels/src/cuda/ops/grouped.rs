//! Mixture of experts: a product per expert, for rows sorted by expert. How many rows an expert has is known to the device alone.

use super::countable;
use super::product::halved;
use super::quant::{Weight, shared_of_tiles};
use super::typed;
use crate::cuda::pack::Format;
use crate::cuda::{Args, Cost, Device, Elem, Grid, View};
use crate::{Error, Result};

const THREADS: u32 = 256;
/// Outputs of a tile.
const TILE: usize = 128;
/// Rows of a tile, for experts with few and with many rows. A row's result is the same in both.
const ROWS: (usize, usize) = (16, 128);
/// From this mean number of rows per expert on, the wide tiles are faster.
const MANY_ROWS: usize = 32;
/// Steps of k in shared memory.
const STAGES: usize = 4;

/// Which order rows are in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// That of `sorted_rows`: all rows of the first expert, then those of the next.
    Sorted,
    /// That of the pairs (row, choice); as x, one row for all choices of a row.
    Pairs,
}

/// The weights of all experts.
#[derive(Debug, Clone, Copy)]
pub enum Experts<'a> {
    /// `[experts, outputs, inputs]`, of the type of `x`.
    Stored(View<'a>),
    /// Packed int4, one expert after the other, each padded to a multiple of 16 outputs; columns in order.
    Packed(Weight<'a>),
}

/// `out[pair] = x[row of pair] · weight[expert of pair]ᵀ`.
#[derive(Debug, Clone, Copy)]
pub struct Grouped<'a> {
    /// Rows before routing; 0 is allowed and does nothing.
    pub rows: usize,
    /// Experts that a row goes to.
    pub top_k: usize,
    /// Experts whose weights are here.
    pub experts: usize,
    /// Features of a row of `x`.
    pub inputs: usize,
    /// Features of a row of `out`.
    pub outputs: usize,
    /// i32 `[experts + 1]`: where each expert's rows begin in `sorted_rows`; the last at most `rows * top_k`.
    pub expert_offsets: View<'a>,
    /// i32 `[rows * top_k]`: pairs `row * top_k + choice`, sorted by expert.
    pub sorted_rows: View<'a>,
    /// Order of `x`.
    pub x_order: Order,
    /// `[rows * top_k, inputs]` sorted, or `[rows, inputs]`.
    pub x: View<'a>,
    /// Order of `out`.
    pub out_order: Order,
    /// `[rows * top_k, outputs]`, of the type of `x`. What belongs to no pair of `sorted_rows` is left as it is.
    pub out: View<'a>,
}

/// Multiplies on the tensor cores; f32 and rows that do not start at multiples of 16 bytes take the plain kernel.
///
/// # Errors
/// [`Error::Shape`] for views that are too short or of another type, [`Error::Unsupported`] for a type other than f32, f16 and bf16, or for packed weights that
/// are not int4, or what the launch fails with.
pub fn grouped_gemm(device: &Device, experts: Experts<'_>, g: &Grouped<'_>) -> Result<()> {
    check(experts, g)?;
    let half = g.x.elem().size() == 2 && g.x.is_vectorisable(g.inputs) && g.out.address().is_multiple_of(16);
    let weights_fit = match experts {
        Experts::Stored(weights) => weights.is_vectorisable(g.inputs),
        Experts::Packed(weights) => {
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
    let (elem, tile_rows) = (g.x.elem(), if wide { ROWS.1 } else { ROWS.0 });
    let (name, bits) = match (experts, wide) {
        (Experts::Stored(_), false) => (halved!(elem, "grouped_narrow")?, 16),
        (Experts::Stored(_), true) => (halved!(elem, "grouped_wide")?, 16),
        (Experts::Packed(_), false) => (halved!(elem, "grouped_int4_narrow")?, 4),
        (Experts::Packed(_), true) => (halved!(elem, "grouped_int4_wide")?, 4),
    };
    let tiles = g.outputs.div_ceil(TILE);
    if tiles > 65535 {
        return Err(Error::Shape(format!("{} outputs are more than a grid can have", g.outputs)));
    }
    // However the pairs fall to the experts, each has at most one piece that is not full.
    let pieces = pairs.div_ceil(tile_rows) + g.experts.min(pairs);
    let grid = Grid {
        blocks: [pieces as u32, tiles as u32, 1],
        threads: [THREADS, 1, 1],
        shared: shared_of_tiles(bits, tile_rows, STAGES),
    };
    // SAFETY: the views were checked against the shapes, and the arguments are those of the kernel chosen.
    unsafe { device.launch("grouped_gemm", name, grid, &arguments(experts, g)) }
}

/// The same by the obvious kernel, for any type and shape: what the fast ones are compared with.
///
/// # Errors
/// As for [`grouped_gemm`].
pub fn grouped_gemm_plain(device: &Device, experts: Experts<'_>, g: &Grouped<'_>) -> Result<()> {
    check(experts, g)?;
    let pairs = g.rows * g.top_k;
    if pairs > 65535 {
        return Err(Error::Unsupported(format!("{pairs} pairs are too many for the plain kernel")));
    }
    if pairs == 0 || g.experts == 0 {
        return Ok(());
    }
    let name = match experts {
        Experts::Stored(_) => typed!(g.x.elem(), "grouped_plain"),
        Experts::Packed(_) => typed!(g.x.elem(), "grouped_int4_plain"),
    }?;
    let blocks = [g.outputs.div_ceil(super::gemv::PLAIN_PER_BLOCK) as u32, pairs as u32, 1];
    let grid = Grid { blocks, threads: [THREADS, 1, 1], shared: 0 };
    // SAFETY: as above.
    unsafe { device.launch("grouped_gemm", name, grid, &arguments(experts, g)) }
}

/// What the product costs if `used` experts have rows.
pub fn cost(g: &Grouped<'_>, bits: usize, used: usize) -> Cost {
    let pairs = g.rows * g.top_k;
    let rows_of_x = if g.x_order == Order::Sorted { pairs } else { g.rows };
    let activations = (rows_of_x * g.inputs + pairs * g.outputs) * g.x.elem().size();
    let bytes = used * g.outputs * g.inputs * bits / 8 + activations + pairs * 4;
    Cost { flops: 2.0 * pairs as f64 * g.inputs as f64 * g.outputs as f64, ..Cost::moving(bytes) }
}

fn arguments(experts: Experts<'_>, g: &Grouped<'_>) -> Args {
    let args = Args::new().with(g.out).with(g.x);
    let args = match experts {
        Experts::Stored(weights) => args.with(weights),
        Experts::Packed(weight) => args.with(weight.data).with(weight.scales),
    };
    let args = args.with(g.expert_offsets).with(g.sorted_rows).with(g.experts).with(g.top_k);
    let sorted = |order: Order| i32::from(order == Order::Sorted);
    let args = args.with(sorted(g.x_order)).with(sorted(g.out_order)).with(g.outputs).with(g.inputs);
    match experts {
        Experts::Stored(_) => args,
        Experts::Packed(weight) => args.with(weight.depth).with(weight.group_bits()),
    }
}

fn check(experts: Experts<'_>, g: &Grouped<'_>) -> Result<()> {
    let elem = g.x.elem();
    if g.inputs == 0 || g.outputs == 0 || g.top_k == 0 {
        return Err(Error::Shape(format!(
            "experts of {} by {} for {} choices",
            g.outputs, g.inputs, g.top_k
        )));
    }
    let pairs = g.rows * g.top_k;
    countable(&[g.rows, pairs, g.experts, g.inputs, g.outputs])?;
    g.expert_offsets.expect("expert_offsets", Elem::I32, g.experts + 1)?;
    g.sorted_rows.expect("sorted_rows", Elem::I32, pairs)?;
    g.x.expect("x", elem, if g.x_order == Order::Sorted { pairs } else { g.rows } * g.inputs)?;
    g.out.expect("out", elem, pairs * g.outputs)?;
    match experts {
        Experts::Stored(weights) => weights.expect("weights", elem, g.experts * g.outputs * g.inputs),
        Experts::Packed(weight) if weight.format != Format::Int4 => {
            Err(Error::Unsupported(format!("experts packed as {:?}", weight.format)))
        }
        Experts::Packed(weight) if weight.columns.is_some() => {
            Err(Error::Unsupported("packed experts with columns in an order of their own".to_owned()))
        }
        Experts::Packed(weight) => weight.check(g.experts, g.inputs, g.outputs),
    }
}
