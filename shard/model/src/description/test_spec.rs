//! A small specification for the tests of several modules.

use millrace_backend::{Activation, QkvLayout, RopeStyle};

use super::{
    Attention, AttentionHeads, DecoderSpec, DenseMlp, EmbeddingPlan, HeadNormPlan, HeadPlan, LayerSpec, Mlp,
    NormPlan, Positions, PrefixRule, Residual, RopeScaling, RopeTable,
};

/// A Llama of two layers, each of which caches 2 * 2 * 4 elements per token.
pub(crate) fn spec() -> DecoderSpec {
    let heads = AttentionHeads {
        layout: QkvLayout { heads: 4, kv_heads: 2, head_dim: 4 },
        qkv_bias: true,
        head_norm: HeadNormPlan::None,
        value_norm: false,
        values_are_keys: false,
        clip: None,
        positions: Positions::Rotary { table: 0 },
        score_scale: 0.5,
        scales_queries: false,
        score_cap: None,
        sinks: false,
        out_bias: false,
        out_factor: 1.0,
        out_gate: false,
        latent: None,
        reads_residual: false,
        bidirectional: false,
        kv_source: None,
    };
    let mlp = DenseMlp::unbiased(32, Activation::Silu);
    let layer = LayerSpec { attention: Attention::Full(heads), mlp: Mlp::Gated(mlp) };
    let rope = RopeTable {
        style: RopeStyle::Half,
        rotary_dim: 4,
        two_axes: false,
        theta: 1e4,
        scaling: RopeScaling::Default,
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
        layer_scalars: false,
        per_layer: None,
        ropes: vec![rope],
        key_choice: None,
        query_scale: None,
        layers: vec![layer.clone(), layer],
        prefix: PrefixRule::Prompt,
        tied_head: true,
        head: HeadPlan::default(),
    }
}
