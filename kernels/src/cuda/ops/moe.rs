//! Mixture of experts around its grouped product: routing, the order of rows by expert, the weighted sum of what the experts return.
//!
//! The choices of token t are the pairs `t * top_k + s`, s from 0, the best first.

use super::{countable, typed};
use crate::cuda::{Args, Cost, Device, Elem, Grid, View};
use crate::{Error, Result};

/// What the fast routing can hold: experts, and choices per token.
const MOST_EXPERTS: usize = 512;
const MOST_CHOICES: usize = 32;
/// Threads of a routing block: a warp per token, or in the plain version a thread.
const ROUTE_THREADS: u32 = 128;

/// How logits become the weights of experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scores {
    /// The softmax over all experts (Mixtral, Qwen3).
    Softmax,
    /// Each by itself (DeepSeek-V3, Llama 4).
    Sigmoid,
}

/// Where tokens go.
#[derive(Debug, Clone, Copy)]
pub struct Route<'a> {
    /// Number of tokens; 0 is allowed and does nothing.
    pub tokens: usize,
    /// i32 `[1]`: tokens from this one on are padding and get expert -1. All count if there is none.
    pub count: Option<View<'a>>,
    /// Experts.
    pub experts: usize,
    /// Choices per token, at most `experts`.
    pub top_k: usize,
    /// `[tokens, experts]`, f32, f16 or bf16.
    pub logits: View<'a>,
    /// Kind of scores.
    pub scores: Scores,
    /// f32 `[experts]`: added to the scores for the choice only (DeepSeek-V3).
    pub bias: Option<View<'a>>,
    /// Divide a token's weights by their sum.
    pub normalise: bool,
    /// Multiplies all weights.
    pub factor: f32,
    /// i32 `[tokens, top_k]`: the experts chosen, best first; of equals the lower number.
    pub chosen: View<'a>,
    /// f32 `[tokens, top_k]`.
    pub weights: View<'a>,
}

/// Chooses experts and weights of all tokens. A logit that is not a number is never preferred; a row without a finite logit goes to the first
/// experts in equal parts.
///
/// # Errors
/// [`Error::Shape`] for views or numbers that do not fit, [`Error::Unsupported`] for a type other than f32, f16 and bf16, or what the
/// launch fails with.
pub fn route(device: &Device, r: &Route<'_>) -> Result<()> {
    route_by(device, r, r.experts > MOST_EXPERTS || r.top_k > MOST_CHOICES)
}

/// The same by the obvious kernel, which takes any number of experts.
///
/// # Errors
/// As for [`route`].
pub fn route_plain(device: &Device, r: &Route<'_>) -> Result<()> {
    route_by(device, r, true)
}

fn route_by(device: &Device, r: &Route<'_>, plain: bool) -> Result<()> {
    let pairs = r.tokens.saturating_mul(r.top_k);
    countable(&[r.tokens, r.experts, pairs])?;
    if r.top_k == 0 || r.top_k > r.experts {
        return Err(Error::Shape(format!("{} of {} experts cannot be chosen", r.top_k, r.experts)));
    }
    let elem = r.logits.elem();
    let name = match (plain, r.experts <= 128) {
        (true, _) => typed!(elem, "moe_route_plain"),
        (false, true) => typed!(elem, "moe_route"),
        (false, false) => typed!(elem, "moe_route_many"),
    }?;
    r.logits.expect("logits", r.logits.elem(), r.tokens * r.experts)?;
    r.chosen.expect("chosen", Elem::I32, pairs)?;
    r.weights.expect("weights", Elem::F32, pairs)?;
    if let Some(bias) = r.bias {
        bias.expect("bias", Elem::F32, r.experts)?;
    }
    if let Some(count) = r.count {
        count.expect("count", Elem::I32, 1)?;
    }
    if r.tokens == 0 {
        return Ok(());
    }
    let args = Args::new()
        .with(r.chosen)
        .with(r.weights)
        .with(r.logits)
        .with(r.bias)
        .with(r.count)
        .with(r.tokens)
        .with(r.experts)
        .with(r.top_k)
        .with(r.scores as usize)
        .with(usize::from(r.normalise))
        .with(r.factor);
    let per_block = if plain { ROUTE_THREADS as usize } else { ROUTE_THREADS as usize / 32 };
    let grid = Grid::flat(r.tokens.div_ceil(per_block), ROUTE_THREADS);
    // SAFETY: the views were checked, and the arguments are those of the kernel chosen.
    unsafe { device.launch("moe", name, grid, &args) }
}

/// The order of pairs by expert.
#[derive(Debug, Clone, Copy)]
pub struct Sort<'a> {
    /// Pairs: tokens times choices. 0 is allowed.
    pub pairs: usize,
    /// Experts.
    pub experts: usize,
    /// i32 `[pairs]`: each one's expert, or -1 for none.
    pub chosen: View<'a>,
    /// i32 `[experts + 1]`: pairs of expert e are `sorted_rows[expert_offsets[e]..expert_offsets[e + 1]]`.
    pub expert_offsets: View<'a>,
    /// i32 `[pairs]`: pairs by expert, ascending; then -1 for those of no expert. A pair's token is it divided by the choices per token.
    pub sorted_rows: View<'a>,
    /// i32 `[pairs]`: where each pair lies in `sorted_rows`, or -1.
    pub places: View<'a>,
}

