//! The table of the weights of a decoder.
//!
//! A [`WeightSlot`] is the place of one weight. [`WeightSlot::info`] is its row in the table: its
//! shape, its kind, and the tensors that store it. Everything else about a weight follows from its
//! row: how it is cut over ranks (by the blocks of features along its axes), whether it may be
//! quantized, and how much memory it takes. A new weight needs a row here, and code in the decoder
//! that uses it.

use std::ops::Range;

use millrace_kernels::QkvLayout;

use super::spec::{DecoderSpec, ExpertsSpec, HeadNormPlan, LatentPlan, LayerSpec, Residual, SharedExpert};

/// The place of one weight of the decoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum WeightSlot {
    /// The embedding of tokens.
    Embedding,
    /// The scale of the norm of the embedding.
    EmbeddingNorm,
    /// The bias of [`WeightSlot::EmbeddingNorm`].
    EmbeddingNormBias,
    /// The table of learned positions.
    Positions,
    /// The scale of the norm before the head.
    FinalNorm,
    /// The bias of [`WeightSlot::FinalNorm`].
    FinalNormBias,
    /// The head. A model whose head is tied to the embedding does not have it.
    Head,
    /// The bias of the head.
    HeadBias,
    /// A weight of the layer with this index.
    Layer(usize, LayerSlot),
}

/// The place of one weight of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LayerSlot {
    /// The scale of the norm before attention.
    AttentionNorm,
    /// The bias of [`LayerSlot::AttentionNorm`].
    AttentionNormBias,
    /// The fused projection to query, key and value.
    Qkv,
    /// The bias of [`LayerSlot::Qkv`].
    QkvBias,
    /// The scale of the norm of each query head.
    QNorm,
    /// The scale of the norm of each key head.
    KNorm,
    /// The scales of the norms of all query heads.
    QHeadsNorm,
    /// The scales of the norms of all key heads.
    KHeadsNorm,
    /// The attention sinks of all query heads.
    Sinks,
    /// The projection of the residual stream to the features that queries are computed from.
    QueryDown,
    /// The scale of the norm of these features.
    QueryDownNorm,
    /// The projection of the residual stream to the queries of latent attention.
    LatentQuery,
    /// The projection of the features of [`LayerSlot::QueryDown`] to the queries of latent
    /// attention.
    QueryUp,
    /// The projection of the residual stream to the shared rotated key and the latent.
    LatentDown,
    /// The scale of the norm of the latent.
    LatentNorm,
    /// The projections of the latent to the keys and values of all heads.
    LatentUp,
    /// The output projection of attention.
    Out,
    /// The bias of [`LayerSlot::Out`].
    OutBias,
    /// The scale of the norm of attention's output.
    AttentionOutNorm,
    /// The scale of the norm before the MLP.
    MlpNorm,
    /// The bias of [`LayerSlot::MlpNorm`].
    MlpNormBias,
    /// The fused projection to gate and up.
    GateUp,
    /// The bias of [`LayerSlot::GateUp`].
    GateUpBias,
    /// The up projection of an MLP without a gate.
    Up,
    /// The bias of [`LayerSlot::Up`].
    UpBias,
    /// The down projection of the MLP.
    Down,
    /// The bias of [`LayerSlot::Down`].
    DownBias,
    /// The scale of the norm of the MLP's output.
    MlpOutNorm,
    /// The router of a mixture of experts.
    Router,
    /// The bias that is added to the router's scores for the choice.
    ChoiceBias,
    /// The fused projections to gate and up of all experts.
    ExpertGateUp,
    /// The down projections of all experts.
    ExpertDown,
    /// The fused projection to gate and up of the shared expert.
    SharedGateUp,
    /// The down projection of the shared expert.
    SharedDown,
    /// The projection to the gate of the shared expert's result.
    SharedGate,
}

