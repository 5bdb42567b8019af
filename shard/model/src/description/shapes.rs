//! The weights that a decoder has, and their shapes.

use millrace_backend::{MlpKind, QkvLayout};

use super::blocks::FeatureBlock;
use super::distance::DistanceHeads;
use super::mlp::ExpertsSpec;
use super::recurrent::RecurrentSlot;
use super::slots::{LayerSlot, WeightSlot, heads, latent, shared};
use super::spec::{
    AttentionHeads, ClassifierKind, DecoderSpec, LatentPlan, LayerSpec, PerLayerEmbedding, Positions,
    Residual,
};
use super::storage::WeightStorage;

impl DecoderSpec {
    /// Returns every weight of the model, in the order in which it is loaded.
    pub fn slots(&self) -> Vec<WeightSlot> {
        let bias = self.norm.has_bias();
        let before = [
            (WeightSlot::Embedding, !self.reads_states),
            (WeightSlot::EmbeddingProjection, self.embedding.width.is_some()),
            (WeightSlot::EmbeddingNorm, self.embedding.norm),
            (WeightSlot::EmbeddingNormBias, self.embedding.norm && bias),
            (WeightSlot::Positions, self.embedding.positions.is_some()),
            (WeightSlot::SecondType, self.embedding.has_second_type()),
            (WeightSlot::PerLayerEmbedding, self.per_layer.is_some()),
            (WeightSlot::PerLayerProjection, self.per_layer.is_some()),
            (WeightSlot::PerLayerProjectionNorm, self.per_layer.is_some()),
            (WeightSlot::DistanceBias, self.distance_heads().is_some()),
            (WeightSlot::TokenNorm, self.reads_states),
            (WeightSlot::TokenProjection, self.reads_states),
            (WeightSlot::StateNorm, self.reads_states),
            (WeightSlot::StateProjection, self.reads_states),
        ];
        let has_final_norm = self.has_final_norm();
        let classifies =
            |has: fn(ClassifierKind) -> bool| self.head.classifier.is_some_and(|plan| has(plan.kind));
        let after = [
            (WeightSlot::FinalNorm, has_final_norm),
            (WeightSlot::FinalNormBias, has_final_norm && bias),
            (WeightSlot::HeadProjection, self.embedding.width.is_some()),
            (WeightSlot::Head, !self.tied_head && !self.reads_states),
            (WeightSlot::HeadBias, self.head.bias),
            (WeightSlot::ClassifierDense, classifies(|_| true)),
            (WeightSlot::ClassifierDenseBias, classifies(ClassifierKind::has_dense_bias)),
            (WeightSlot::ClassifierNorm, classifies(ClassifierKind::is_normed)),
            (WeightSlot::ClassifierNormBias, bias && classifies(ClassifierKind::is_normed)),
            (WeightSlot::ClassifierOut, classifies(|_| true)),
            (WeightSlot::ClassifierOutBias, classifies(|_| true)),
        ];
        fn present(slots: &[(WeightSlot, bool)]) -> impl Iterator<Item = WeightSlot> {
            slots.iter().filter(|(_, is_present)| *is_present).map(|(slot, _)| *slot)
        }
        let mut slots: Vec<WeightSlot> = Vec::new();
        if self.has_ends() {
            slots.extend(present(&before));
        }
        for (index, layer) in self.layers.iter().enumerate() {
            let slot = |slot| WeightSlot::Layer(index, slot);
            let (before, rest) = LayerSlot::ALL.split_at(LayerSlot::Qkv as usize);
            let recurrent = RecurrentSlot::ALL.map(|slot| WeightSlot::Recurrent(index, slot));
            let rest = recurrent.into_iter().chain(rest.iter().copied().map(slot));
            let all = before.iter().copied().map(slot).chain(rest);
            slots.extend(all.filter(|slot| (slot.info().is_present)(self, layer)));
        }
        if self.has_ends() {
            slots.extend(present(&after));
        }
        slots
    }

    /// Returns whether this rank has the embedding and the head, or a share of them. A rank of a
    /// pipeline may have layers only.
    pub fn has_ends(&self) -> bool {
        !self.vocab_rows.is_empty()
    }

    /// Returns the columns of a row of logits. A rank without a head keeps a column that nothing
    /// reads.
    pub fn logit_cols(&self) -> usize {
        if self.has_ends() { self.vocab } else { 1 }
    }

    /// Returns whether rows of the weight for `slot` are looked up, and nothing is multiplied by
    /// it.
    pub fn is_looked_up(&self, slot: WeightSlot) -> bool {
        match slot {
            WeightSlot::Positions | WeightSlot::PerLayerEmbedding | WeightSlot::DistanceBias => true,
            WeightSlot::Embedding => !self.tied_head,
            _ => false,
        }
    }

