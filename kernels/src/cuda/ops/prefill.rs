//! Attention of many queries per sequence on the tensor cores.

use super::attention::{Attention, MOST_BLOCKS, attention_plain};
use crate::cuda::{Args, Device, Elem, Grid};
use crate::{Error, Result};

/// Tokens of a block of the cache that the fast kernels know.
const BLOCK_TOKENS: usize = 16;
const THREADS: u32 = 128;

/// Which kernel computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kernel {
    /// The obvious one.
    Plain,
    /// `mma.sync`, for Ampere and later.
    Mma,
}

/// Attention by the fastest kernel that takes these shapes and types on this device. Which one it is depends on the model and the card alone,
/// never on the batch, and a query's result depends on its own sequence alone.
///
/// # Errors
/// [`Error::Shape`] and [`Error::Unsupported`] as the checks of the parts say, or what the launch fails with.
pub fn prefill(device: &Device, attention: &Attention<'_>) -> Result<()> {
    let kernel = if takes_mma(attention) { Kernel::Mma } else { Kernel::Plain };
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

fn by_mma(device: &Device, attention: &Attention<'_>) -> Result<()> {
    attention.check()?;
    let Attention { heads, qkv, stride, kv, batch, scores, out } = attention;
    if !takes_mma(attention) {
        return Err(Error::Unsupported(format!(
            "heads of {} in blocks of {} with activations of {:?} and a cache of {:?} on tensor cores",
            kv.head_dim,
            kv.block_size,
            qkv.elem(),
            kv.keys.elem()
        )));
    }
    if attention.is_empty() {
        return Ok(());
    }
    let biased = scores.soft_cap.is_some() || scores.alibi.is_some();
    let tile = Tile::of(kv.head_dim);
    let slots = batch.tokens / tile.queries + batch.rows;
    if slots > MOST_BLOCKS {
        return Err(Error::Unsupported(format!(
            "{} tokens of {} sequences at once",
            batch.tokens, batch.rows
        )));
    }
    let grid = Grid {
        blocks: [*heads as u32, slots as u32, 1],
        threads: [THREADS, 1, 1],
        shared: tile.shared(kv.head_dim),
    };
    let args = Args::new().with(*out).with(*qkv).with(kv.keys).with(kv.values).with(scores.alibi);
    let args = args.with(scores.sinks).with(batch.query_start).with(batch.context).with(batch.tables);
    let args = args.with(scores.prefix).with(batch.rows).with(batch.table_stride).with(attention.window());
    let args = args.with(*stride).with(kv.kv_heads).with(scores.scale);
    let args = args.with(scores.soft_cap.unwrap_or(0.0));
    let (module, name) = mma_kernel(qkv.elem(), kv.head_dim, biased);
    // SAFETY: the views were checked to be as long as the kernel takes them to be, and the arguments are its own.
    unsafe { device.launch(module, name, grid, &args) }
}

/// Queries and keys that a block works on at a time, as `PrefillTile` in `prefill.cuh` has them.
struct Tile {
    queries: usize,
    keys: usize,
}

impl Tile {
    fn of(head_dim: usize) -> Tile {
        Tile {
            queries: if head_dim > 128 { 64 } else { 128 },
            keys: if head_dim > 80 { 32 } else { 64 },
        }
    }

    /// Bytes of dynamic shared memory: queries, keys and values, in rows padded by 16 bytes.
    fn shared(&self, head_dim: usize) -> usize {
        (self.queries + 2 * self.keys) * (head_dim + 8) * 2
    }
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
