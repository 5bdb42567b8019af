//! Attention over latents: the products with a matrix of each head, rotation and the write into the
//! cache, and plain attention whose values are the last features of its keys.

use millrace_backend::{Error, Result, RopeStyle};

use super::attention::{PagedAttention, attention_of_values};
use super::paged::{AttentionScores, PagedKv, SequenceBatch};
use super::prologue::Rope;
use super::select::typed;
use super::shared::latent::{HEAD_TOKENS, LATENT_THREADS, LatentPrologueParams, LinearHeadsParams};
use super::shared::rotary_h::{CacheKind, RotaryParams};
use super::sizes::{MAX_BLOCKS, countable, int};
use crate::{Device, Elem, Grid, View};

/// A product with a matrix of each head. See `ForwardOps::linear_heads`.
#[derive(Debug, Clone, Copy)]
pub struct LinearHeads<'a> {
    /// Tokens; 0 is allowed and does nothing.
    pub tokens: usize,
    /// Heads.
    pub heads: usize,
    /// Features of a head before the product.
    pub from: usize,
    /// Features of a head that are multiplied, the first ones.
    pub inputs: usize,
    /// Outputs of a head's matrix.
    pub outputs: usize,
    /// `[tokens, heads, from]`.
    pub x: View<'a>,
    /// `[heads, inputs, outputs]`, of the type of `x`.
    pub w: View<'a>,
    /// `[tokens, heads, from - inputs + outputs]`, of the type of `x`. Must not overlap it.
    pub out: View<'a>,
}

impl LinearHeads<'_> {}

/// Multiplies the first features of each head by the head's matrix, and copies the others to the
/// front.
///
/// # Errors
/// [`Error::Shape`] for views that are too short or of another type, or an error of the launch.
pub fn linear_heads(device: &Device, p: &LinearHeads<'_>) -> Result<()> {
    let &LinearHeads { tokens, heads, from, inputs, outputs, x, w, out } = p;
    countable(&[tokens, heads, from, inputs, outputs])?;
    let groups = tokens.div_ceil(HEAD_TOKENS);
    if inputs == 0 || outputs == 0 || inputs > from || heads > MAX_BLOCKS || groups > MAX_BLOCKS {
        return Err(Error::Shape(format!(
            "{tokens} tokens of {heads} heads of {from} features, of which {inputs} give {outputs}"
        )));
    }
    x.expect("x", x.elem(), tokens * heads * from)?;
    w.expect("w", x.elem(), heads * inputs * outputs)?;
    out.expect("out", x.elem(), tokens * heads * (from - inputs + outputs))?;
    if tokens == 0 || heads == 0 {
        return Ok(());
    }
    let blocks = [outputs.div_ceil(LATENT_THREADS) as u32, heads as u32, groups as u32];
    let grid = Grid { blocks, threads: [LATENT_THREADS as u32, 1, 1], shared: 0 };
    let params = LinearHeadsParams {
        out: out.into(),
        x: x.into(),
        w: w.into(),
        tokens: int(tokens),
        from: int(from),
        inputs: int(inputs),
        outputs: int(outputs),
    };
    let kernel = typed!(LinearHeadsParams, "latent", "linear_heads", x.elem())?;
    // SAFETY: the views were checked to be as long as the kernel takes them to be.
    unsafe { device.launch(kernel, grid, &params) }
}

/// A paged cache of latents: one row of features for each token.
#[derive(Debug, Clone, Copy)]
pub struct PagedLatents<'a> {
    /// `[blocks, block_size, key_dim]` of f32, f16 or bf16.
    pub rows: View<'a>,
    /// Blocks of the pool.
    pub blocks: usize,
    /// Tokens per block.
    pub block_size: usize,
    /// Features of a row.
    pub key_dim: usize,
}

impl<'a> PagedLatents<'a> {
    /// The rows as keys of one head. They take the place of the values too.
    fn keys(&self) -> PagedKv<'a> {
        let &PagedLatents { rows, blocks, block_size, key_dim } = self;
        PagedKv { keys: rows, values: rows, scales: None, blocks, block_size, kv_heads: 1, head_dim: key_dim }
    }
}