/// A run of features along an axis of a weight. A rank holds a share of some blocks, and all of
/// others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FeatureBlock {
    /// The rows of the vocabulary, `[vocab_rows]`.
    Vocabulary,
    /// The residual stream, `[hidden]`.
    Hidden,
    /// The rows of the table of learned positions.
    Positions,
    /// The features of one head, `[head_dim]`.
    HeadDim,
    /// One number for each query head, `[heads]`.
    Heads,
    /// All query heads, `[heads * head_dim]`. Their results may be shorter than the queries: the
    /// output projection reads [`AttentionHeads::result_cols`] features.
    ///
    /// [`AttentionHeads::result_cols`]: super::AttentionHeads::result_cols
    Query,
    /// All key heads, `[kv_heads * head_dim]`.
    Key,
    /// All value heads, `[kv_heads * head_dim]`.
    Value,
    /// The features that queries of latent attention are computed from, `[query_rank]`.
    QueryRank,
    /// The queries of latent attention, `[heads * (plain_dim + rotary_dim)]`: of each head first the
    /// features that are not rotated.
    HeadQueries,
    /// The shared rotated key of latent attention, `[rotary_dim]`.
    SharedKey,
    /// The latent, `[rank]`.
    Latent,
    /// The keys and values that are computed from a latent, `[heads * (plain_dim + value_dim)]`: of
    /// each head first the key.
    HeadKeysValues,
    /// The gate of the MLP, `[width]`.
    Gate,
    /// The up projection of the MLP, `[width]`.
    Up,
    /// One number for each expert, `[experts]`.
    Experts,
    /// One number, `[1]`.
    One,
}

impl FeatureBlock {
    /// Returns whether the features are those of query, key or value heads.
    pub const fn is_of_heads(self) -> bool {
        matches!(self, FeatureBlock::Query | FeatureBlock::Key | FeatureBlock::Value)
    }
}

/// The kind of a weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightKind {
    /// A matrix.
    Matrix {
        /// Whether it may be kept in fewer bits.
        may_quantize: bool,
    },
    /// A vector that scales normalized features.
    NormScale,
    /// A vector that is added.
    Bias,
    /// A vector with a tensor of its own, whose name has no suffix.
    Parameter,
}

/// The tensors of a checkpoint that together store a weight: for each, its name without `.weight`
/// or `.bias`, and the blocks of output features that are stacked in it. The name of a layer's
/// tensor follows the prefix of the layer.
///
/// A star in the name of a weight of all experts stands for the number of an expert. A name without
/// a star is that of a tensor `[experts, outputs, inputs]`.
pub type StoredTensors = &'static [(&'static str, &'static [FeatureBlock])];

/// A row of the table of weights.
#[derive(Debug, Clone, Copy)]
pub struct WeightInfo {
    /// The kind of weight.
    pub kind: WeightKind,
    /// The output features, in the order in which they are stacked: the rows of a matrix, or the
    /// elements of a vector.
    pub outputs: &'static [FeatureBlock],
    /// The input features: the columns of a matrix. A vector has none.
    pub inputs: Option<FeatureBlock>,
    /// The tensors that store the weight in the layout of Llama, which most families use.
    pub usual_tensors: StoredTensors,
    /// Whether the weight is that of all experts, stacked. `outputs` are those of one expert.
    pub per_expert: bool,
    /// Whether a layer with this specification has the weight.
    is_present: fn(&DecoderSpec, &LayerSpec) -> bool,
}

const QKV: &[FeatureBlock] = &[FeatureBlock::Query, FeatureBlock::Key, FeatureBlock::Value];
const QKV_TENSORS: StoredTensors = &[
    ("self_attn.q_proj", &[FeatureBlock::Query]),
    ("self_attn.k_proj", &[FeatureBlock::Key]),
    ("self_attn.v_proj", &[FeatureBlock::Value]),
];
const OUT_TENSORS: StoredTensors = &[("self_attn.o_proj", HIDDEN)];
const GATE_UP: &[FeatureBlock] = &[FeatureBlock::Gate, FeatureBlock::Up];
const GATE_UP_TENSORS: StoredTensors =
    &[("mlp.gate_proj", &[FeatureBlock::Gate]), ("mlp.up_proj", &[FeatureBlock::Up])];
