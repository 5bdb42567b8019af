//! Attention of many queries per sequence on the tensor cores.

use millrace_backend::{Error, Result};

use super::attention::{PagedAttention, attention_plain};
use super::select::halved;
use super::shared::kv_h::BLOCK_TOKENS;
use super::shared::prefill_h::{PREFILL_THREADS, PrefillParams, prefill_queries, prefill_shared_bytes};
use super::shared::sm90_prefill::{BLOCK_QUERIES, HOPPER_THREADS, HopperPrefillParams, hopper_shared_bytes};
use super::sizes::{MAX_BLOCKS, int};
use crate::params::Kernel;
use crate::{Device, Elem, Grid, TensorLayout};

/// A kind of kernel for prefill attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrefillKernel {
    /// The plain kernel, for every shape and GPU.
    Plain,
    /// `mma.sync`, for Ampere and later.
    Mma,
    /// `wgmma` and tensor copies, for Hopper.
    Hopper,
}

/// Computes attention by the fastest kernel that takes these shapes and types on this device.
///
/// The choice depends on the model and the GPU alone, never on the batch, and a query's result
/// depends on its own sequence alone.
///
/// # Errors
/// [`Error::Shape`] and [`Error::Unsupported`] as the checks of the parts say, or an error
/// of the launch.
pub fn prefill(device: &Device, attention: &PagedAttention<'_>) -> Result<()> {
    let kernel = if takes_hopper(device, attention) {
        PrefillKernel::Hopper
    } else if takes_mma(attention) {
        PrefillKernel::Mma
    } else {
        PrefillKernel::Plain
    };
    prefill_by(device, kernel, attention)
}

/// Computes attention by this kernel.
///
/// # Errors
/// As for [`prefill`]; [`Error::Unsupported`] if the kernel does not take these shapes and types.
pub fn prefill_by(device: &Device, kernel: PrefillKernel, attention: &PagedAttention<'_>) -> Result<()> {
    match kernel {
        PrefillKernel::Plain => attention_plain(device, attention),
        PrefillKernel::Mma => by_mma(device, attention),
        PrefillKernel::Hopper => by_hopper(device, attention),
    }
}

fn takes_mma(attention: &PagedAttention<'_>) -> bool {
    let PagedAttention { qkv, stride, kv, out, .. } = attention;
    let elem = qkv.elem();
    matches!(elem, Elem::F16 | Elem::BF16)
        && kv.keys.elem() == elem
        && kv.block_size == BLOCK_TOKENS
        && matches!(kv.head_dim, 64 | 80 | 96 | 128 | 256)
        && qkv.is_vectorizable(*stride)
        && [*out, kv.keys, kv.values].iter().all(|view| view.is_vectorizable(kv.head_dim))
}

/// Whether the kernel for Hopper takes these shapes and types.
fn takes_hopper(device: &Device, attention: &PagedAttention<'_>) -> bool {
    device.properties().runs_hopper_kernels
        && takes_mma(attention)
        && !is_biased(attention)
        && matches!(attention.kv.head_dim, 64 | 128 | 256)
}

/// Whether single scores are changed by a soft cap or ALiBi, which need a kernel of their own.
fn is_biased(attention: &PagedAttention<'_>) -> bool {
    attention.scores.soft_cap.is_some() || attention.scores.alibi.is_some()
}

fn refused(attention: &PagedAttention<'_>) -> Error {
    let kv = attention.kv;
    Error::Unsupported(format!(
        "heads of {} in blocks of {} with activations of {:?} and a cache of {:?} on tensor cores",
        kv.head_dim,
        kv.block_size,
        attention.qkv.elem(),
        kv.keys.elem()
    ))
}

/// A grid of one block per head and slot. There are enough slots for every tile of queries that the
/// sequences may have.
fn grid(attention: &PagedAttention<'_>, queries: usize, threads: u32) -> Result<Grid> {
    let PagedAttention { heads, batch, .. } = attention;
    let slots = batch.tokens / queries + batch.rows;
    if slots > MAX_BLOCKS {
        return Err(Error::Unsupported(format!(
            "{} tokens of {} sequences at once",
            batch.tokens, batch.rows
        )));
    }
    Ok(Grid { blocks: [*heads as u32, slots as u32, 1], threads: [threads, 1, 1], shared: 0 })
}

