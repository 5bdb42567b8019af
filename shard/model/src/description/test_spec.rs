//! A small specification for the tests of several modules.

use millrace_backend::QkvLayout;

use super::{AttentionHeads, DecoderSpec, LayerSpec, RopeTable};

/// A Llama of two layers, each of which caches 2 * 2 * 4 elements per token.
pub(crate) fn spec() -> DecoderSpec {
    let layout = QkvLayout { heads: 4, kv_heads: 2, head_dim: 4 };
    let layer = LayerSpec::plain(AttentionHeads { qkv_bias: true, ..AttentionHeads::plain(layout) }, 32);
    DecoderSpec {
        model_type: "llama".into(),
        max_positions: 1000,
        ropes: vec![RopeTable::plain(4)],
        tied_head: true,
        ..DecoderSpec::plain(100, 16, vec![layer; 2])
    }
}