const DOWN_TENSORS: StoredTensors = &[("mlp.down_proj", HIDDEN)];
const HIDDEN: &[FeatureBlock] = &[FeatureBlock::Hidden];
const UP: &[FeatureBlock] = &[FeatureBlock::Up];
const UP_TENSORS: StoredTensors = &[("mlp.up_proj", UP)];
const HEAD_DIM: &[FeatureBlock] = &[FeatureBlock::HeadDim];
const QUERY: &[FeatureBlock] = &[FeatureBlock::Query];
const KEY: &[FeatureBlock] = &[FeatureBlock::Key];
const QUERY_RANK: &[FeatureBlock] = &[FeatureBlock::QueryRank];
const HEAD_QUERIES: &[FeatureBlock] = &[FeatureBlock::HeadQueries];
const LATENT: &[FeatureBlock] = &[FeatureBlock::Latent];
const HEAD_KEYS_VALUES: &[FeatureBlock] = &[FeatureBlock::HeadKeysValues];
const HEADS: &[FeatureBlock] = &[FeatureBlock::Heads];
const POSITIONS: &[FeatureBlock] = &[FeatureBlock::Positions];
const EXPERTS: &[FeatureBlock] = &[FeatureBlock::Experts];
const ONE: &[FeatureBlock] = &[FeatureBlock::One];
const EXPERT_GATE_UP_TENSORS: StoredTensors =
    &[("mlp.experts.*.gate_proj", &[FeatureBlock::Gate]), ("mlp.experts.*.up_proj", &[FeatureBlock::Up])];
const EXPERT_DOWN_TENSORS: StoredTensors = &[("mlp.experts.*.down_proj", HIDDEN)];
const SHARED_GATE_UP_TENSORS: StoredTensors = &[
    ("mlp.shared_expert.gate_proj", &[FeatureBlock::Gate]),
    ("mlp.shared_expert.up_proj", &[FeatureBlock::Up]),
];
const VOCABULARY: &[FeatureBlock] = &[FeatureBlock::Vocabulary];

impl WeightInfo {
    fn matrix(outputs: &'static [FeatureBlock], inputs: FeatureBlock, tensors: StoredTensors) -> Self {
        let kind = WeightKind::Matrix { may_quantize: false };
        WeightInfo {
            kind,
            outputs,
            inputs: Some(inputs),
            usual_tensors: tensors,
            per_expert: false,
            is_present: |_, _| true,
        }
    }

    fn norm_scale(outputs: &'static [FeatureBlock], tensors: StoredTensors) -> Self {
        let kind = WeightKind::NormScale;
        WeightInfo {
            kind,
            outputs,
            inputs: None,
            usual_tensors: tensors,
            per_expert: false,
            is_present: |_, _| true,
        }
    }

    fn bias(outputs: &'static [FeatureBlock], tensors: StoredTensors) -> Self {
        let kind = WeightKind::Bias;
        WeightInfo {
            kind,
            outputs,
            inputs: None,
            usual_tensors: tensors,
            per_expert: false,
            is_present: |_, _| true,
        }
    }

    fn parameter(outputs: &'static [FeatureBlock], tensors: StoredTensors) -> Self {
        let kind = WeightKind::Parameter;
        WeightInfo {
            kind,
            outputs,
            inputs: None,
            usual_tensors: tensors,
            per_expert: false,
            is_present: |_, _| true,
        }
    }

    fn per_expert(self) -> Self {
        WeightInfo { per_expert: true, ..self }
    }

    fn may_quantize(self) -> Self {
        WeightInfo { kind: WeightKind::Matrix { may_quantize: true }, ..self }
    }

