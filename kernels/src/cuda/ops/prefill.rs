//! Attention of many queries per sequence on the tensor cores.

use super::attention::{Attention, MOST_BLOCKS, attention_plain};
use crate::cuda::{Args, Device, Elem, Grid, TensorLayout};
use crate::{Error, Result};

/// Tokens of a block of the cache that the fast kernels know.
const BLOCK_TOKENS: usize = 16;
/// Threads of a block of the `mma.sync` kernel, and of Hopper's.
const MMA_THREADS: u32 = 128;
const HOPPER_THREADS: u32 = 384;
/// Queries of a block of Hopper's kernel.
const HOPPER_QUERIES: usize = 128;
/// Its barriers at the end of shared memory, rounded up.
const HOPPER_BARRIERS: usize = 128;

/// Which kernel computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kernel {
    /// The obvious one.
    Plain,
    /// `mma.sync`, for Ampere and later.
    Mma,
    /// `wgmma` and tensor copies, for Hopper.
    Hopper,
}

/// Attention by the fastest kernel that takes these shapes and types on this device. Which one it is depends on the model and the card alone,
/// never on the batch, and a query's result depends on its own sequence alone.
///
/// # Errors
/// [`Error::Shape`] and [`Error::Unsupported`] as the checks of the parts say, or what the launch fails with.
pub fn prefill(device: &Device, attention: &Attention<'_>) -> Result<()> {
    let kernel = if takes_hopper(device, attention) {
        Kernel::Hopper
    } else if takes_mma(attention) {
        Kernel::Mma
    } else {
        Kernel::Plain
    };
    prefill_by(device, kernel, attention)
}

/// Attention by this kernel.
///
/// # Errors
/// As for [`prefill`]; [`Error::Unsupported`] if the kernel does not take these shapes and types.
pub fn prefill_by(device: &Device, kernel: Kernel, attention: &Attention<'_>) -> Result<()> {
    match kernel {
        Kernel::Plain => attention_plain(device, attention),
        Kernel::Mma => by_mma(device, attention),
        Kernel::Hopper => by_hopper(device, attention),
    }
}

fn takes_mma(attention: &Attention<'_>) -> bool {
    let Attention { qkv, stride, kv, out, .. } = attention;
    let elem = qkv.elem();
    matches!(elem, Elem::F16 | Elem::BF16)
        && kv.keys.elem() == elem
        && kv.block_size == BLOCK_TOKENS
        && matches!(kv.head_dim, 64 | 80 | 96 | 128 | 256)
        && qkv.is_vectorisable(*stride)
        && [*out, kv.keys, kv.values].iter().all(|view| view.is_vectorisable(kv.head_dim))
}

/// Whether Hopper's own kernel does it.
fn takes_hopper(device: &Device, attention: &Attention<'_>) -> bool {
    device.properties().capability == (9, 0)
        && takes_mma(attention)
        && !is_biased(attention)
        && matches!(attention.kv.head_dim, 64 | 128 | 256)
}

/// Whether there are terms on single scores, which need a kernel of their own.
fn is_biased(attention: &Attention<'_>) -> bool {
    attention.scores.soft_cap.is_some() || attention.scores.alibi.is_some()
}

fn refused(attention: &Attention<'_>) -> Error {
    let kv = attention.kv;
    Error::Unsupported(format!(
        "heads of {} in blocks of {} with activations of {:?} and a cache of {:?} on tensor cores",
        kv.head_dim,
        kv.block_size,
        attention.qkv.elem(),
        kv.keys.elem()
    ))
}

/// One block per head and slot, of which there are enough for every tile of queries that the sequences may have.
fn grid(attention: &Attention<'_>, queries: usize, threads: u32) -> Result<Grid> {
    let Attention { heads, batch, .. } = attention;
    let slots = batch.tokens / queries + batch.rows;
    if slots > MOST_BLOCKS {
        return Err(Error::Unsupported(format!(
            "{} tokens of {} sequences at once",
            batch.tokens, batch.rows
        )));
    }
    Ok(Grid { blocks: [*heads as u32, slots as u32, 1], threads: [threads, 1, 1], shared: 0 })
}

