//! From the product with Wqkv to attention: bias, norm of heads, rotation, and the write into the paged cache.

use super::paged::PagedKv;
use super::{countable, typed};
use crate::backend::{QkvLayout, RopeStyle};
use crate::cuda::{Args, Cost, Device, Elem, Grid, View};
use crate::{Error, Result};

/// Threads of a block of the fast kernel; the plain one has a warp.
const THREADS: usize = 128;

/// RMS normalisation of heads before the rotation (Qwen3).
#[derive(Debug, Clone, Copy)]
pub struct HeadNorms<'a> {
    /// Scales of query heads, f32 `[head_dim]`, and what is added under the root.
    pub query: (View<'a>, f32),
    /// Likewise for key heads.
    pub key: (View<'a>, f32),
}

/// Rotary position embedding.
#[derive(Debug, Clone, Copy)]
pub struct Rope<'a> {
    /// Pairing of features.
    pub style: RopeStyle,
    /// Features that are rotated by the angles of one position; the rest pass through.
    pub rotary_dim: usize,
    /// Cosines f32 `[positions, rotary_dim / 2]`.
    pub cos: View<'a>,
    /// Sines likewise.
    pub sin: View<'a>,
    /// Rows of the tables; every position is below.
    pub table_positions: usize,
    /// i32 `[tokens]`.
    pub positions: View<'a>,
    /// i32 `[tokens]`: if given, features `rotary_dim..2 * rotary_dim` are rotated by the angles of these (ChatGLM-6B's 2D positions).
    pub second_positions: Option<View<'a>>,
}

/// One layer's prologue.
#[derive(Debug, Clone, Copy)]
pub struct Prologue<'a> {
    /// Tokens of the step; 0 is allowed and does nothing.
    pub tokens: usize,
    /// Heads of a row of `qkv`.
    pub layout: QkvLayout,
    /// `[tokens, heads + 2 * kv_heads, head_dim]`, f32, f16 or bf16. Queries are replaced; keys and values stay as they are.
    pub qkv: View<'a>,
    /// f32 `[heads + 2 * kv_heads, head_dim]`.
    pub bias: Option<View<'a>>,
    /// Norms of query and key heads.
    pub norms: Option<HeadNorms<'a>>,
    /// Rotation, if positions are rotary in this layer.
    pub rope: Option<Rope<'a>>,
    /// i32 `[tokens]`: block times block size plus place in the block; negative for a token that is not cached.
    pub slots: View<'a>,
    /// Where keys and values go.
    pub kv: PagedKv<'a>,
}

/// Biases, norms and rotates queries (in place) and keys, and stores keys and values of all tokens in the cache, scaled by their largest
/// element if it is e4m3 or i8. All in f32, rounded once.
///
/// # Errors
/// [`Error::Shape`] for views or shapes that do not fit, [`Error::Unsupported`] for types without a kernel, or what the launch fails with.
pub fn prologue(device: &Device, p: &Prologue<'_>) -> Result<()> {
    check(p)?;
    match fast_kernel(p) {
        Some(name) => launch_fast(device, p, name),
        None => launch_plain(device, p),
    }
}

/// The same by the obvious kernel, which takes any shape.
///
/// # Errors
/// As for [`prologue`].
pub fn prologue_plain(device: &Device, p: &Prologue<'_>) -> Result<()> {
    check(p)?;
    launch_plain(device, p)
}

/// What the prologue of `tokens` tokens costs: queries read and written, keys and values read and cached.
pub fn cost(elem: Elem, cache: Elem, layout: QkvLayout, tokens: usize) -> Cost {
    let QkvLayout { heads, kv_heads, head_dim } = layout;
    let scales = if cache.size() == 1 { 4 } else { 0 };
    let of_queries = heads * head_dim * 2 * elem.size();
    let of_keys = 2 * kv_heads * (head_dim * (elem.size() + cache.size()) + scales);
    Cost::moving(tokens * (of_queries + of_keys))
}

fn check(p: &Prologue<'_>) -> Result<()> {
    let QkvLayout { kv_heads, head_dim, .. } = p.layout;
    countable(&[p.tokens, p.layout.cols(), p.kv.blocks.saturating_mul(p.kv.block_size)])?;
    if head_dim == 0 || p.kv.head_dim != head_dim || p.kv.kv_heads != kv_heads || p.kv.block_size == 0 {
        return Err(Error::Shape(format!(
            "{kv_heads} key heads of {head_dim} do not go into a cache of {} heads of {} in blocks of {}",
            p.kv.kv_heads, p.kv.head_dim, p.kv.block_size
        )));
    }
    p.qkv.expect("qkv", p.qkv.elem(), p.tokens * p.layout.cols())?;
    p.slots.expect("slots", Elem::I32, p.tokens)?;
    p.kv.check()?;
    if let Some(bias) = p.bias {
        bias.expect("bias", Elem::F32, p.layout.cols())?;
    }
    if let Some(norms) = p.norms {
        norms.query.0.expect("weight of query heads", Elem::F32, head_dim)?;
        norms.key.0.expect("weight of key heads", Elem::F32, head_dim)?;
    }
    let Some(rope) = p.rope else { return Ok(()) };
    let sections = 1 + usize::from(rope.second_positions.is_some());
    if !rope.rotary_dim.is_multiple_of(2) || sections * rope.rotary_dim > head_dim {
        return Err(Error::Shape(format!(
            "{sections} times {} features of a head of {head_dim} cannot be rotated in pairs",
            rope.rotary_dim
        )));
    }
    countable(&[rope.table_positions])?;
    rope.cos.expect("cos", Elem::F32, rope.table_positions * rope.rotary_dim / 2)?;
    rope.sin.expect("sin", Elem::F32, rope.table_positions * rope.rotary_dim / 2)?;
    rope.positions.expect("positions", Elem::I32, p.tokens)?;
    rope.second_positions.map_or(Ok(()), |second| second.expect("second positions", Elem::I32, p.tokens))
}