    fn only_if(self, is_present: fn(&DecoderSpec, &LayerSpec) -> bool) -> Self {
        WeightInfo { is_present, ..self }
    }
}

impl LayerSlot {
    /// All weights of a layer, in the order in which they are loaded.
    pub const ALL: [LayerSlot; 35] = [
        LayerSlot::AttentionNorm,
        LayerSlot::AttentionNormBias,
        LayerSlot::Qkv,
        LayerSlot::QkvBias,
        LayerSlot::QNorm,
        LayerSlot::KNorm,
        LayerSlot::QHeadsNorm,
        LayerSlot::KHeadsNorm,
        LayerSlot::Sinks,
        LayerSlot::QueryDown,
        LayerSlot::QueryDownNorm,
        LayerSlot::LatentQuery,
        LayerSlot::QueryUp,
        LayerSlot::LatentDown,
        LayerSlot::LatentNorm,
        LayerSlot::LatentUp,
        LayerSlot::Out,
        LayerSlot::OutBias,
        LayerSlot::AttentionOutNorm,
        LayerSlot::MlpNorm,
        LayerSlot::MlpNormBias,
        LayerSlot::GateUp,
        LayerSlot::GateUpBias,
        LayerSlot::Up,
        LayerSlot::UpBias,
        LayerSlot::Down,
        LayerSlot::DownBias,
        LayerSlot::MlpOutNorm,
        LayerSlot::Router,
        LayerSlot::ChoiceBias,
        LayerSlot::ExpertGateUp,
        LayerSlot::ExpertDown,
        LayerSlot::SharedGateUp,
        LayerSlot::SharedDown,
        LayerSlot::SharedGate,
    ];

