//! The step between the product with Wqkv and attention: bias, norm of heads, rotation, and the
//! write into the paged cache.

use millrace_backend::{Error, QkvLayout, Result, RopeStyle};

use super::paged::PagedKv;
use super::select::{kernel, typed};
use super::shared::platform_h::WARP;
use super::shared::prologue::{PROLOGUE_THREADS, PrologueParams};
use super::shared::rotary_h::{CacheKind, RotaryParams};
use super::sizes::{countable, int};
use crate::params::Kernel;
use crate::{Device, Elem, Grid, View};

/// RMS normalization of heads before the rotation (Qwen3).
#[derive(Debug, Clone, Copy)]
pub struct HeadNorms<'a> {
    /// Scales of query heads, f32 `[head_dim]`, and the epsilon that is added to the mean of
    /// squares.
    pub query: (View<'a>, f32),
    /// The scales and the epsilon for key heads.
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
    /// Sines f32 `[positions, rotary_dim / 2]`.
    pub sin: View<'a>,
    /// Rows of the tables; every position is below.
    pub table_positions: usize,
    /// i32 `[tokens]`.
    pub positions: View<'a>,
    /// i32 `[tokens]`: if given, features `rotary_dim..2 * rotary_dim` are rotated by the angles of
    /// these positions (ChatGLM-6B's 2D positions).
    pub second_positions: Option<View<'a>>,
}

/// Factors on query heads by position.
#[derive(Debug, Clone, Copy)]
pub struct QueryScale<'a> {
    /// f32 `[table_positions]`.
    pub factors: View<'a>,
    /// Number of factors; every position is below.
    pub table_positions: usize,
    /// i32 `[tokens]`: positions in the sequences, which may differ from those of the rotation.
    pub positions: View<'a>,
}

/// The operands of one layer's prologue.
#[derive(Debug, Clone, Copy)]
pub struct Prologue<'a> {
    /// Tokens of the step; 0 is allowed and does nothing.
    pub tokens: usize,
    /// Heads of a row of `qkv`. Without key heads, nothing is cached.
    pub layout: QkvLayout,
    /// `[tokens, heads + 2 * kv_heads, head_dim]`, f32, f16 or bf16. Queries are replaced; keys and
    /// values stay as they are.
    pub qkv: View<'a>,
    /// f32 `[heads + 2 * kv_heads, head_dim]`.
    pub bias: Option<View<'a>>,
    /// Norms of query and key heads.
    pub norms: Option<HeadNorms<'a>>,
    /// Rotation, if positions are rotary in this layer.
    pub rope: Option<Rope<'a>>,
    /// Factors on query heads after the rotation.
    pub query_scale: Option<QueryScale<'a>>,
    /// i32 `[tokens]`: block times block size plus place in the block; negative for a token that is
    /// not cached.
    pub slots: View<'a>,
    /// The cache that keys and values are written to.
    pub kv: PagedKv<'a>,
}

/// Adds the bias to queries and keys, normalizes and rotates them, and stores keys and values of
/// all tokens in the cache. Queries are changed in place. Rows of keys and values are scaled by
/// their largest element if the cache is e4m3 or i8. All arithmetic is in f32 and rounded once.
///
/// # Errors
/// [`Error::Shape`] for views or shapes that do not fit, [`Error::Unsupported`] for types
/// without a kernel, or an error of the launch.
pub fn prologue(device: &Device, p: &Prologue<'_>) -> Result<()> {
    check(p)?;
    match fast_kernel(p) {
        Some(kernel) => launch_fast(device, p, kernel),
        None => launch_plain(device, p),
    }
}

/// Does the same by the plain kernel, which takes any shape.
///
/// # Errors
/// As for [`prologue`].
pub fn prologue_plain(device: &Device, p: &Prologue<'_>) -> Result<()> {
    check(p)?;
    launch_plain(device, p)
}