fn by_mma(device: &Device, attention: &PagedAttention<'_>) -> Result<()> {
    attention.check()?;
    let PagedAttention { qkv, stride, kv, batch, scores, out, .. } = attention;
    if !takes_mma(attention) {
        return Err(refused(attention));
    }
    if attention.is_empty() {
        return Ok(());
    }
    let grid = grid(attention, prefill_queries(kv.head_dim), PREFILL_THREADS as u32)?;
    let grid = grid.with_shared(prefill_shared_bytes(kv.head_dim));
    let kernel = mma_kernel(qkv.elem(), kv.head_dim, is_biased(attention))?;
    let params = PrefillParams {
        out: (*out).into(),
        qkv: (*qkv).into(),
        keys: kv.keys.into(),
        values: kv.values.into(),
        sequences: batch.params(scores),
        scores: scores.params(),
        qkv_stride: int(*stride),
        kv_heads: int(kv.kv_heads),
    };
    // SAFETY: the views were checked to be as long as the kernel takes them to be.
    unsafe { device.launch(kernel, grid, &params) }
}

fn mma_kernel(elem: Elem, head_dim: usize, biased: bool) -> Result<Kernel<PrefillParams>> {
    match (biased, head_dim) {
        (false, 64) => halved!(PrefillParams, "prefill", "prefill_64", elem),
        (false, 80) => halved!(PrefillParams, "prefill", "prefill_80", elem),
        (false, 96) => halved!(PrefillParams, "prefill", "prefill_96", elem),
        (false, 128) => halved!(PrefillParams, "prefill", "prefill_128", elem),
        (false, _) => halved!(PrefillParams, "prefill", "prefill_256", elem),
        (true, 64) => halved!(PrefillParams, "prefill_biased", "prefill_biased_64", elem),
        (true, 80) => halved!(PrefillParams, "prefill_biased", "prefill_biased_80", elem),
        (true, 96) => halved!(PrefillParams, "prefill_biased", "prefill_biased_96", elem),
        (true, 128) => halved!(PrefillParams, "prefill_biased", "prefill_biased_128", elem),
        (true, _) => halved!(PrefillParams, "prefill_biased", "prefill_biased_256", elem),
    }
}

fn by_hopper(device: &Device, attention: &PagedAttention<'_>) -> Result<()> {
    attention.check()?;
    let PagedAttention { heads, qkv, stride, kv, batch, scores, out } = attention;
    if !takes_hopper(device, attention) {
        return Err(refused(attention));
    }
    if attention.is_empty() {
        return Ok(());
    }
    let (elem, head_dim) = (qkv.elem(), kv.head_dim);
    let q_map = device.tensor_map(&TensorLayout {
        at: qkv.address(),
        elem,
        sizes: &[(heads * head_dim) as u64, batch.tokens as u64],
        strides: &[(stride * 2) as u64],
        tile: &[64, 64],
    })?;
    let row = (head_dim * 2) as u64;
    let sizes = [head_dim as u64, BLOCK_TOKENS as u64, kv.kv_heads as u64, kv.blocks as u64];
    let strides = [row, row * sizes[1], row * sizes[1] * sizes[2]];
    let tile = [64, BLOCK_TOKENS as u32, 1, 1];
    let cached = |at| TensorLayout { at, elem, sizes: &sizes, strides: &strides, tile: &tile };
    let k_map = device.tensor_map(&cached(kv.keys.address()))?;
    let v_map = device.tensor_map(&cached(kv.values.address()))?;
    let grid = grid(attention, BLOCK_QUERIES, HOPPER_THREADS as u32)?;
    let grid = grid.with_shared(hopper_shared_bytes(head_dim));
    let params = HopperPrefillParams {
        q_map,
        k_map,
        v_map,
        out: (*out).into(),
        sequences: batch.params(scores),
        scores: scores.params(),
        kv_heads: int(kv.kv_heads),
        blocks: int(kv.blocks),
    };
    let kernel = match head_dim {
        64 => halved!(HopperPrefillParams, "sm90_prefill", "prefill_hopper_64", elem),
        128 => halved!(HopperPrefillParams, "sm90_prefill", "prefill_hopper_128", elem),
        _ => halved!(HopperPrefillParams, "sm90_prefill", "prefill_hopper_256", elem),
    }?;
    // SAFETY: the views were checked to be as long as the kernel takes them to be, and the maps
    // describe them.
    unsafe { device.launch(kernel, grid, &params) }
}