    /// Returns the row of this weight in the table.
    pub fn info(self) -> WeightInfo {
        use FeatureBlock::{Gate, Hidden, Query};
        type Info = WeightInfo;
        match self {
            LayerSlot::AttentionNorm => Info::norm_scale(HIDDEN, &[("input_layernorm", HIDDEN)])
                .only_if(|model, _| model.norm.place.is_before()),
            LayerSlot::AttentionNormBias => Info::bias(HIDDEN, &[("input_layernorm", HIDDEN)])
                .only_if(|model, _| model.norm.place.is_before() && model.norm.has_bias()),
            LayerSlot::Qkv => Info::matrix(QKV, Hidden, QKV_TENSORS)
                .may_quantize()
                .only_if(|_, layer| latent(layer).is_none()),
            LayerSlot::QkvBias => {
                Info::bias(QKV, QKV_TENSORS).only_if(|_, layer| layer.attention.heads().qkv_bias)
            }
            LayerSlot::QNorm => Info::norm_scale(HEAD_DIM, &[("self_attn.q_norm", HEAD_DIM)])
                .only_if(|_, layer| layer.attention.heads().head_norm == HeadNormPlan::Shared),
            LayerSlot::KNorm => Info::norm_scale(HEAD_DIM, &[("self_attn.k_norm", HEAD_DIM)])
                .only_if(|_, layer| layer.attention.heads().head_norm == HeadNormPlan::Shared),
            LayerSlot::QHeadsNorm => Info::norm_scale(QUERY, &[("self_attn.q_norm", QUERY)])
                .only_if(|_, layer| layer.attention.heads().head_norm.has_scale_of_all_heads()),
            LayerSlot::KHeadsNorm => Info::norm_scale(KEY, &[("self_attn.k_norm", KEY)])
                .only_if(|_, layer| layer.attention.heads().head_norm.has_scale_of_all_heads()),
            LayerSlot::Sinks => Info::parameter(HEADS, &[("self_attn.sinks", HEADS)])
                .only_if(|_, layer| layer.attention.heads().sinks),
            LayerSlot::QueryDown => Info::matrix(QUERY_RANK, Hidden, &[("self_attn.q_a_proj", QUERY_RANK)])
                .may_quantize()
                .only_if(|_, layer| has_query_rank(layer)),
            LayerSlot::QueryDownNorm => {
                Info::norm_scale(QUERY_RANK, &[("self_attn.q_a_layernorm", QUERY_RANK)])
                    .only_if(|_, layer| has_query_rank(layer))
            }
            LayerSlot::LatentQuery => {
                Info::matrix(HEAD_QUERIES, Hidden, &[("self_attn.q_proj", HEAD_QUERIES)])
                    .may_quantize()
                    .only_if(|_, layer| latent(layer).is_some() && !has_query_rank(layer))
            }
            LayerSlot::QueryUp => {
                Info::matrix(HEAD_QUERIES, FeatureBlock::QueryRank, &[("self_attn.q_b_proj", HEAD_QUERIES)])
                    .may_quantize()
                    .only_if(|_, layer| has_query_rank(layer))
            }
            // The rotated features come first in a cached row, but last in the tensor.
            LayerSlot::LatentDown => Info::matrix(
                &[FeatureBlock::SharedKey, FeatureBlock::Latent],
                Hidden,
                &[("self_attn.kv_a_proj_with_mqa", &[FeatureBlock::Latent, FeatureBlock::SharedKey])],
            )
            .may_quantize()
            .only_if(|_, layer| latent(layer).is_some()),
            LayerSlot::LatentNorm => Info::norm_scale(LATENT, &[("self_attn.kv_a_layernorm", LATENT)])
                .only_if(|_, layer| latent(layer).is_some()),
            // Each head multiplies by its own part, for which there are no quantized products.
            LayerSlot::LatentUp => Info::matrix(
                HEAD_KEYS_VALUES,
                FeatureBlock::Latent,
                &[("self_attn.kv_b_proj", HEAD_KEYS_VALUES)],
            )
            .only_if(|_, layer| latent(layer).is_some()),
            LayerSlot::Out => Info::matrix(HIDDEN, Query, OUT_TENSORS).may_quantize(),
            LayerSlot::OutBias => {
                Info::bias(HIDDEN, OUT_TENSORS).only_if(|_, layer| layer.attention.heads().out_bias)
            }
            LayerSlot::AttentionOutNorm => Info::norm_scale(HIDDEN, &[("post_attention_layernorm", HIDDEN)])
                .only_if(|model, _| model.norm.place.is_after()),
            LayerSlot::MlpNorm => Info::norm_scale(HIDDEN, &[("post_attention_layernorm", HIDDEN)])
                .only_if(|model, _| model.has_mlp_norm()),
            LayerSlot::MlpNormBias => Info::bias(HIDDEN, &[("post_attention_layernorm", HIDDEN)])
                .only_if(|model, _| model.has_mlp_norm() && model.norm.has_bias()),
            LayerSlot::GateUp => Info::matrix(GATE_UP, Hidden, GATE_UP_TENSORS)
                .may_quantize()
                .only_if(|_, layer| layer.mlp.is_gated()),
            LayerSlot::GateUpBias => Info::bias(GATE_UP, GATE_UP_TENSORS)
                .only_if(|_, layer| layer.mlp.is_gated() && up_bias(layer)),
            LayerSlot::Up => {
                Info::matrix(UP, Hidden, UP_TENSORS).may_quantize().only_if(|_, layer| layer.mlp.is_plain())
            }
            LayerSlot::UpBias => {
                Info::bias(UP, UP_TENSORS).only_if(|_, layer| layer.mlp.is_plain() && up_bias(layer))
            }
            LayerSlot::Down => Info::matrix(HIDDEN, Gate, DOWN_TENSORS)
                .may_quantize()
                .only_if(|_, layer| layer.mlp.dense().is_some()),
            LayerSlot::DownBias => Info::bias(HIDDEN, DOWN_TENSORS)
                .only_if(|_, layer| layer.mlp.dense().is_some_and(|mlp| mlp.down_bias)),
            LayerSlot::MlpOutNorm => Info::norm_scale(HIDDEN, &[("post_feedforward_layernorm", HIDDEN)])
                .only_if(|model, _| model.norm.place.is_after()),
            // The router decides which experts are used, and takes little memory.
            LayerSlot::Router => Info::matrix(EXPERTS, Hidden, &[("mlp.gate", EXPERTS)])
                .only_if(|_, layer| layer.mlp.experts().is_some()),
            LayerSlot::ChoiceBias => {
                Info::parameter(EXPERTS, &[("mlp.gate.e_score_correction_bias", EXPERTS)])
                    .only_if(|_, layer| layer.mlp.experts().is_some_and(|experts| experts.choice_bias))
            }
            LayerSlot::ExpertGateUp => Info::matrix(GATE_UP, Hidden, EXPERT_GATE_UP_TENSORS)
                .may_quantize()
                .per_expert()
                .only_if(|_, layer| layer.mlp.experts().is_some()),
            LayerSlot::ExpertDown => Info::matrix(HIDDEN, Gate, EXPERT_DOWN_TENSORS)
                .may_quantize()
                .per_expert()
                .only_if(|_, layer| layer.mlp.experts().is_some()),
            LayerSlot::SharedGateUp => Info::matrix(GATE_UP, Hidden, SHARED_GATE_UP_TENSORS)
                .may_quantize()
                .only_if(|_, layer| shared(layer).is_some()),
            LayerSlot::SharedDown => Info::matrix(HIDDEN, Gate, &[("mlp.shared_expert.down_proj", HIDDEN)])
                .may_quantize()
                .only_if(|_, layer| shared(layer).is_some()),
            LayerSlot::SharedGate => Info::matrix(ONE, Hidden, &[("mlp.shared_expert_gate", ONE)])
                .only_if(|_, layer| shared(layer).is_some_and(|shared| shared.gated)),
        }
    }
}