fn check(p: &Prologue<'_>) -> Result<()> {
    let QkvLayout { kv_heads, head_dim, .. } = p.layout;
    countable(&[p.tokens, p.layout.cols(), p.kv.blocks.saturating_mul(p.kv.block_size)])?;
    let fits_cache = kv_heads == 0 || (p.kv.head_dim == head_dim && p.kv.kv_heads == kv_heads);
    if head_dim == 0 || !fits_cache || p.kv.block_size == 0 {
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
    if let Some(scale) = p.query_scale {
        countable(&[scale.table_positions])?;
        scale.factors.expect("query scale", Elem::F32, scale.table_positions)?;
        scale.positions.expect("positions of query scales", Elem::I32, p.tokens)?;
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

/// The fast kernel, if shapes, types and addresses allow it: halves of heads in vectors of 16
/// bytes, at most a warp per head.
fn fast_kernel(p: &Prologue<'_>) -> Option<Kernel<PrologueParams>> {
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
        && p.qkv.is_vectorizable(head_dim)
        && p.kv.keys.is_vectorizable(head_dim)
        && p.kv.values.is_vectorizable(head_dim);
    if !fits || !aligned {
        return None;
    }
    match (p.qkv.elem(), p.kv.keys.elem()) {
        (Elem::F16, Elem::F16) => Some(kernel!(PrologueParams, "prologue", "prologue_f16")),
        (Elem::BF16, Elem::BF16) => Some(kernel!(PrologueParams, "prologue", "prologue_bf16")),
        (Elem::F16, Elem::E4M3) => Some(kernel!(PrologueParams, "prologue", "prologue_e4m3_f16")),
        (Elem::BF16, Elem::E4M3) => Some(kernel!(PrologueParams, "prologue", "prologue_e4m3_bf16")),
        (Elem::F16, Elem::I8) => Some(kernel!(PrologueParams, "prologue", "prologue_i8_f16")),
        (Elem::BF16, Elem::I8) => Some(kernel!(PrologueParams, "prologue", "prologue_i8_bf16")),
        _ => None,
    }
}

/// The first head that the kernels process: they skip query heads if nothing changes them.
fn first_head(p: &Prologue<'_>) -> usize {
    let changed = p.bias.is_some() || p.norms.is_some() || p.rope.is_some() || p.query_scale.is_some();
    if changed { 0 } else { p.layout.heads }
}

fn launch_fast(device: &Device, p: &Prologue<'_>, kernel: Kernel<PrologueParams>) -> Result<()> {
    let lanes = p.layout.head_dim / (2 * p.qkv.elem().per_vector());
    let lanes_per_head = lanes.next_power_of_two();
    let heads_at_once = PROLOGUE_THREADS / lanes_per_head;
    let rounds = (p.layout.heads + 2 * p.layout.kv_heads - first_head(p)).div_ceil(heads_at_once);
    if p.tokens == 0 || rounds == 0 {
        return Ok(());
    }
    // With few tokens, their heads are spread over the multiprocessors. A head's result does not
    // depend on it.
    let wanted = (4 * device.properties().multiprocessors as usize).div_ceil(p.tokens);
    let blocks = [p.tokens as u32, rounds.min(wanted) as u32, 1];
    let grid = Grid { blocks, threads: [PROLOGUE_THREADS as u32, 1, 1], shared: 0 };
    let params = PrologueParams { lanes_per_head: int(lanes_per_head), ..params(p) };
    // SAFETY: all views were checked against the shapes.
    unsafe { device.launch(kernel, grid, &params) }
}

fn launch_plain(device: &Device, p: &Prologue<'_>) -> Result<()> {
    let kernel = typed!(PrologueParams, "prologue", "prologue_plain", p.qkv.elem())?;
    let heads = p.layout.heads + 2 * p.layout.kv_heads - first_head(p);
    if p.tokens == 0 || heads == 0 {
        return Ok(());
    }
    let grid = Grid {
        blocks: [p.tokens as u32, heads as u32, 1],
        threads: [WARP as u32, 1, 1],
        shared: p.layout.head_dim * size_of::<f32>(),
    };
    // SAFETY: all views were checked against the shapes.
    unsafe { device.launch(kernel, grid, &params(p)) }
}

fn params(p: &Prologue<'_>) -> PrologueParams {
    let (rope, norms) = (p.rope, p.norms);
    let (key_scales, value_scales) = p.kv.scales.unzip();
    PrologueParams {
        qkv: p.qkv.into(),
        bias: p.bias.into(),
        q_norm: norms.map(|n| n.query.0).into(),
        k_norm: norms.map(|n| n.key.0).into(),
        positions: rope.map(|r| r.positions).into(),
        second_positions: rope.and_then(|r| r.second_positions).into(),
        query_scale: p.query_scale.map(|scale| scale.factors).into(),
        scale_positions: p.query_scale.map(|scale| scale.positions).into(),
        slots: p.slots.into(),
        keys: p.kv.keys.into(),
        values: p.kv.values.into(),
        key_scales: key_scales.into(),
        value_scales: value_scales.into(),
        rope: RotaryParams {
            cos: rope.map(|r| r.cos).into(),
            sin: rope.map(|r| r.sin).into(),
            rotary: int(rope.map_or(0, |r| r.rotary_dim)),
            sections: rope.map_or(0, |r| 1 + i32::from(r.second_positions.is_some())),
            interleaved: i32::from(rope.is_some_and(|r| r.style == RopeStyle::Interleaved)),
        },
        q_eps: norms.map_or(0.0, |n| n.query.1),
        k_eps: norms.map_or(0.0, |n| n.key.1),
        heads: int(p.layout.heads),
        kv_heads: int(p.layout.kv_heads),
        head_dim: int(p.layout.head_dim),
        block_size: int(p.kv.block_size),
        first_head: int(first_head(p)),
        lanes_per_head: 1,
        cache: match p.kv.keys.elem() {
            Elem::F32 => CacheKind::CacheF32,
            Elem::F16 => CacheKind::CacheF16,
            Elem::BF16 => CacheKind::CacheBf16,
            Elem::E4M3 => CacheKind::CacheE4m3,
            _ => CacheKind::CacheI8,
        },
    }
}
