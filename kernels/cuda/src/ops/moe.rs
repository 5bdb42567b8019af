//! Mixture of experts around its grouped product: routing, the order of rows by expert, and the
//! weighted sum of the experts' results.
//!
//! The choices of token t are the pairs `t * top_k + s` with s from 0, the best choice first.

use millrace_backend::{Error, Result};

pub use super::shared::moe::RouterScoreKind;

use super::select::{kernel, typed};
use super::shared::moe::{
    CombineExpertsParams, FEW_EXPERTS, MAX_CHOICES, MAX_EXPERTS, RouteParams, SortPairsParams,
};
use super::shared::platform_h::WARP;
use super::sizes::{countable, int};
use crate::params::Kernel;
use crate::{Device, Elem, Grid, View};

/// Threads of a routing block: the fast kernel has a warp per token, the plain one a thread.
const ROUTE_THREADS: usize = 128;
/// Threads of a block that sums up the experts' results.
const COMBINE_THREADS: usize = 128;

/// The operands of [`route`].
#[derive(Debug, Clone, Copy)]
pub struct RouteTokens<'a> {
    /// Number of tokens; 0 is allowed and does nothing.
    pub tokens: usize,
    /// i32 `[1]`: tokens from this one on are padding and get expert -1. Without it there is no
    /// padding.
    pub count: Option<View<'a>>,
    /// Experts.
    pub experts: usize,
    /// Choices per token, at most `experts`.
    pub top_k: usize,
    /// `[tokens, experts]`, f32, f16 or bf16.
    pub logits: View<'a>,
    /// The kind of scores.
    pub scores: RouterScoreKind,
    /// f32 `[experts]`: added to the scores for the choice only (DeepSeek-V3).
    pub bias: Option<View<'a>>,
    /// f32 `[experts]`: factors on the weights of the chosen experts (Gemma 4).
    pub scales: Option<View<'a>>,
    /// Divide a token's weights by their sum.
    pub normalize: bool,
    /// Multiplies all weights.
    pub factor: f32,
    /// i32 `[tokens, top_k]`: the experts chosen, best first; among equal ones the lower number
    /// comes first.
    pub chosen: View<'a>,
    /// f32 `[tokens, top_k]`.
    pub weights: View<'a>,
}

/// Chooses experts and weights of all tokens. A logit that is NaN is never preferred; a row without
/// a finite logit goes to the first experts in equal parts.
///
/// # Errors
/// [`Error::Shape`] for views or numbers that do not fit, [`Error::Unsupported`] for a
/// type other than f32, f16 and bf16, or an error of the launch.
pub fn route(device: &Device, r: &RouteTokens<'_>) -> Result<()> {
    route_by(device, r, r.experts > MAX_EXPERTS || r.top_k > MAX_CHOICES)
}

/// Does the same by the plain kernel, which takes any number of experts.
///
/// # Errors
/// As for [`route`].
pub fn route_plain(device: &Device, r: &RouteTokens<'_>) -> Result<()> {
    route_by(device, r, true)
}

fn route_by(device: &Device, r: &RouteTokens<'_>, plain: bool) -> Result<()> {
    let pairs = r.tokens.saturating_mul(r.top_k);
    countable(&[r.tokens, r.experts, pairs])?;
    if r.top_k == 0 || r.top_k > r.experts {
        return Err(Error::Shape(format!("{} of {} experts cannot be chosen", r.top_k, r.experts)));
    }
    let elem = r.logits.elem();
    let kernel = match (plain, r.experts <= FEW_EXPERTS) {
        (true, _) => typed!(RouteParams, "moe", "moe_route_plain", elem),
        (false, true) => typed!(RouteParams, "moe", "moe_route", elem),
        (false, false) => typed!(RouteParams, "moe", "moe_route_many", elem),
    }?;
    r.logits.expect("logits", r.logits.elem(), r.tokens * r.experts)?;
    r.chosen.expect("chosen", Elem::I32, pairs)?;
    r.weights.expect("weights", Elem::F32, pairs)?;
    if let Some(bias) = r.bias {
        bias.expect("bias", Elem::F32, r.experts)?;
    }
    if let Some(scales) = r.scales {
        scales.expect("scales", Elem::F32, r.experts)?;
    }
    if let Some(count) = r.count {
        count.expect("count", Elem::I32, 1)?;
    }
    if r.tokens == 0 {
        return Ok(());
    }
    let params = RouteParams {
        chosen: r.chosen.into(),
        weights: r.weights.into(),
        logits: r.logits.into(),
        bias: r.bias.into(),
        scales: r.scales.into(),
        count: r.count.into(),
        tokens: int(r.tokens),
        experts: int(r.experts),
        top_k: int(r.top_k),
        kind: r.scores,
        normalize: i32::from(r.normalize),
        factor: r.factor,
    };
    let per_block = if plain { ROUTE_THREADS } else { ROUTE_THREADS / WARP };
    let grid = Grid::flat(r.tokens.div_ceil(per_block), ROUTE_THREADS as u32);
    // SAFETY: the views were checked against the shapes.
    unsafe { device.launch(kernel, grid, &params) }
}