/// Returns whether gate and up of a dense MLP have biases.
fn up_bias(layer: &LayerSpec) -> bool {
    layer.mlp.dense().is_some_and(|mlp| mlp.up_bias)
}

/// Returns the projections of latent attention of a layer.
fn latent(layer: &LayerSpec) -> Option<LatentPlan> {
    layer.attention.heads().latent
}

/// Returns whether the queries of a layer are computed from fewer features than the residual stream
/// has.
fn has_query_rank(layer: &LayerSpec) -> bool {
    latent(layer).is_some_and(|latent| latent.query_rank.is_some())
}

/// Returns the shared expert of a layer.
fn shared(layer: &LayerSpec) -> Option<SharedExpert> {
    layer.mlp.experts().and_then(|experts| experts.shared)
}

impl WeightSlot {
    /// Returns the row of this weight in the table.
    pub fn info(self) -> WeightInfo {
        let hidden = FeatureBlock::Hidden;
        match self {
            WeightSlot::Embedding => {
                WeightInfo::matrix(VOCABULARY, hidden, &[("model.embed_tokens", VOCABULARY)])
            }
            WeightSlot::EmbeddingNorm => WeightInfo::norm_scale(HIDDEN, &[("model.embed_layernorm", HIDDEN)]),
            WeightSlot::EmbeddingNormBias => WeightInfo::bias(HIDDEN, &[("model.embed_layernorm", HIDDEN)]),
            WeightSlot::Positions => {
                WeightInfo::matrix(POSITIONS, hidden, &[("model.embed_positions", POSITIONS)])
            }
            WeightSlot::FinalNorm => WeightInfo::norm_scale(HIDDEN, &[("model.norm", HIDDEN)]),
            WeightSlot::FinalNormBias => WeightInfo::bias(HIDDEN, &[("model.norm", HIDDEN)]),
            WeightSlot::Head => WeightInfo::matrix(VOCABULARY, hidden, &[("lm_head", VOCABULARY)]),
            WeightSlot::HeadBias => WeightInfo::bias(VOCABULARY, &[("lm_head", VOCABULARY)]),
            WeightSlot::Layer(_, slot) => slot.info(),
        }
    }

