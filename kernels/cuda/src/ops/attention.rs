//! Attention over a paged cache: the operands that all its kernels take, and the plain kernel,
//! which takes every shape.

use millrace_backend::{Error, KeyWindow, Result};

use super::paged::{AttentionScores, PagedKv, SequenceBatch};
use super::select::kernel;
use super::shared::attention_plain::{PLAIN_QUERIES, PlainAttentionParams, plain_attention_shared_bytes};
use super::shared::platform_h::WARP;
use super::sizes::{MAX_BLOCKS, countable, int};
use crate::params::Kernel;
use crate::{Device, Elem, Grid, View};

/// The attention of all queries of a step over the keys of their sequences, which include those of
/// the step.
#[derive(Debug, Clone, Copy)]
pub struct PagedAttention<'a> {
    /// Query heads, a multiple of the key/value heads.
    pub heads: usize,
    /// The fused projection: `[tokens, stride]`, of which the queries are the first `heads *
    /// head_dim`.
    pub qkv: View<'a>,
    /// Elements from one token's queries to the next one's.
    pub stride: usize,
    /// The layer's cache, with this step's keys and values in it.
    pub kv: PagedKv<'a>,
    /// The sequences.
    pub batch: SequenceBatch<'a>,
    /// Scores and features.
    pub scores: AttentionScores<'a>,
    /// `[tokens, heads * head_dim]`, of the type of `qkv`. Must not overlap it.
    pub out: View<'a>,
}

impl PagedAttention<'_> {
    /// Checks shapes and types.
    ///
    /// # Errors
    /// [`Error::Shape`] for views that are too short and numbers that do not fit together,
    /// [`Error::Unsupported`] for types.
    pub(crate) fn check(&self) -> Result<()> {
        let PagedAttention { heads, qkv, stride, kv, batch, scores, out } = self;
        kv.check()?;
        batch.check()?;
        countable(&[*heads, *stride, batch.max_queries, heads * kv.head_dim])?;
        if kv.kv_heads == 0 || *heads == 0 || !heads.is_multiple_of(kv.kv_heads) {
            return Err(Error::Shape(format!("{heads} heads cannot share {} key/value heads", kv.kv_heads)));
        }
        if kv.head_dim == 0 || kv.block_size == 0 {
            return Err(Error::Shape("heads and blocks must not be empty".to_owned()));
        }
        if *stride < heads * kv.head_dim {
            return Err(Error::Shape(format!("rows of {stride} hold no {heads} heads of {}", kv.head_dim)));
        }
        if batch.max_context > batch.table_stride * kv.block_size {
            return Err(Error::Shape(format!(
                "tables of {} blocks of {} hold no {} keys",
                batch.table_stride, kv.block_size, batch.max_context
            )));
        }
        if !(scores.scale > 0.0 && scores.scale.is_finite()) {
            return Err(Error::Shape(format!("a scale of {}", scores.scale)));
        }
        if let Some(cap) = scores.soft_cap
            && !(cap > 0.0 && cap.is_finite())
        {
            return Err(Error::Shape(format!("a soft cap of {cap}")));
        }
        if scores.window.is_some_and(KeyWindow::is_empty) {
            return Err(Error::Shape("a window of no keys".to_owned()));
        }
        if matches!(scores.window, Some(KeyWindow::Around(_))) {
            return Err(Error::Unsupported("windows in both directions; only the CPU has them".to_owned()));
        }
        let elem = qkv.elem();
        if batch.tokens > 0 {
            qkv.expect("qkv", elem, (batch.tokens - 1) * stride + heads * kv.head_dim)?;
        }
        out.expect("out", elem, batch.tokens * heads * kv.head_dim)?;
        for (name, per_head) in [("alibi", scores.alibi), ("sinks", scores.sinks)] {
            if let Some(view) = per_head {
                view.expect(name, Elem::F32, *heads)?;
            }
        }
        if let Some(prefix) = scores.prefix {
            prefix.expect("prefix", Elem::I32, batch.rows)?;
        }
        Ok(())
    }

    /// Whether there is nothing to do.
    pub(crate) fn is_empty(&self) -> bool {
        self.batch.tokens == 0 || self.batch.rows == 0 || self.batch.max_queries == 0
    }
}

/// Computes attention by the plain kernel, which takes any head size, block size and type.
///
/// # Errors
/// [`Error::Shape`] and [`Error::Unsupported`] as the checks of the parts say, or an error
/// of the launch.
pub fn attention_plain(device: &Device, attention: &PagedAttention<'_>) -> Result<()> {
    attention.check()?;
    if attention.is_empty() {
        return Ok(());
    }
    let dim = attention.kv.head_dim;
    launch_plain(device, attention, ValueRows { values: attention.kv.values, dim, stride: dim })
}