/// Orders pairs by expert.
///
/// # Errors
/// [`Error::Shape`] for views that are too short, or what the launch fails with.
pub fn sort(device: &Device, s: &Sort<'_>) -> Result<()> {
    let (name, threads) = if s.pairs <= 4096 { ("moe_sort_256", 256) } else { ("moe_sort_1024", 1024) };
    sort_by(device, s, name, Grid::flat(s.experts, threads))
}

/// The same by the obvious kernel, one thread.
///
/// # Errors
/// As for [`sort`].
pub fn sort_plain(device: &Device, s: &Sort<'_>) -> Result<()> {
    sort_by(device, s, "moe_sort_plain", Grid::flat(1, 1))
}

fn sort_by(device: &Device, s: &Sort<'_>, name: &'static str, grid: Grid) -> Result<()> {
    countable(&[s.pairs, s.experts])?;
    s.chosen.expect("chosen", Elem::I32, s.pairs)?;
    s.expert_offsets.expect("expert_offsets", Elem::I32, s.experts + 1)?;
    s.sorted_rows.expect("sorted_rows", Elem::I32, s.pairs)?;
    s.places.expect("places", Elem::I32, s.pairs)?;
    if s.experts == 0 {
        return Err(Error::Shape("there are no experts to order by".to_owned()));
    }
    let args = Args::new().with(s.expert_offsets).with(s.sorted_rows).with(s.places).with(s.chosen);
    // SAFETY: the views were checked; the kernel writes a place per pair.
    unsafe { device.launch("moe", name, grid, &args.with(s.pairs).with(s.experts)) }
}

/// What the experts returned.
#[derive(Debug, Clone, Copy)]
pub struct Combine<'a> {
    /// Number of tokens; 0 is allowed and does nothing.
    pub tokens: usize,
    /// Features of a row.
    pub cols: usize,
    /// Choices per token.
    pub top_k: usize,
    /// `[tokens * top_k, cols]`.
    pub y: View<'a>,
    /// i32 `[tokens, top_k]`: the row of `y` of each pair, as [`sort`] made it; negative counts as nothing. Row i is pair i if there are none.
    pub places: Option<View<'a>>,
    /// f32 `[tokens, top_k]`.
    pub weights: View<'a>,
    /// `[tokens, cols]`: added first, such as a shared expert's rows.
    pub base: Option<View<'a>>,
    /// `[tokens, cols]`, of the type of `y`; may be `base`.
    pub out: View<'a>,
}

/// `out[t] = base[t] + Σ weights[t, s] * y[places[t, s]]`, in the order of s, in f32.
///
/// # Errors
/// As for [`route`].
pub fn combine(device: &Device, c: &Combine<'_>) -> Result<()> {
    combine_by(device, c, false)
}

/// The same by the obvious kernel, one element at a time.
///
/// # Errors
/// As for [`route`].
pub fn combine_plain(device: &Device, c: &Combine<'_>) -> Result<()> {
    combine_by(device, c, true)
}

fn combine_by(device: &Device, c: &Combine<'_>, plain: bool) -> Result<()> {
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
        plain || ![Some(c.y), Some(c.out), c.base].iter().flatten().all(|v| v.is_vectorisable(c.cols));
    let name = if plain { typed!(elem, "moe_combine_plain") } else { typed!(elem, "moe_combine") }?;
    if c.tokens == 0 || c.cols == 0 {
        return Ok(());
    }
    let threads = 128;
    let units = if plain { c.cols } else { c.cols / elem.per_vector() };
    let blocks = [c.tokens as u32, units.div_ceil(threads) as u32, 1];
    let grid = Grid { blocks, threads: [threads as u32, 1, 1], shared: 0 };
    let args = Args::new().with(c.out).with(c.base).with(c.y).with(c.weights).with(c.places);
    // SAFETY: the views were checked; places are those of pairs by contract.
    unsafe { device.launch("moe", name, grid, &args.with(c.cols).with(c.top_k)) }
}

/// What [`route`] costs.
pub fn route_cost(elem: Elem, tokens: usize, experts: usize, top_k: usize) -> Cost {
    Cost::moving(tokens * (experts * elem.size() + top_k * 8))
}

/// What [`sort`] costs at least.
pub fn sort_cost(pairs: usize, experts: usize) -> Cost {
    Cost::moving(3 * 4 * pairs + 4 * experts)
}

/// What [`combine`] costs.
pub fn combine_cost(elem: Elem, tokens: usize, cols: usize, top_k: usize, with_base: bool) -> Cost {
    let rows = top_k + 1 + usize::from(with_base);
    let bytes = tokens * (rows * cols * elem.size() + top_k * 8);
    Cost { flops: (2 * tokens * top_k * cols) as f64, ..Cost::moving(bytes) }
}