fn by_mma(device: &Device, attention: &Attention<'_>) -> Result<()> {
    attention.check()?;
    let Attention { qkv, stride, kv, batch, scores, out, .. } = attention;
    if !takes_mma(attention) {
        return Err(refused(attention));
    }
    if attention.is_empty() {
        return Ok(());
    }
    // As `PrefillTile` in prefill.cuh has them; rows of shared memory are padded by 16 bytes.
    let queries = if kv.head_dim > 128 { 64 } else { 128 };
    let keys = if kv.head_dim > 64 { 32 } else { 64 };
    let shared = (queries + 2 * keys) * (kv.head_dim + 8) * 2;
    let grid = grid(attention, queries, MMA_THREADS)?.with_shared(shared);
    let args = Args::new().with(*out).with(*qkv).with(kv.keys).with(kv.values).with(scores.alibi);
    let args = args.with(scores.sinks).with(batch.query_start).with(batch.context).with(batch.tables);
    let args = args.with(scores.prefix).with(batch.rows).with(batch.table_stride).with(attention.window());
    let args = args.with(*stride).with(kv.kv_heads).with(scores.scale);
    let args = args.with(scores.soft_cap.unwrap_or(0.0));
    let (module, name) = mma_kernel(qkv.elem(), kv.head_dim, is_biased(attention));
    // SAFETY: the views were checked to be as long as the kernel takes them to be, and the arguments are its own.
    unsafe { device.launch(module, name, grid, &args) }
}

fn mma_kernel(elem: Elem, head_dim: usize, biased: bool) -> (&'static str, &'static str) {
    macro_rules! of_size {
        ($name:literal) => {
            match (elem, head_dim) {
                (Elem::F16, 64) => concat!($name, "_64_f16"),
                (Elem::F16, 80) => concat!($name, "_80_f16"),
                (Elem::F16, 96) => concat!($name, "_96_f16"),
                (Elem::F16, 128) => concat!($name, "_128_f16"),
                (Elem::F16, _) => concat!($name, "_256_f16"),
                (_, 64) => concat!($name, "_64_bf16"),
                (_, 80) => concat!($name, "_80_bf16"),
                (_, 96) => concat!($name, "_96_bf16"),
                (_, 128) => concat!($name, "_128_bf16"),
                _ => concat!($name, "_256_bf16"),
            }
        };
    }
    if biased { ("prefill_biased", of_size!("prefill_biased")) } else { ("prefill", of_size!("prefill")) }
}

fn by_hopper(device: &Device, attention: &Attention<'_>) -> Result<()> {
    attention.check()?;
    let Attention { heads, qkv, stride, kv, batch, scores, out } = attention;
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
    // Two tiles of keys and two of values, as `HopperTile` has them.
    let keys = if head_dim > 128 { 64 } else { 128 };
    let shared = (HOPPER_QUERIES + 4 * keys) * head_dim * 2 + HOPPER_BARRIERS;
    let grid = grid(attention, HOPPER_QUERIES, HOPPER_THREADS)?.with_shared(shared);
    let args = Args::new().with(*out).with(&q_map).with(&k_map).with(&v_map).with(scores.sinks);
    let args = args.with(batch.query_start).with(batch.context).with(batch.tables).with(scores.prefix);
    let args = args.with(batch.rows).with(batch.table_stride).with(attention.window());
    let args = args.with(kv.kv_heads).with(kv.blocks).with(scores.scale);
    let name = match (elem, head_dim) {
        (Elem::F16, 64) => "prefill_hopper_64_f16",
        (Elem::F16, 128) => "prefill_hopper_128_f16",
        (Elem::F16, _) => "prefill_hopper_256_f16",
        (_, 64) => "prefill_hopper_64_bf16",
        (_, 128) => "prefill_hopper_128_bf16",
        _ => "prefill_hopper_256_bf16",
    };
    // SAFETY: the views were checked to be as long as the kernel takes them to be, and the arguments are its own; the maps outlive the call.
    unsafe { device.launch("sm90_prefill", name, grid, &args) }
}