/// Computes attention over latents by the plain kernel: the last `dim` features of each key are its
/// value. `out` is `[tokens, heads, dim]`; that of `attention` is not used.
pub(super) fn attention_of_values(
    device: &Device,
    attention: &PagedAttention<'_>,
    dim: usize,
    out: View<'_>,
) -> Result<()> {
    let PagedAttention { kv: keys, qkv: queries, .. } = *attention;
    let stride = keys.head_dim;
    if dim == 0 || dim > stride {
        return Err(Error::Shape(format!("values of {dim} of {stride} features")));
    }
    // The output is checked here, because its rows are shorter than those of the queries.
    out.expect("out", queries.elem(), attention.batch.tokens * attention.heads * dim)?;
    attention.check()?;
    if attention.is_empty() {
        return Ok(());
    }
    let values = keys.keys.slice(stride - dim..keys.keys.len());
    launch_plain(device, &PagedAttention { out, ..*attention }, ValueRows { values, dim, stride })
}

/// The rows of the values in the cache.
struct ValueRows<'a> {
    /// From the first row on.
    values: View<'a>,
    /// Features of a row.
    dim: usize,
    /// Elements from one row to the next one.
    stride: usize,
}

/// Launches the plain kernel. Shapes and types were checked.
fn launch_plain(device: &Device, attention: &PagedAttention<'_>, rows: ValueRows<'_>) -> Result<()> {
    let PagedAttention { heads, qkv, stride, kv, batch, scores, out } = attention;
    let kernel = plain_kernel(kv.keys.elem(), qkv.elem())?;
    let shared = plain_attention_shared_bytes(kv.head_dim);
    let most = device.properties().shared_per_block;
    if shared > most {
        return Err(Error::Unsupported(format!("heads of {} features", kv.head_dim)));
    }
    if *heads > MAX_BLOCKS || batch.rows > MAX_BLOCKS {
        return Err(Error::Unsupported(format!("{heads} heads in {} sequences", batch.rows)));
    }
    let blocks = [batch.max_queries.div_ceil(PLAIN_QUERIES) as u32, *heads as u32, batch.rows as u32];
    let grid = Grid { blocks, threads: [(PLAIN_QUERIES * WARP) as u32, 1, 1], shared };
    let (key_scales, value_scales) = kv.scales.unzip();
    let params = PlainAttentionParams {
        out: (*out).into(),
        qkv: (*qkv).into(),
        keys: kv.keys.into(),
        values: rows.values.into(),
        key_scales: key_scales.into(),
        value_scales: value_scales.into(),
        sequences: batch.params(scores),
        scores: scores.params(),
        qkv_stride: int(*stride),
        kv_heads: int(kv.kv_heads),
        head_dim: int(kv.head_dim),
        value_dim: int(rows.dim),
        value_stride: int(rows.stride),
        block_size: int(kv.block_size),
    };
    // SAFETY: the views were checked to be as long as the kernel takes them to be.
    unsafe { device.launch(kernel, grid, &params) }
}

fn plain_kernel(cached: Elem, activations: Elem) -> Result<Kernel<PlainAttentionParams>> {
    use Elem::{BF16, E4M3, F16, F32, I8};
    macro_rules! kernels {
        ($($cached:ident $activations:ident $name:literal),*) => {
            match (cached, activations) {
                $(($cached, $activations) => Ok(kernel!(PlainAttentionParams, "attention_plain", $name)),)*
                (cached, activations) => Err(Error::Unsupported(format!(
                    "activations of {activations:?} on a cache of {cached:?}"
                ))),
            }
        };
    }
    kernels!(
        F32 F32 "attention_plain_f32_f32",
        F32 F16 "attention_plain_f32_f16",
        F32 BF16 "attention_plain_f32_bf16",
        F16 F32 "attention_plain_f16_f32",
        F16 F16 "attention_plain_f16_f16",
        F16 BF16 "attention_plain_f16_bf16",
        BF16 F32 "attention_plain_bf16_f32",
        BF16 F16 "attention_plain_bf16_f16",
        BF16 BF16 "attention_plain_bf16_bf16",
        E4M3 F32 "attention_plain_e4m3_f32",
        E4M3 F16 "attention_plain_e4m3_f16",
        E4M3 BF16 "attention_plain_e4m3_bf16",
        I8 F32 "attention_plain_i8_f32",
        I8 F16 "attention_plain_i8_f16",
        I8 BF16 "attention_plain_i8_bf16"
    )
}