/// The step before attention over latents.
#[derive(Debug, Clone, Copy)]
pub struct LatentPrologue<'a> {
    /// Tokens of the step.
    pub tokens: usize,
    /// Query heads.
    pub heads: usize,
    /// `[tokens, heads, key_dim]`, rotated in place.
    pub queries: View<'a>,
    /// `[tokens, key_dim]`, of the type of the queries.
    pub latents: View<'a>,
    /// The rotation.
    pub rope: Rope<'a>,
    /// Place of each token in the cache, i32 `[tokens]`; negative for tokens that are not stored.
    pub slots: View<'a>,
    /// The layer's cache.
    pub cache: PagedLatents<'a>,
}

/// Rotates queries and latents, and writes the latents into the cache.
///
/// # Errors
/// [`Error::Shape`] and [`Error::Unsupported`] for views that are too short or of other types, or
/// an error of the launch.
pub fn latent_prologue(device: &Device, p: &LatentPrologue<'_>) -> Result<()> {
    let &LatentPrologue { tokens, heads, queries, latents, rope, slots, cache } = p;
    let (elem, dim) = (queries.elem(), cache.key_dim);
    cache.keys().check()?;
    countable(&[tokens, heads, dim, rope.table_positions])?;
    if !rope.rotary_dim.is_multiple_of(2) || rope.rotary_dim > dim || heads >= MAX_BLOCKS {
        return Err(Error::Shape(format!("{} of {dim} features of {heads} heads rotated", rope.rotary_dim)));
    }
    queries.expect("queries", elem, tokens * heads * dim)?;
    latents.expect("latents", elem, tokens * dim)?;
    slots.expect("slots", Elem::I32, tokens)?;
    rope.cos.expect("cos", Elem::F32, rope.table_positions * rope.rotary_dim / 2)?;
    rope.sin.expect("sin", Elem::F32, rope.table_positions * rope.rotary_dim / 2)?;
    rope.positions.expect("positions", Elem::I32, tokens)?;
    if tokens == 0 {
        return Ok(());
    }
    let params = LatentPrologueParams {
        queries: queries.into(),
        latents: latents.into(),
        positions: rope.positions.into(),
        slots: slots.into(),
        keys: cache.rows.into(),
        rope: RotaryParams {
            cos: rope.cos.into(),
            sin: rope.sin.into(),
            rotary: int(rope.rotary_dim),
            sections: 1,
            interleaved: i32::from(rope.style == RopeStyle::Interleaved),
        },
        heads: int(heads),
        key_dim: int(dim),
        cache: match cache.rows.elem() {
            Elem::F32 => CacheKind::CacheF32,
            Elem::F16 => CacheKind::CacheF16,
            Elem::BF16 => CacheKind::CacheBf16,
            other => return Err(Error::Unsupported(format!("a cache of latents of {other:?}"))),
        },
    };
    let blocks = [tokens as u32, heads as u32 + 1, 1];
    let grid = Grid { blocks, threads: [LATENT_THREADS as u32, 1, 1], shared: 0 };
    let kernel = typed!(LatentPrologueParams, "latent", "latent_prologue", elem)?;
    // SAFETY: the views were checked to be as long as the kernel takes them to be.
    unsafe { device.launch(kernel, grid, &params) }
}

/// The attention of all queries of a step over the latents of their sequences, which include those
/// of the step.
#[derive(Debug, Clone, Copy)]
pub struct LatentAttention<'a> {
    /// Query heads.
    pub heads: usize,
    /// Number of last features of a latent that are its value.
    pub value_dim: usize,
    /// `[tokens, heads, key_dim]`.
    pub queries: View<'a>,
    /// The layer's cache, with this step's latents in it.
    pub cache: PagedLatents<'a>,
    /// The sequences.
    pub batch: SequenceBatch<'a>,
    /// The scores.
    pub scores: AttentionScores<'a>,
    /// `[tokens, heads, value_dim]`, of the type of the queries. Must not overlap them.
    pub out: View<'a>,
}

/// Computes attention over latents by the plain kernel, which is slow.
///
/// # Errors
/// [`Error::Shape`] and [`Error::Unsupported`] as the checks of the parts say, or an error of the
/// launch.
pub fn latent_attention(device: &Device, p: &LatentAttention<'_>) -> Result<()> {
    let keys = p.cache.keys();
    let attention = PagedAttention {
        heads: p.heads,
        qkv: p.queries,
        stride: p.heads * keys.head_dim,
        kv: keys,
        batch: p.batch,
        scores: p.scores,
        out: p.queries,
    };
    attention_of_values(device, &attention, p.value_dim, p.out)
}
