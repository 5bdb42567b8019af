//! The plain decoder: what most models have. Families and tests name where they differ.

use millrace_backend::{Activation, QkvLayout, RopeStyle};

use super::{
    Attention, AttentionHeads, DecoderSpec, DenseMlp, EmbeddingPlan, HeadNormPlan, HeadPlan, LayerSpec, Mlp,
    NormPlan, Positions, PrefixRule, Residual, RopeScaling, RopeTable,
};

impl AttentionHeads {
    /// Returns heads without biases and norms, which the first table rotates. Scores are scaled by
    /// the root of the number of features.
    pub fn plain(layout: QkvLayout) -> Self {
        AttentionHeads {
            layout,
            qkv_bias: false,
            head_norm: HeadNormPlan::None,
            value_norm: false,
            values_are_keys: false,
            clip: None,
            positions: Positions::Rotary { table: 0 },
            score_scale: 1.0 / (layout.head_dim as f32).sqrt(),
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
        }
    }
}

impl RopeTable {
    /// Returns the table that rotates all `dim` features of a head, with Llama's base.
    pub fn plain(dim: usize) -> Self {
        RopeTable {
            style: RopeStyle::Half,
            rotary_dim: dim,
            two_axes: false,
            theta: 1e4,
            scaling: RopeScaling::Default,
        }
    }
}

impl LayerSpec {
    /// Returns a layer with these heads and a gated MLP of `width` features.
    pub fn plain(heads: AttentionHeads, width: usize) -> Self {
        let mlp = DenseMlp::unbiased(width, Activation::Silu);
        LayerSpec { attention: Attention::Full(heads), mlp: Mlp::Gated(mlp) }
    }
}

impl DecoderSpec {
    /// Returns a decoder of `vocab` tokens and `hidden` features with RMS norms before the branches
    /// and a head of its own. It has no table of rotations, which layers with heads need.
    pub fn plain(vocab: usize, hidden: usize, layers: Vec<LayerSpec>) -> Self {
        DecoderSpec {
            model_type: String::new(),
            vocab,
            vocab_rows: 0..vocab,
            hidden,
            max_positions: usize::MAX,
            embedding: EmbeddingPlan::default(),
            reads_states: false,
            norm: NormPlan::rms_before_branches(1e-5),
            residual: Residual::Sequential,
            branch_factor: 1.0,
            layer_scalars: false,
            per_layer: None,
            ropes: Vec::new(),
            key_choice: None,
            query_scale: None,
            layers,
            prefix: PrefixRule::Prompt,
            tied_head: false,
            head: HeadPlan::default(),
        }
    }
}