    /// Returns the tensors that store this weight in the layout of Llama.
    pub fn usual_tensors(self) -> StoredTensors {
        self.info().usual_tensors
    }

    /// Returns whether the weight is a `[cols]` vector (norm scale or bias), not a matrix.
    pub fn is_vector(self) -> bool {
        self.info().inputs.is_none()
    }

    /// Returns whether the weight holds matrices of single heads, which are multiplied one by one.
    pub const fn is_of_single_heads(self) -> bool {
        matches!(self, WeightSlot::Layer(_, LayerSlot::LatentUp))
    }

    /// Returns the index of the layer that the weight belongs to.
    pub fn layer(self) -> Option<usize> {
        match self {
            WeightSlot::Layer(index, _) => Some(index),
            _ => None,
        }
    }
}

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
        let after = [
            (WeightSlot::FinalNorm, true),
            (WeightSlot::FinalNormBias, bias),
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
        self.norm.place.is_before() && self.residual != Residual::Parallel { has_mlp_norm: false }
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
        let layout = || layer().attention.heads().layout;
        let of_latent = |len: fn(LatentPlan) -> usize| latent(layer()).map_or(0, len);
        match block {
            FeatureBlock::Vocabulary => self.vocab_rows.len(),
            FeatureBlock::Hidden => self.hidden,
            FeatureBlock::Positions => self.embedding.positions.map_or(0, |table| table.rows),
            FeatureBlock::Heads => layout().heads,
            FeatureBlock::HeadDim => layout().head_dim,
            FeatureBlock::Query => layer().attention.heads().result_cols(),
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
    /// If `slot` is not in a layer.
    pub fn grouped_rows(&self, slot: WeightSlot, block: FeatureBlock) -> Vec<Range<usize>> {
        let index = slot.layer().expect("only layers have heads");
        let QkvLayout { heads, kv_heads, head_dim } = self.layers[index].attention.heads().layout;
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
        WeightSlot::Layer(_, LayerSlot::ExpertGateUp | LayerSlot::ExpertDown) => {
            layer.mlp.experts().map_or(0, |experts| experts.width)
        }
        WeightSlot::Layer(_, LayerSlot::SharedGateUp | LayerSlot::SharedDown) => {
            shared(layer).map_or(0, |shared| shared.width)
        }
        _ => layer.mlp.dense().map_or(0, |mlp| mlp.width),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_slots_is_complete_and_in_order() {
        for (index, slot) in LayerSlot::ALL.into_iter().enumerate() {
            assert_eq!(slot as usize, index, "{slot:?}");
        }
        assert_eq!(LayerSlot::ALL.last(), Some(&LayerSlot::SharedGate), "the last variant is in the list");
    }

    /// Whatever stores a weight must hold each of its blocks once.
    #[test]
    fn the_usual_tensors_hold_every_block_once() {
        let whole = [
            WeightSlot::Embedding,
            WeightSlot::EmbeddingNorm,
            WeightSlot::EmbeddingNormBias,
            WeightSlot::Positions,
            WeightSlot::FinalNorm,
            WeightSlot::FinalNormBias,
            WeightSlot::Head,
            WeightSlot::HeadBias,
        ];
        let of_layer = LayerSlot::ALL.map(|slot| WeightSlot::Layer(0, slot));
        for slot in whole.into_iter().chain(of_layer) {
            let info = slot.info();
            let mut stored: Vec<FeatureBlock> =
                info.usual_tensors.iter().flat_map(|(_, blocks)| *blocks).copied().collect();
            if slot == WeightSlot::Layer(0, LayerSlot::LatentDown) {
                stored.reverse();
            }
            assert_eq!(stored, info.outputs, "{slot:?}");
            assert_eq!(info.inputs.is_some(), matches!(info.kind, WeightKind::Matrix { .. }), "{slot:?}");
        }
    }
}