/// The operands of [`sort`].
#[derive(Debug, Clone, Copy)]
pub struct SortPairs<'a> {
    /// Pairs: tokens times choices. 0 is allowed.
    pub pairs: usize,
    /// Experts.
    pub experts: usize,
    /// i32 `[pairs]`: the expert of each pair, or -1 for none.
    pub chosen: View<'a>,
    /// i32 `[experts + 1]`: the pairs of expert e begin at its element in `sorted_rows`, and
    /// end where the next expert begins.
    pub expert_offsets: View<'a>,
    /// i32 `[pairs]`: pairs by expert, ascending, then -1 for those of no expert. A pair divided by
    /// the choices per token is its token.
    pub sorted_rows: View<'a>,
    /// i32 `[pairs]`: the place of each pair in `sorted_rows`, or -1.
    pub places: View<'a>,
}

/// Orders pairs by expert.
///
/// # Errors
/// [`Error::Shape`] for views that are too short, or an error of the launch.
pub fn sort(device: &Device, s: &SortPairs<'_>) -> Result<()> {
    let (kernel, threads) = match s.pairs {
        0..=4096 => (kernel!(SortPairsParams, "moe", "moe_sort_256"), 256),
        _ => (kernel!(SortPairsParams, "moe", "moe_sort_1024"), 1024),
    };
    sort_by(device, s, kernel, Grid::flat(s.experts, threads))
}

/// Does the same by the plain kernel, in one thread.
///
/// # Errors
/// As for [`sort`].
pub fn sort_plain(device: &Device, s: &SortPairs<'_>) -> Result<()> {
    sort_by(device, s, kernel!(SortPairsParams, "moe", "moe_sort_plain"), Grid::flat(1, 1))
}

fn sort_by(device: &Device, s: &SortPairs<'_>, kernel: Kernel<SortPairsParams>, grid: Grid) -> Result<()> {
    countable(&[s.pairs, s.experts])?;
    s.chosen.expect("chosen", Elem::I32, s.pairs)?;
    s.expert_offsets.expect("expert_offsets", Elem::I32, s.experts + 1)?;
    s.sorted_rows.expect("sorted_rows", Elem::I32, s.pairs)?;
    s.places.expect("places", Elem::I32, s.pairs)?;
    if s.experts == 0 {
        return Err(Error::Shape("there are no experts to order by".to_owned()));
    }
    let params = SortPairsParams {
        expert_offsets: s.expert_offsets.into(),
        sorted_rows: s.sorted_rows.into(),
        places: s.places.into(),
        chosen: s.chosen.into(),
        pairs: int(s.pairs),
        experts: int(s.experts),
    };
    // SAFETY: the views were checked; the kernel writes one place per pair.
    unsafe { device.launch(kernel, grid, &params) }
}

/// The operands of [`combine`].
#[derive(Debug, Clone, Copy)]
pub struct CombineExperts<'a> {
    /// Number of tokens; 0 is allowed and does nothing.
    pub tokens: usize,
    /// Features of a row.
    pub cols: usize,
    /// Choices per token.
    pub top_k: usize,
    /// `[tokens * top_k, cols]`.
    pub y: View<'a>,
    /// i32 `[tokens, top_k]`: the row of `y` of each pair, as [`sort`] computes it. Pairs with a
    /// negative place are left out. Without places, row i is that of pair i.
    pub places: Option<View<'a>>,
    /// f32 `[tokens, top_k]`.
    pub weights: View<'a>,
    /// `[tokens, cols]`: added first, such as a shared expert's rows.
    pub base: Option<View<'a>>,
    /// `[tokens, cols]`, of the type of `y`; may be `base`.
    pub out: View<'a>,
}

/// Computes `out[t] = base[t] + Σ weights[t, s] * y[places[t, s]]`, in the order of s, in f32.
///
/// # Errors
/// As for [`route`].
pub fn combine(device: &Device, c: &CombineExperts<'_>) -> Result<()> {
    combine_by(device, c, false)
}

/// Does the same by the plain kernel, one element at a time.
///
/// # Errors
/// As for [`route`].
pub fn combine_plain(device: &Device, c: &CombineExperts<'_>) -> Result<()> {
    combine_by(device, c, true)
}

fn combine_by(device: &Device, c: &CombineExperts<'_>, plain: bool) -> Result<()> {
    let elem = c.y.elem();
    let pairs = c.tokens.saturating_mul(c.top_k);
    countable(&[c.cols, pairs])?;
    c.y.expect("y", elem, pairs * c.cols)?;
    c.weights.expect("weights", Elem::F32, pairs)?;
    c.out.expect("out", elem, c.tokens * c.cols)?;
    if let Some(places) = c.places {
        places.expect("places", Elem::I32, pairs)?;
    }
    if let Some(base) = c.base {
        base.expect("base", elem, c.tokens * c.cols)?;
    }
    let plain =
        plain || ![Some(c.y), Some(c.out), c.base].iter().flatten().all(|v| v.is_vectorizable(c.cols));
    let kernel = match plain {
        true => typed!(CombineExpertsParams, "moe", "moe_combine_plain", elem),
        false => typed!(CombineExpertsParams, "moe", "moe_combine", elem),
    }?;
    if c.tokens == 0 || c.cols == 0 {
        return Ok(());
    }
    let units = if plain { c.cols } else { c.cols / elem.per_vector() };
    let blocks = [c.tokens as u32, units.div_ceil(COMBINE_THREADS) as u32, 1];
    let grid = Grid { blocks, threads: [COMBINE_THREADS as u32, 1, 1], shared: 0 };
    let params = CombineExpertsParams {
        out: c.out.into(),
        base: c.base.into(),
        y: c.y.into(),
        weights: c.weights.into(),
        places: c.places.into(),
        cols: int(c.cols),
        top_k: int(c.top_k),
    };
    // SAFETY: the views were checked; places are those of pairs by contract.
    unsafe { device.launch(kernel, grid, &params) }
}
