//! The encoding of events.
//!
//! vLLM encodes its structures as MessagePack arrays, and an event begins with its name. Fields at
//! the end that have no value are left out, except those that older readers require.

use std::time::{SystemTime, UNIX_EPOCH};

use millrace_scheduler::{AdapterId, CacheEvent, StoredBlocks};
use rmp::encode::{self, ByteBuf};

/// The memory that the blocks are in. vLLM has this name for the memory of the device that
/// computes.
const MEDIUM: &str = "GPU";

/// The number of this engine among engines that share the work of one server. There is one.
const DATA_PARALLEL_RANK: u64 = 0;

/// Seconds since 1970.
pub(super) fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

/// Returns the name of an adapter, if a request holds it.
pub(super) type AdapterName<'a> = &'a dyn Fn(AdapterId) -> Option<String>;

/// Encodes a batch: `[time, events, data_parallel_rank]`.
pub(super) fn encode(time: f64, events: &[CacheEvent], adapters: AdapterName<'_>) -> Vec<u8> {
    let mut out = ByteBuf::new();
    array(&mut out, 3);
    infallible(encode::write_f64(&mut out, time));
    array(&mut out, events.len());
    for event in events {
        match event {
            CacheEvent::Stored(blocks) => stored(&mut out, blocks, adapters),
            CacheEvent::Removed(removed) => {
                array(&mut out, 3);
                text(&mut out, "BlockRemoved");
                hashes(&mut out, removed);
                text(&mut out, MEDIUM);
            }
            CacheEvent::Cleared => {
                array(&mut out, 1);
                text(&mut out, "AllBlocksCleared");
            }
        }
    }
    number(&mut out, DATA_PARALLEL_RANK);
    out.into_vec()
}

/// `block_hashes`, `parent_block_hash`, `token_ids`, `block_size`, `lora_id`, `medium`, and
/// `lora_name` for blocks of an adapter. vLLM's `lora_id` begins with 1.
fn stored(out: &mut ByteBuf, blocks: &StoredBlocks, adapters: AdapterName<'_>) {
    let name = blocks.adapter.and_then(adapters);
    array(out, if name.is_some() { 8 } else { 7 });
    text(out, "BlockStored");
    hashes(out, &blocks.hashes);
    match &blocks.parent {
        Some(parent) => infallible(encode::write_bin(out, parent)),
        None => infallible(encode::write_nil(out)),
    }
    array(out, blocks.tokens.len());
    blocks.tokens.iter().for_each(|&token| number(out, token.into()));
    number(out, blocks.block_size as u64);
    match blocks.adapter {
        Some(AdapterId(adapter)) => number(out, u64::from(adapter) + 1),
        None => infallible(encode::write_nil(out)),
    }
    text(out, MEDIUM);
    if let Some(name) = name {
        text(out, &name);
    }
}

fn hashes<const N: usize>(out: &mut ByteBuf, hashes: &[[u8; N]]) {
    array(out, hashes.len());
    hashes.iter().for_each(|hash| infallible(encode::write_bin(out, hash)));
}

/// Begins an array. A cache has fewer than 2^32 blocks, and a block has fewer tokens.
fn array(out: &mut ByteBuf, len: usize) {
    infallible(encode::write_array_len(out, len as u32));
}

fn text(out: &mut ByteBuf, text: &str) {
    infallible(encode::write_str(out, text));
}

fn number(out: &mut ByteBuf, number: u64) {
    infallible(encode::write_uint(out, number));
}

/// A vector always takes more bytes.
fn infallible<T, E>(written: Result<T, E>) {
    debug_assert!(written.is_ok());
}
