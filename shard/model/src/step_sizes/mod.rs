//! The sizes of the largest step that a decoder computes: the widths of its buffers, its matrix
//! products, and the working memory that it asks of its device.
//!
//! The memory plan adds the sizes up, and a decoder allocates by them.

mod buffers;
mod products;

use millrace_backend::{AttentionSpec, StepSize};

use crate::ShardLimits;
use crate::description::{DecoderSpec, LayerSpec};

pub use buffers::{LayerBuffer, adapter_ranks, routings};
pub(crate) use buffers::{activation_elements, routing_bytes};
pub use products::tuned_products;
pub(crate) use products::{layer_products, products};

/// Returns the softmax attention of every layer that has it in the terms of the backend.
pub fn attention(layers: &[LayerSpec]) -> Vec<AttentionSpec> {
    let of_layer = |LayerSpec { attention, .. }: &LayerSpec| {
        attention.heads().map(|heads| heads.softmax_spec(attention.key_window()))
    };
    layers.iter().filter_map(of_layer).collect()
}

/// Returns the sizes of the largest steps under these limits.
pub fn step_size<'a>(
    spec: &DecoderSpec,
    limits: &ShardLimits,
    attention: &'a [AttentionSpec],
) -> StepSize<'a> {
    StepSize {
        tokens: limits.max_step_tokens,
        rows: limits.max_sequences,
        sequence_tokens: limits.max_sequence_tokens,
        blocks: limits.num_blocks,
        block_size: limits.block_size,
        kv_format: limits.kv_format,
        vocab: spec.vocab,
        attention,
    }
}
