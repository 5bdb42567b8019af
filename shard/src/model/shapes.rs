//! The weights that a decoder has, and their shapes.

use std::ops::Range;

use millrace_kernels::QkvLayout;

use super::slots::{FeatureBlock, LayerSlot, WeightSlot, heads, latent, shared};
use super::spec::{AttentionHeads, DecoderSpec, ExpertsSpec, LatentPlan, LayerSpec, Residual};

impl DecoderSpec {
    /// Returns every weight of the model, in the order in which it is loaded.
    pub fn slots(&self) -> Vec<WeightSlot> {
        let bias = self.norm.has_bias();
        let before = [
            (WeightSlot::Embedding, true),
            (WeightSlot::EmbeddingNorm, self.embedding.norm),
            (WeightSlot::EmbeddingNormBias, self.embedding.norm && bias),
            (WeightSlot::Positions, self.embedding.positions.is_some()),
        ];
        let has_final_norm = self.has_final_norm();
        let after = [
            (WeightSlot::FinalNorm, has_final_norm),
            (WeightSlot::FinalNormBias, has_final_norm && bias),
            (WeightSlot::Head, !self.tied_head),
            (WeightSlot::HeadBias, self.head.bias),
        ];
        let present = |slots: [(WeightSlot, bool); 4]| {
            slots.into_iter().filter(|(_, is_present)| *is_present).map(|(slot, _)| slot)
        };
        let mut slots: Vec<WeightSlot> = present(before).collect();
        for (index, layer) in self.layers.iter().enumerate() {
            let present = LayerSlot::ALL.into_iter().filter(|slot| (slot.info().is_present)(self, layer));
            slots.extend(present.map(|slot| WeightSlot::Layer(index, slot)));
        }
        slots.extend(present(after));
        slots
    }

    /// Returns whether rows of the weight for `slot` are looked up, and nothing is multiplied by
    /// it.
    pub fn is_looked_up(&self, slot: WeightSlot) -> bool {
        slot == WeightSlot::Positions || slot == WeightSlot::Embedding && !self.tied_head
    }

    /// Returns whether the MLPs of the layers have a norm of their own before them.
    pub fn has_mlp_norm(&self) -> bool {
        let place = self.norm.place;
        (place.is_before() || place.is_of_sums())
            && self.residual != Residual::Parallel { has_mlp_norm: false }
    }

    /// Returns whether the states are normalized before the head.
    pub fn has_final_norm(&self) -> bool {
        !self.norm.place.is_of_sums()
    }

    /// Returns the length of a block of the weight for `slot`.
    ///
    /// # Panics
    /// If `slot` names a layer that the model does not have, or a weight without a layer
    /// has a block of a layer's features.
    pub fn block_len(&self, slot: WeightSlot, block: FeatureBlock) -> usize {
        let layer = || {
            let index = slot.layer().expect("only weights of layers have blocks of a layer's features");
            &self.layers[index]
        };
        let no_heads = QkvLayout { heads: 0, kv_heads: 0, head_dim: 0 };
        let layout = || heads(layer()).map_or(no_heads, |heads| heads.layout);
        let of_latent = |len: fn(LatentPlan) -> usize| latent(layer()).map_or(0, len);
        match block {
            FeatureBlock::Vocabulary => self.vocab_rows.len(),
            FeatureBlock::Hidden => self.hidden,
            FeatureBlock::Positions => self.embedding.positions.map_or(0, |table| table.rows),
            FeatureBlock::Heads => layout().heads,
            FeatureBlock::HeadDim => layout().head_dim,
            FeatureBlock::Query => heads(layer()).map_or(0, AttentionHeads::result_cols),
            FeatureBlock::QueryRank => of_latent(|latent| latent.query_rank.unwrap_or(0)),
            FeatureBlock::SharedKey => of_latent(|latent| latent.rotary_dim),
            FeatureBlock::Latent => of_latent(|latent| latent.rank),
            FeatureBlock::HeadQueries => layout().heads * of_latent(|latent| latent.query_dim()),
            FeatureBlock::HeadKeysValues => {
                layout().heads * of_latent(|latent| latent.plain_dim + latent.value_dim)
            }
            FeatureBlock::Key | FeatureBlock::Value => layout().kv_heads * layout().head_dim,
            FeatureBlock::Gate | FeatureBlock::Up => mlp_width(layer(), slot),
            FeatureBlock::Experts => layer().mlp.experts().map_or(0, ExpertsSpec::count),
            FeatureBlock::One => 1,
        }
    }

    /// Returns the number of experts whose weights are stacked in the one for `slot`: 1 unless it
    /// is that of all experts.
    ///
    /// # Panics
    /// If `slot` names a layer that the model does not have.
    pub fn stacked_experts(&self, slot: WeightSlot) -> usize {
        if slot.info().per_expert { self.block_len(slot, FeatureBlock::Experts) } else { 1 }
    }

    /// Returns the rows of a block of heads in a tensor that has queries, keys and values group by
    /// group.
    ///
    /// # Panics
    /// If `slot` is not in a layer with heads of softmax attention.
    pub fn grouped_rows(&self, slot: WeightSlot, block: FeatureBlock) -> Vec<Range<usize>> {
        let index = slot.layer().expect("only layers have heads");
        let of_layer = heads(&self.layers[index]).expect("only layers with heads have blocks of heads");
        let QkvLayout { heads, kv_heads, head_dim } = of_layer.layout;
        let queries = heads / kv_heads;
        let (first, count) = match block {
            FeatureBlock::Key => (queries, 1),
            FeatureBlock::Value => (queries + 1, 1),
            _ => (0, queries),
        };
        let of_group = |group: usize| {
            let start = (group * (queries + 2) + first) * head_dim;
            start..start + count * head_dim
        };
        (0..kv_heads).map(of_group).collect()
    }

    /// Returns the rows and columns of the weight for `slot`. A vector has one row.
    ///
    /// # Panics
    /// If `slot` names a layer that the model does not have.
    pub fn shape(&self, slot: WeightSlot) -> (usize, usize) {
        let info = slot.info();
        let of_expert: usize = info.outputs.iter().map(|&block| self.block_len(slot, block)).sum();
        let outputs = self.stacked_experts(slot) * of_expert;
        match info.inputs {
            Some(inputs) => (outputs, self.block_len(slot, inputs)),
            None => (1, outputs),
        }
    }

    /// Returns the number of weights. A tied head counts once.
    pub fn parameters(&self) -> usize {
        self.slots().into_iter().map(|slot| self.shape(slot)).map(|(rows, cols)| rows * cols).sum()
    }
}

/// Returns the number of features of gate and of up in the MLP that the weight belongs to; 0 if the
/// layer does not have it.
fn mlp_width(layer: &LayerSpec, slot: WeightSlot) -> usize {
    match slot {
        WeightSlot::Layer(
            _,
            LayerSlot::ExpertGateUp | LayerSlot::ExpertGateUpBias | LayerSlot::ExpertDown,
        ) => layer.mlp.experts().map_or(0, |experts| experts.width),
        WeightSlot::Layer(_, LayerSlot::SharedGateUp | LayerSlot::SharedDown) => {
            shared(layer).map_or(0, |shared| shared.width)
        }
        _ => layer.mlp.dense().map_or(0, |mlp| mlp.width),
    }
}
