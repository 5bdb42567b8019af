//! The keys that describe a model in a GGUF file, from the specification of its decoder.
//!
//! The specification has what a configuration says in many spellings. The keys are read again
//! before anything is written ([`super::check`]), so that a model that they do not describe is
//! refused.

use super::described::{Described, Keys};
use super::{particular, rotation};
use millrace_backend::RouterScores;
use millrace_formats::GgufValue;
use millrace_model::{Attention, ExpertsSpec, LatentPlan, Mlp, NormKind, RecurrentLayer};

/// The architectures whose keys say how scores of experts become weights.
const WEIGHTED_EXPERTS: [&str; 7] =
    ["glm4moe", "dots1", "deepseek2", "kimi-linear", "mistral4", "nemotron_h_moe", "exaone-moe"];

/// The keys of a configuration with the number of shared experts.
const SHARED_EXPERTS: [&str; 3] = ["n_shared_experts", "num_shared_experts", "moe_num_shared_experts"];

impl Described<'_> {
    /// Adds all keys of the architecture.
    pub(super) fn add_keys(&self, keys: &mut Keys) {
        self.sizes(keys);
        self.attention(keys);
        if let Some(latent) = self.latent() {
            self.latents(latent, keys);
        }
        rotation::add(self, keys);
        if self.is(&WEIGHTED_EXPERTS) || self.is(&["lfm2moe", "ernie4_5-moe"]) {
            let dense = self.spec.layers.iter().take_while(|layer| layer.mlp.experts().is_none());
            keys.count("leading_dense_block_count", dense.count());
        }
        if let Some(experts) = self.experts() {
            self.mixture(experts, keys);
        }
        if let Some(recurrent) = self.recurrent() {
            self.recurrence(recurrent, keys);
        }
        particular::add(self, keys);
    }

    fn sizes(&self, keys: &mut Keys) {
        const POSITIONS: [&str; 5] =
            ["max_trained_positions", "max_position_embeddings", "n_positions", "max_seq_len", "seq_length"];
        let spec = self.spec;
        let positions = match spec.embedding.positions {
            Some(table) => table.rows - table.first,
            None => self.settings.count(&POSITIONS).unwrap_or(spec.max_positions),
        };
        keys.count("context_length", positions);
        keys.count("embedding_length", spec.hidden);
        keys.count("block_count", spec.layers.len());
        keys.count("vocab_size", spec.vocab);
        // Files of the first Qwen have the width of gate and up together.
        let share = if self.is(&["qwen"]) { 2 } else { 1 };
        let widths: Vec<usize> = self.widths().iter().map(|width| width * share).collect();
        keys.counts("feed_forward_length", &widths);
        match spec.norm.kind {
            NormKind::Rms { eps, .. } | NormKind::Layer { eps, .. } => {
                keys.number(self.architecture.epsilon(), eps.into());
            }
        }
    }

    /// Returns the width of the dense MLP of each layer, or one for all. A model whose layers all
    /// have experts has the width that its configuration says, or the one of an expert.
    fn widths(&self) -> Vec<usize> {
        let width = |mlp: &Mlp| mlp.dense().map_or(0, |mlp| mlp.width);
        let widths: Vec<usize> = self.spec.layers.iter().map(|layer| width(&layer.mlp)).collect();
        if self.is(&["nemotron_h_moe"]) {
            // A layer is recurrent if it has neither key/value heads nor a width.
            let width = |mlp: &Mlp| mlp.experts().map_or_else(|| width(mlp), |experts| experts.width);
            return self.spec.layers.iter().map(|layer| width(&layer.mlp)).collect();
        }
        let dense: Vec<usize> = widths.iter().copied().filter(|&width| width > 0).collect();
        match (dense.first(), self.experts()) {
            (Some(&width), Some(_)) => vec![width],
            (None, Some(experts)) => {
                let width = self.settings.count(&["intermediate_size_mlp", "intermediate_size"]);
                vec![width.unwrap_or(experts.width)]
            }
            (_, None) if self.architecture.lists_kv_heads() => widths,
            (width, None) => vec![width.copied().unwrap_or(0)],
        }
    }

    fn attention(&self, keys: &mut Keys) {
        let Some(heads) = self.heads() else {
            keys.count("attention.head_count", 0);
            return keys.count("attention.head_count_kv", 0);
        };
        keys.count("attention.head_count", heads.layout.heads);
        let kv_heads = |attention: &Attention| attention.heads().map_or(0, |heads| heads.layout.kv_heads);
        let of_layers: Vec<usize> = self.spec.layers.iter().map(|layer| kv_heads(&layer.attention)).collect();
        // Files of gated delta nets have one number.
        let is_listed = self.architecture.lists_kv_heads() && !self.is(&["qwen3next", "qwen35", "qwen35moe"]);
        match is_listed {
            _ if self.is(&["minicpm3"]) => keys.count("attention.head_count_kv", heads.layout.heads),
            true => keys.counts("attention.head_count_kv", &of_layers),
            false => keys.count("attention.head_count_kv", heads.layout.kv_heads),
        }
        if heads.latent.is_none() && !self.is(&["gemma4"]) {
            keys.count("attention.key_length", heads.layout.head_dim);
            keys.count("attention.value_length", heads.layout.head_dim);
        }
        if let Some(window) = self.window() {
            keys.count("attention.sliding_window", window);
        }
        if heads.bidirectional {
            keys.add("attention.causal", GgufValue::Bool(false));
        }
    }

    /// Returns the window as configurations have it. Windows in both directions are wider there
    /// than in one.
    fn window(&self) -> Option<usize> {
        let window = self.spec.layers.iter().find_map(|layer| layer.attention.window())?;
        let stated = self.settings.count(&["local_attention", "sliding_window"]);
        Some(stated.filter(|_| self.spec.is_bidirectional()).unwrap_or(window))
    }

    fn latents(&self, latent: LatentPlan, keys: &mut Keys) {
        keys.count("attention.kv_lora_rank", latent.rank);
        if let Some(rank) = latent.query_rank {
            keys.count("attention.q_lora_rank", rank);
        }
        if self.is(&["minicpm3"]) {
            keys.count("attention.key_length", latent.query_dim());
            return keys.count("attention.value_length", latent.value_dim);
        }
        keys.count("attention.key_length", latent.row_dim());
        keys.count("attention.value_length", latent.rank);
        keys.count("attention.key_length_mla", latent.query_dim());
        keys.count("attention.value_length_mla", latent.value_dim);
    }

    fn mixture(&self, experts: &ExpertsSpec, keys: &mut Keys) {
        let router = &experts.router;
        keys.count("expert_count", router.experts);
        keys.count("expert_used_count", router.top_k);
        if !self.is(&["llama"]) {
            keys.count("expert_feed_forward_length", experts.width);
        }
        if let Some(shared) = experts.shared {
            keys.count("expert_shared_feed_forward_length", shared.width);
        }
        if self.is(&WEIGHTED_EXPERTS) || self.is(&["ernie4_5-moe", "hunyuan-moe"]) {
            let shared = experts.shared.map_or(0, |shared| (shared.width / experts.width.max(1)).max(1));
            keys.count("expert_shared_count", self.settings.count(&SHARED_EXPERTS).unwrap_or(shared));
        }
        if self.is(&WEIGHTED_EXPERTS) {
            keys.number("expert_weights_scale", router.factor.into());
            keys.add("expert_weights_norm", GgufValue::Bool(router.normalize));
        }
        match router.scores {
            RouterScores::Sigmoid => keys.count("expert_gating_func", 2),
            RouterScores::Softmax if self.is(&["deepseek2", "mistral4"]) => {
                keys.count("expert_gating_func", 1);
            }
            RouterScores::Softmax | RouterScores::SparseMixer { .. } => {}
        }
        if let Some(groups) = router.groups {
            keys.count("expert_group_count", groups.count);
            keys.count("expert_group_used_count", groups.chosen);
        }
    }

    fn recurrence(&self, recurrent: &RecurrentLayer, keys: &mut Keys) {
        if recurrent.is_convolution() {
            return keys.count("shortconv.l_cache", recurrent.taps);
        }
        keys.count("ssm.conv_kernel", recurrent.taps);
        if self.is(&["kimi-linear"]) {
            return keys.count("kda.head_dim", recurrent.heads.key_dim);
        }
        keys.count("ssm.state_size", recurrent.heads.key_dim);
        keys.count("ssm.group_count", recurrent.heads.key_heads);
        keys.count("ssm.time_step_rank", recurrent.heads.heads);
        keys.count("ssm.inner_size", recurrent.heads.value_cols());
    }
}