/// The fast kernel, if shapes, types and addresses allow it: halves of heads in vectors of 16 bytes, at most a warp per head.
fn fast_kernel(p: &Prologue<'_>) -> Option<&'static str> {
    let per_vector = p.qkv.elem().per_vector();
    let head_dim = p.layout.head_dim;
    let rotary = p.rope.map_or(0, |rope| rope.rotary_dim);
    let fits = head_dim.is_multiple_of(2 * per_vector)
        && rotary.is_multiple_of(2 * per_vector)
        && head_dim <= 2 * per_vector * 32;
    let constants = [
        p.bias,
        p.norms.map(|n| n.query.0),
        p.norms.map(|n| n.key.0),
        p.rope.map(|rope| rope.cos),
        p.rope.map(|rope| rope.sin),
    ];
    let aligned = constants.iter().flatten().all(|view| view.address().is_multiple_of(16))
        && p.qkv.is_vectorisable(head_dim)
        && p.kv.keys.is_vectorisable(head_dim)
        && p.kv.values.is_vectorisable(head_dim);
    if !fits || !aligned {
        return None;
    }
    match (p.qkv.elem(), p.kv.keys.elem()) {
        (Elem::F16, Elem::F16) => Some("prologue_f16"),
        (Elem::BF16, Elem::BF16) => Some("prologue_bf16"),
        (Elem::F16, Elem::E4M3) => Some("prologue_e4m3_f16"),
        (Elem::BF16, Elem::E4M3) => Some("prologue_e4m3_bf16"),
        (Elem::F16, Elem::I8) => Some("prologue_i8_f16"),
        (Elem::BF16, Elem::I8) => Some("prologue_i8_bf16"),
        _ => None,
    }
}

/// Query heads that nothing is done to are left out.
fn first_head(p: &Prologue<'_>) -> usize {
    let changed = p.bias.is_some() || p.norms.is_some() || p.rope.is_some();
    if changed { 0 } else { p.layout.heads }
}

fn launch_fast(device: &Device, p: &Prologue<'_>, name: &'static str) -> Result<()> {
    let lanes = p.layout.head_dim / (2 * p.qkv.elem().per_vector());
    let group = lanes.next_power_of_two();
    let rounds = (p.layout.heads + 2 * p.layout.kv_heads - first_head(p)).div_ceil(THREADS / group);
    if p.tokens == 0 || rounds == 0 {
        return Ok(());
    }
    // Few tokens: their heads are spread over the multiprocessors. What a head comes to does not depend on it.
    let wanted = (4 * device.properties().multiprocessors as usize).div_ceil(p.tokens);
    let blocks = [p.tokens as u32, rounds.min(wanted) as u32, 1];
    let grid = Grid { blocks, threads: [THREADS as u32, 1, 1], shared: 0 };
    // SAFETY: everything was checked, and the arguments are those of the kernel.
    unsafe { device.launch("prologue", name, grid, &arguments(p).with(group)) }
}

fn launch_plain(device: &Device, p: &Prologue<'_>) -> Result<()> {
    let name = typed!(p.qkv.elem(), "prologue_plain")?;
    let cache = match p.kv.keys.elem() {
        Elem::F32 => 1usize,
        Elem::F16 => 2,
        Elem::BF16 => 3,
        Elem::E4M3 => 4,
        _ => 5,
    };
    let heads = p.layout.heads + 2 * p.layout.kv_heads - first_head(p);
    if p.tokens == 0 || heads == 0 {
        return Ok(());
    }
    let grid = Grid {
        blocks: [p.tokens as u32, heads as u32, 1],
        threads: [32, 1, 1],
        shared: p.layout.head_dim * size_of::<f32>(),
    };
    // SAFETY: as above.
    unsafe { device.launch("prologue", name, grid, &arguments(p).with(cache)) }
}

fn arguments(p: &Prologue<'_>) -> Args {
    let rope = p.rope;
    let sections = rope.map_or(0, |r| 1 + usize::from(r.second_positions.is_some()));
    let interleaved = rope.is_some_and(|r| r.style == RopeStyle::Interleaved);
    Args::new()
        .with(p.qkv)
        .with(p.bias)
        .with(p.norms.map(|n| n.query.0))
        .with(p.norms.map(|n| n.key.0))
        .with(p.norms.map_or(0.0, |n| n.query.1))
        .with(p.norms.map_or(0.0, |n| n.key.1))
        .with(rope.map(|r| r.cos))
        .with(rope.map(|r| r.sin))
        .with(rope.map_or(0, |r| r.rotary_dim))
        .with(sections)
        .with(usize::from(interleaved))
        .with(rope.map(|r| r.positions))
        .with(rope.and_then(|r| r.second_positions))
        .with(p.slots)
        .with(p.kv.keys)
        .with(p.kv.values)
        .with(p.kv.scales.map(|s| s.0))
        .with(p.kv.scales.map(|s| s.1))
        .with(p.layout.heads)
        .with(p.layout.kv_heads)
        .with(p.layout.head_dim)
        .with(p.kv.block_size)
        .with(first_head(p))
}
