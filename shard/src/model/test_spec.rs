//! A small specification for the tests of several modules.

use millrace_kernels::{Activation, QkvLayout, RopeStyle};

use super::{
    Attention, AttentionHeads, DecoderSpec, DenseMlp, EmbeddingPlan, HeadNormPlan, HeadPlan, LayerSpec, Mlp,
    NormPlan, Positions, Residual, RopeScaling, RopeTable,
};

/// A Llama of two layers, each of which caches 2 * 2 * 4 elements per token.
pub(crate) fn spec() -> DecoderSpec {
    let heads = AttentionHeads {
        layout: QkvLayout { heads: 4, kv_heads: 2, head_dim: 4 },
        qkv_bias: true,
        head_norm: HeadNormPlan::None,
        positions: Positions::Rotary { table: 0 },
        score_scale: 0.5,
        score_cap: None,
        sinks: false,
        out_bias: false,
        latent: None,
        bidirectional: false,
    };
    let mlp = DenseMlp { width: 32, act: Activation::Silu, up_bias: false, down_bias: false };
    let layer = LayerSpec { attention: Attention::Full(heads), mlp: Mlp::Gated(mlp) };
    let rope = RopeTable {
        style: RopeStyle::Half,
        rotary_dim: 4,
        theta: 1e4,
        scaling: RopeScaling::Default,
        query_scale: None,
    };
    DecoderSpec {
        model_type: "llama".into(),
        vocab: 100,
        vocab_rows: 0..100,
        hidden: 16,
        max_positions: 1000,
        norm: NormPlan::rms_before_branches(1e-5),
        embedding: EmbeddingPlan::default(),
        residual: Residual::Sequential,
        branch_factor: 1.0,
        ropes: vec![rope],
        layers: vec![layer.clone(), layer],
        tied_head: true,
        head: HeadPlan::default(),
    }
}