    /// Returns the weight that is the head, if this rank has one of its own.
    pub fn head_slot(&self) -> Option<WeightSlot> {
        let slot = if self.tied_head { WeightSlot::Embedding } else { WeightSlot::Head };
        Some(slot).filter(|_| self.has_ends() && !self.reads_states)
    }

    /// Returns whether steps look up rows of tables with a row for each token, which a device need
    /// not copy, if the model is kept as `storage`.
    pub fn looks_up_tokens(&self, storage: &WeightStorage) -> bool {
        let looks_up_embedding = !self.tied_head || storage.quantizes_tied_head(self);
        self.has_ends() && (looks_up_embedding || self.per_layer.is_some())
    }

    /// Returns the columns of the buffers of per-layer embeddings: twice the inputs of all layers,
    /// and the gates of one layer.
    pub(crate) fn per_layer_columns(&self) -> usize {
        let columns = |plan: PerLayerEmbedding| (2 * self.layers.len() + 1).saturating_mul(plan.width);
        self.per_layer.map_or(0, columns)
    }

    /// Returns the heads of the first layer whose scores have a bias by distance.
    fn distance_heads(&self) -> Option<DistanceHeads> {
        self.layers.iter().find_map(|layer| match layer.attention.heads()?.positions {
            Positions::Distance(heads) => Some(heads),
            _ => None,
        })
    }

    /// Returns whether a layer has attention with a norm before it.
    pub fn has_attention_norm(&self, layer: &LayerSpec) -> bool {
        self.norm.place.is_before() && !layer.attention.is_none() && !layer.reads_residual()
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
            FeatureBlock::Embedding => self.embedding.width.unwrap_or(self.hidden),
            FeatureBlock::Positions => self.embedding.positions.map_or(0, |table| table.rows),
            FeatureBlock::PerLayerVocabulary => self.per_layer.map_or(0, |table| table.rows),
            FeatureBlock::PerLayer => self.per_layer.map_or(0, |table| table.width),
            FeatureBlock::AllLayers => self.per_layer.map_or(0, |table| self.layers.len() * table.width),
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
            FeatureBlock::Key | FeatureBlock::Value => {
                heads(layer()).map_or(0, |heads| heads.projected().kv_heads * heads.layout.head_dim)
            }
            FeatureBlock::Gate if !has_gate(layer(), slot) => 0,
            FeatureBlock::Gate | FeatureBlock::Up => mlp_width(layer(), slot),
            FeatureBlock::Experts => layer().mlp.experts().map_or(0, ExpertsSpec::count),
            FeatureBlock::DistanceBuckets => DistanceHeads::BUCKETS,
            FeatureBlock::AllHeads => self.distance_heads().map_or(0, |heads| heads.all),
            FeatureBlock::One => 1,
            FeatureBlock::Classes => self.head.classifier.map_or(0, |plan| plan.classes),
            FeatureBlock::QueryGate => layout().heads * layout().head_dim,
            FeatureBlock::Recurrent(block) => {
                layer().attention.recurrent().map_or(0, |recurrent| recurrent.block_len(block))
            }
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

    /// Returns the number of weights. A tied head counts once, and so does a projection to keys
    /// that is also that to values.
    pub fn parameters(&self) -> usize {
        let count = |slot: WeightSlot| {
            let (rows, cols) = self.shape(slot);
            let repeated: usize =
                slot.info().outputs.iter().map(|&block| self.repeated_len(slot, block)).sum();
            if slot.is_vector() { cols - repeated } else { (rows - repeated) * cols }
        };
        self.slots().into_iter().map(count).sum()
    }

    /// Returns the length of a block of the weight for `slot` if it has the numbers of another
    /// block of the same weight, and else 0.
    fn repeated_len(&self, slot: WeightSlot, block: FeatureBlock) -> usize {
        let layer = slot.layer().map(|index| &self.layers[index]);
        let is_repeated =
            block == FeatureBlock::Value && layer.and_then(heads).is_some_and(|heads| heads.values_are_keys);
        if is_repeated { self.block_len(slot, block) } else { 0 }
    }
}

/// Returns whether the outputs of a weight begin with a gate. Those of experts may have none.
fn has_gate(layer: &LayerSpec, slot: WeightSlot) -> bool {
    match slot {
        WeightSlot::Layer(
            _,
            LayerSlot::ExpertGateUp | LayerSlot::ExpertGateUpBias | LayerSlot::SharedGateUp,
        ) => layer.mlp.experts().is_some_and(|experts| matches!(experts.kind, MlpKind::Gated(_))),
        _ => true,
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
