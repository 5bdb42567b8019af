//! The table of the weights of a decoder.
//!
//! A [`WeightSlot`] is the place of one weight. [`WeightSlot::info`] is its row in the table: its
//! shape, its kind, and the tensors that store it. Everything else about a weight follows from its
//! row: how it is cut over ranks (by the blocks of features along its axes), whether it may be
//! quantized, and how much memory it takes. A new weight needs a row here, and code in the decoder
//! that uses it.

use super::blocks::FeatureBlock;
use super::mlp::{Mlp, SharedExpert};
use super::recurrent::RecurrentSlot;
use super::spec::{AttentionHeads, DecoderSpec, HeadNormPlan, LatentPlan, LayerSpec};

/// The place of one weight of the decoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum WeightSlot {
    /// The embedding of tokens.
    Embedding,
    /// The projection of the embedding to the residual stream.
    EmbeddingProjection,
    /// The scale of the norm of the embedding.
    EmbeddingNorm,
    /// The bias of [`WeightSlot::EmbeddingNorm`].
    EmbeddingNormBias,
    /// The table of learned positions.
    Positions,
    /// The embedding of the second token type minus the embedding of the first one, which is part
    /// of the rows of another table ([`EmbeddingPlan::token_types`](super::EmbeddingPlan)).
    SecondType,
    /// The table of per-layer embeddings.
    PerLayerEmbedding,
    /// The projection of the embedding of tokens to the inputs of all layers.
    PerLayerProjection,
    /// The scale of the norm of each layer's part of that projection's result.
    PerLayerProjectionNorm,
    /// The biases of scores by distance, which all layers share.
    DistanceBias,
    /// The scale of the norm of a token's embedding, in a head that reads states.
    TokenNorm,
    /// The projection of the normalized embedding, in a head that reads states.
    TokenProjection,
    /// The scale of the norm of a state, in a head that reads states.
    StateNorm,
    /// The projection of the normalized state, in a head that reads states.
    StateProjection,
    /// The scale of the norm before the head.
    FinalNorm,
    /// The bias of [`WeightSlot::FinalNorm`].
    FinalNormBias,
    /// The projection of the residual stream to the features that the head reads.
    HeadProjection,
    /// The head. A model whose head is tied to the embedding does not have it.
    Head,
    /// The bias of the head.
    HeadBias,
    /// The dense layer of the classifier of texts.
    ClassifierDense,
    /// The bias of [`WeightSlot::ClassifierDense`].
    ClassifierDenseBias,
    /// The scale of the norm after the dense layer of the classifier of texts.
    ClassifierNorm,
    /// The bias of [`WeightSlot::ClassifierNorm`].
    ClassifierNormBias,
    /// The projection to the outputs of the classifier of texts.
    ClassifierOut,
    /// The bias of [`WeightSlot::ClassifierOut`].
    ClassifierOutBias,
    /// A weight of the layer with this index.
    Layer(usize, LayerSlot),
    /// A weight of the layer with this index, which is a recurrent one.
    Recurrent(usize, RecurrentSlot),
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
    /// The bias of [`LayerSlot::QNorm`].
    QNormBias,
    /// The bias of [`LayerSlot::KNorm`].
    KNormBias,
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
    /// The projection to the gates of the heads' results.
    OutGate,
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
    /// The factor on squares of xIELU, before a softplus.
    ActPositive,
    /// The factor on the exponential part of xIELU, before a softplus and without `ActLinear`.
    ActNegative,
    /// The factor on the features themselves of xIELU.
    ActLinear,
    /// The bound on exponents of xIELU.
    ActLimit,
    /// The down projection of the MLP.
    Down,
    /// The bias of [`LayerSlot::Down`].
    DownBias,
    /// The scale of the norm of the MLP's output, or of the residual stream after the MLP.
    MlpOutNorm,
    /// The bias of [`LayerSlot::MlpOutNorm`].
    MlpOutNormBias,
    /// The router of a mixture of experts.
    Router,
    /// The bias of [`LayerSlot::Router`].
    RouterBias,
    /// The bias that is added to the router's scores for the choice.
    ChoiceBias,
    /// The fused projections to gate and up of all experts.
    ExpertGateUp,
    /// The biases of [`LayerSlot::ExpertGateUp`].
    ExpertGateUpBias,
    /// The down projections of all experts.
    ExpertDown,
    /// The biases of [`LayerSlot::ExpertDown`].
    ExpertDownBias,
    /// The fused projection to gate and up of the shared expert.
    SharedGateUp,
    /// The down projection of the shared expert.
    SharedDown,
    /// The projection to the gate of the shared expert's result.
    SharedGate,
    /// The scale of the norm before the router.
    RouterNorm,
    /// The factors on the weights of all experts.
    RouterScales,
    /// The scale of the norm before the experts.
    ExpertNorm,
    /// The scale of the norm of the experts' result.
    ExpertOutNorm,
    /// The scale of the norm of the shared expert's result.
    SharedOutNorm,
    /// The projection to the gates of the layer's own embedding.
    InputGate,
    /// The projection of the gated embedding to the residual stream.
    InputProjection,
    /// The scale of the norm of that projection's result.
    InputNorm,
    /// The factor on the residual stream after the layer.
    Scalar,
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
/// a star is that of a tensor `[experts, outputs, inputs]`. A star in the name of another weight
/// stands for the number of a head.
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
    pub(super) is_present: fn(&DecoderSpec, &LayerSpec) -> bool,
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
const EMBEDDING: &[FeatureBlock] = &[FeatureBlock::Embedding];
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
const DISTANCE_BUCKETS: &[FeatureBlock] = &[FeatureBlock::DistanceBuckets];
const EXPERTS: &[FeatureBlock] = &[FeatureBlock::Experts];
const CLASSES: &[FeatureBlock] = &[FeatureBlock::Classes];
const ONE: &[FeatureBlock] = &[FeatureBlock::One];
const EXPERT_GATE_UP_TENSORS: StoredTensors =
    &[("mlp.experts.*.gate_proj", &[FeatureBlock::Gate]), ("mlp.experts.*.up_proj", &[FeatureBlock::Up])];
const EXPERT_DOWN_TENSORS: StoredTensors = &[("mlp.experts.*.down_proj", HIDDEN)];
const SHARED_GATE_UP_TENSORS: StoredTensors = &[
    ("mlp.shared_expert.gate_proj", &[FeatureBlock::Gate]),
    ("mlp.shared_expert.up_proj", &[FeatureBlock::Up]),
];
const PER_LAYER: &[FeatureBlock] = &[FeatureBlock::PerLayer];
const ALL_LAYERS: &[FeatureBlock] = &[FeatureBlock::AllLayers];
const PER_LAYER_VOCABULARY: &[FeatureBlock] = &[FeatureBlock::PerLayerVocabulary];
const VOCABULARY: &[FeatureBlock] = &[FeatureBlock::Vocabulary];

impl WeightInfo {
    pub(super) fn matrix(
        outputs: &'static [FeatureBlock],
        inputs: FeatureBlock,
        tensors: StoredTensors,
    ) -> Self {
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

    pub(super) fn norm_scale(outputs: &'static [FeatureBlock], tensors: StoredTensors) -> Self {
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

    pub(super) fn bias(outputs: &'static [FeatureBlock], tensors: StoredTensors) -> Self {
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

    pub(super) fn parameter(outputs: &'static [FeatureBlock], tensors: StoredTensors) -> Self {
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

    pub(super) fn may_quantize(self) -> Self {
        WeightInfo { kind: WeightKind::Matrix { may_quantize: true }, ..self }
    }

    pub(super) fn only_if(self, is_present: fn(&DecoderSpec, &LayerSpec) -> bool) -> Self {
        WeightInfo { is_present, ..self }
    }
}

impl LayerSlot {
    /// All weights of a layer, in the order in which they are loaded. Those of recurrent layers
    /// come in place of attention.
    pub const ALL: [LayerSlot; 55] = [
        LayerSlot::AttentionNorm,
        LayerSlot::AttentionNormBias,
        LayerSlot::Qkv,
        LayerSlot::QkvBias,
        LayerSlot::QNorm,
        LayerSlot::KNorm,
        LayerSlot::QNormBias,
        LayerSlot::KNormBias,
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
        LayerSlot::OutGate,
        LayerSlot::Out,
        LayerSlot::OutBias,
        LayerSlot::AttentionOutNorm,
        LayerSlot::MlpNorm,
        LayerSlot::MlpNormBias,
        LayerSlot::GateUp,
        LayerSlot::GateUpBias,
        LayerSlot::Up,
        LayerSlot::UpBias,
        LayerSlot::ActPositive,
        LayerSlot::ActNegative,
        LayerSlot::ActLinear,
        LayerSlot::ActLimit,
        LayerSlot::Down,
        LayerSlot::DownBias,
        LayerSlot::MlpOutNorm,
        LayerSlot::MlpOutNormBias,
        LayerSlot::Router,
        LayerSlot::RouterBias,
        LayerSlot::ChoiceBias,
        LayerSlot::ExpertGateUp,
        LayerSlot::ExpertGateUpBias,
        LayerSlot::ExpertDown,
        LayerSlot::ExpertDownBias,
        LayerSlot::SharedGateUp,
        LayerSlot::SharedDown,
        LayerSlot::SharedGate,
        LayerSlot::RouterNorm,
        LayerSlot::RouterScales,
        LayerSlot::ExpertNorm,
        LayerSlot::ExpertOutNorm,
        LayerSlot::SharedOutNorm,
        LayerSlot::InputGate,
        LayerSlot::InputProjection,
        LayerSlot::InputNorm,
        LayerSlot::Scalar,
    ];

    /// Returns the row of this weight in the table.
    pub fn info(self) -> WeightInfo {
        use FeatureBlock::{Gate, Hidden, Query};
        type Info = WeightInfo;
        match self {
            LayerSlot::AttentionNorm => Info::norm_scale(HIDDEN, &[("input_layernorm", HIDDEN)])
                .only_if(|model, layer| model.has_attention_norm(layer)),
            LayerSlot::AttentionNormBias => Info::bias(HIDDEN, &[("input_layernorm", HIDDEN)])
                .only_if(|model, layer| model.has_attention_norm(layer) && model.norm.has_bias()),
            LayerSlot::Qkv => Info::matrix(QKV, Hidden, QKV_TENSORS)
                .may_quantize()
                .only_if(|_, layer| heads(layer).is_some() && latent(layer).is_none()),
            LayerSlot::QkvBias => Info::bias(QKV, QKV_TENSORS)
                .only_if(|_, layer| heads(layer).is_some_and(|heads| heads.qkv_bias)),
            LayerSlot::QNorm => {
                Info::norm_scale(HEAD_DIM, &[("self_attn.q_norm", HEAD_DIM)]).only_if(|_, layer| {
                    heads(layer).is_some_and(|heads| heads.head_norm.has_scale_of_one_head())
                })
            }
            LayerSlot::KNorm => {
                Info::norm_scale(HEAD_DIM, &[("self_attn.k_norm", HEAD_DIM)]).only_if(|_, layer| {
                    let cached = layer.attention.cached_heads();
                    cached.is_some_and(|heads| heads.head_norm.has_scale_of_one_head())
                })
            }
            LayerSlot::QNormBias => {
                Info::bias(HEAD_DIM, &[("self_attn.q_norm", HEAD_DIM)]).only_if(|_, layer| {
                    heads(layer).is_some_and(|heads| heads.head_norm == HeadNormPlan::SharedWithBias)
                })
            }
            LayerSlot::KNormBias => {
                Info::bias(HEAD_DIM, &[("self_attn.k_norm", HEAD_DIM)]).only_if(|_, layer| {
                    let cached = layer.attention.cached_heads();
                    cached.is_some_and(|heads| heads.head_norm == HeadNormPlan::SharedWithBias)
                })
            }
            LayerSlot::QHeadsNorm => {
                Info::norm_scale(QUERY, &[("self_attn.q_norm", QUERY)]).only_if(|_, layer| {
                    heads(layer).is_some_and(|heads| heads.head_norm.has_scale_of_all_heads())
                })
            }
            LayerSlot::KHeadsNorm => {
                Info::norm_scale(KEY, &[("self_attn.k_norm", KEY)]).only_if(|_, layer| {
                    let cached = layer.attention.cached_heads();
                    cached.is_some_and(|heads| heads.head_norm.has_scale_of_all_heads())
                })
            }
            LayerSlot::Sinks => Info::parameter(HEADS, &[("self_attn.sinks", HEADS)])
                .only_if(|_, layer| heads(layer).is_some_and(|heads| heads.sinks)),
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
            LayerSlot::OutGate => Info::matrix(
                &[FeatureBlock::QueryGate],
                Hidden,
                &[("self_attn.gate_proj", &[FeatureBlock::QueryGate])],
            )
            .may_quantize()
            .only_if(|_, layer| heads(layer).is_some_and(|heads| heads.out_gate)),
            LayerSlot::Out => Info::matrix(HIDDEN, Query, OUT_TENSORS)
                .may_quantize()
                .only_if(|_, layer| heads(layer).is_some()),
            LayerSlot::OutBias => Info::bias(HIDDEN, OUT_TENSORS)
                .only_if(|_, layer| heads(layer).is_some_and(|heads| heads.out_bias)),
            LayerSlot::AttentionOutNorm => Info::norm_scale(HIDDEN, &[("post_attention_layernorm", HIDDEN)])
                .only_if(|model, layer| model.norm.place.is_after() && !layer.attention.is_none()),
            LayerSlot::MlpNorm => Info::norm_scale(HIDDEN, &[("post_attention_layernorm", HIDDEN)])
                .only_if(|model, layer| model.has_mlp_norm() && !layer.mlp.is_none()),
            LayerSlot::MlpNormBias => {
                Info::bias(HIDDEN, &[("post_attention_layernorm", HIDDEN)]).only_if(|model, layer| {
                    model.has_mlp_norm() && model.norm.has_bias() && !layer.mlp.is_none()
                })
            }
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
                .only_if(|model, layer| {
                    let place = model.norm.place;
                    (place.is_after() || place.is_of_sums()) && !layer.mlp.is_none()
                }),
            LayerSlot::MlpOutNormBias => Info::bias(HIDDEN, &[("post_feedforward_layernorm", HIDDEN)])
                .only_if(|model, _| model.norm.place.is_of_sums() && model.norm.has_bias()),
            // The router decides which experts are used, and takes little memory.
            LayerSlot::Router => Info::matrix(EXPERTS, Hidden, &[("mlp.gate", EXPERTS)])
                .only_if(|_, layer| layer.mlp.experts().is_some()),
            LayerSlot::RouterBias => Info::bias(EXPERTS, &[("mlp.gate", EXPERTS)])
                .only_if(|_, layer| layer.mlp.experts().is_some_and(|experts| experts.router_bias)),
            LayerSlot::ChoiceBias => {
                Info::parameter(EXPERTS, &[("mlp.gate.e_score_correction_bias", EXPERTS)])
                    .only_if(|_, layer| layer.mlp.experts().is_some_and(|experts| experts.choice_bias))
            }
            LayerSlot::ExpertGateUp => Info::matrix(GATE_UP, Hidden, EXPERT_GATE_UP_TENSORS)
                .may_quantize()
                .per_expert()
                .only_if(|_, layer| layer.mlp.experts().is_some()),
            LayerSlot::ExpertGateUpBias => Info::bias(GATE_UP, EXPERT_GATE_UP_TENSORS)
                .per_expert()
                .only_if(|_, layer| layer.mlp.experts().is_some_and(|experts| experts.up_bias)),
            LayerSlot::ExpertDown => Info::matrix(HIDDEN, Gate, EXPERT_DOWN_TENSORS)
                .may_quantize()
                .per_expert()
                .only_if(|_, layer| layer.mlp.experts().is_some()),
            LayerSlot::ExpertDownBias => Info::bias(HIDDEN, EXPERT_DOWN_TENSORS)
                .per_expert()
                .only_if(|_, layer| layer.mlp.experts().is_some_and(|experts| experts.down_bias)),
            LayerSlot::SharedGateUp => Info::matrix(GATE_UP, Hidden, SHARED_GATE_UP_TENSORS)
                .may_quantize()
                .only_if(|_, layer| shared(layer).is_some()),
            LayerSlot::SharedDown => Info::matrix(HIDDEN, Gate, &[("mlp.shared_expert.down_proj", HIDDEN)])
                .may_quantize()
                .only_if(|_, layer| shared(layer).is_some()),
            LayerSlot::SharedGate => Info::matrix(ONE, Hidden, &[("mlp.shared_expert_gate", ONE)])
                .only_if(|_, layer| shared(layer).is_some_and(|shared| shared.gated)),
            LayerSlot::RouterNorm => {
                Info::parameter(HIDDEN, &[("router.scale", HIDDEN)]).only_if(|_, layer| own_norms(layer))
            }
            LayerSlot::RouterScales => Info::parameter(EXPERTS, &[("router.per_expert_scale", EXPERTS)])
                .only_if(|_, layer| layer.mlp.experts().is_some_and(|experts| experts.scales)),
            LayerSlot::ExpertNorm => Info::norm_scale(HIDDEN, &[("pre_feedforward_layernorm_2", HIDDEN)])
                .only_if(|_, layer| own_norms(layer)),
            LayerSlot::ExpertOutNorm => Info::norm_scale(HIDDEN, &[("post_feedforward_layernorm_2", HIDDEN)])
                .only_if(|_, layer| own_norms(layer)),
            LayerSlot::SharedOutNorm => Info::norm_scale(HIDDEN, &[("post_feedforward_layernorm_1", HIDDEN)])
                .only_if(|_, layer| own_norms(layer) && shared(layer).is_some()),
            LayerSlot::InputGate => Info::matrix(PER_LAYER, Hidden, &[("per_layer_input_gate", PER_LAYER)])
                .only_if(|model, _| model.per_layer.is_some()),
            LayerSlot::InputProjection => {
                Info::matrix(HIDDEN, FeatureBlock::PerLayer, &[("per_layer_projection", HIDDEN)])
                    .only_if(|model, _| model.per_layer.is_some())
            }
            LayerSlot::InputNorm => Info::norm_scale(HIDDEN, &[("post_per_layer_input_norm", HIDDEN)])
                .only_if(|model, _| model.per_layer.is_some()),
            LayerSlot::ActPositive => act_number(&[("mlp.act_fn.alpha_p", ONE)]),
            LayerSlot::ActNegative => act_number(&[("mlp.act_fn.alpha_n", ONE)]),
            LayerSlot::ActLinear => act_number(&[("mlp.act_fn.beta", ONE)]),
            LayerSlot::ActLimit => act_number(&[("mlp.act_fn.eps", ONE)]),
            LayerSlot::Scalar => {
                Info::parameter(ONE, &[("layer_scalar", ONE)]).only_if(|model, _| model.layer_scalars)
            }
        }
    }
}

/// Returns the row of a number of an activation function.
fn act_number(tensors: StoredTensors) -> WeightInfo {
    WeightInfo::parameter(ONE, tensors).only_if(|_, layer| matches!(&layer.mlp, Mlp::Plain(mlp) if mlp.xielu))
}

/// Returns the heads of softmax attention of a layer.
pub(super) fn heads(layer: &LayerSpec) -> Option<&AttentionHeads> {
    layer.attention.heads()
}

/// Returns whether gate and up of a dense MLP have biases.
fn up_bias(layer: &LayerSpec) -> bool {
    layer.mlp.dense().is_some_and(|mlp| mlp.up_bias)
}

/// Returns the projections of latent attention of a layer.
pub(super) fn latent(layer: &LayerSpec) -> Option<LatentPlan> {
    heads(layer).and_then(|heads| heads.latent)
}

/// Returns whether the queries of a layer are computed from fewer features than the residual stream
/// has.
fn has_query_rank(layer: &LayerSpec) -> bool {
    latent(layer).is_some_and(|latent| latent.query_rank.is_some())
}

/// Returns whether the experts of a layer have norms of their own.
fn own_norms(layer: &LayerSpec) -> bool {
    layer.mlp.experts().is_some_and(|experts| experts.own_norms)
}

/// Returns the shared expert of a layer.
pub(super) fn shared(layer: &LayerSpec) -> Option<SharedExpert> {
    layer.mlp.experts().and_then(|experts| experts.shared)
}

impl WeightSlot {
    /// Returns the row of this weight in the table.
    pub fn info(self) -> WeightInfo {
        let (hidden, embedding) = (FeatureBlock::Hidden, FeatureBlock::Embedding);
        match self {
            WeightSlot::Embedding => {
                WeightInfo::matrix(VOCABULARY, embedding, &[("model.embed_tokens", VOCABULARY)])
            }
            WeightSlot::EmbeddingProjection => {
                WeightInfo::matrix(HIDDEN, embedding, &[("model.project_in", HIDDEN)])
            }
            WeightSlot::EmbeddingNorm => WeightInfo::norm_scale(HIDDEN, &[("model.embed_layernorm", HIDDEN)]),
            WeightSlot::EmbeddingNormBias => WeightInfo::bias(HIDDEN, &[("model.embed_layernorm", HIDDEN)]),
            WeightSlot::Positions => {
                WeightInfo::matrix(POSITIONS, hidden, &[("model.embed_positions", POSITIONS)])
            }
            WeightSlot::SecondType => WeightInfo::parameter(HIDDEN, &[]),
            WeightSlot::PerLayerEmbedding => WeightInfo::matrix(
                PER_LAYER_VOCABULARY,
                FeatureBlock::AllLayers,
                &[("model.embed_tokens_per_layer", PER_LAYER_VOCABULARY)],
            ),
            WeightSlot::PerLayerProjection => {
                WeightInfo::matrix(ALL_LAYERS, hidden, &[("model.per_layer_model_projection", ALL_LAYERS)])
            }
            WeightSlot::PerLayerProjectionNorm => {
                WeightInfo::norm_scale(PER_LAYER, &[("model.per_layer_projection_norm", PER_LAYER)])
            }
            WeightSlot::DistanceBias => WeightInfo::matrix(
                DISTANCE_BUCKETS,
                FeatureBlock::AllHeads,
                &[("model.relative_attention_bias", DISTANCE_BUCKETS)],
            ),
            WeightSlot::TokenNorm => WeightInfo::norm_scale(HIDDEN, &[("enorm", HIDDEN)]),
            WeightSlot::TokenProjection | WeightSlot::StateProjection => {
                WeightInfo::matrix(HIDDEN, hidden, &[("eh_proj", HIDDEN)]).may_quantize()
            }
            WeightSlot::StateNorm => WeightInfo::norm_scale(HIDDEN, &[("hnorm", HIDDEN)]),
            WeightSlot::FinalNorm => WeightInfo::norm_scale(HIDDEN, &[("model.norm", HIDDEN)]),
            WeightSlot::FinalNormBias => WeightInfo::bias(HIDDEN, &[("model.norm", HIDDEN)]),
            WeightSlot::HeadProjection => {
                WeightInfo::matrix(EMBEDDING, hidden, &[("model.project_out", EMBEDDING)])
            }
            WeightSlot::Head => WeightInfo::matrix(VOCABULARY, embedding, &[("lm_head", VOCABULARY)]),
            WeightSlot::HeadBias => WeightInfo::bias(VOCABULARY, &[("lm_head", VOCABULARY)]),
            WeightSlot::ClassifierDense => {
                WeightInfo::matrix(HIDDEN, hidden, &[("classifier.dense", HIDDEN)])
            }
            WeightSlot::ClassifierDenseBias => WeightInfo::bias(HIDDEN, &[("classifier.dense", HIDDEN)]),
            WeightSlot::ClassifierNorm => WeightInfo::norm_scale(HIDDEN, &[("classifier.norm", HIDDEN)]),
            WeightSlot::ClassifierNormBias => WeightInfo::bias(HIDDEN, &[("classifier.norm", HIDDEN)]),
            WeightSlot::ClassifierOut => {
                WeightInfo::matrix(CLASSES, hidden, &[("classifier.out_proj", CLASSES)])
            }
            WeightSlot::ClassifierOutBias => WeightInfo::bias(CLASSES, &[("classifier.out_proj", CLASSES)]),
            WeightSlot::Layer(_, slot) => slot.info(),
            WeightSlot::Recurrent(_, slot) => slot.info(),
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

    /// Returns the part of a stored row that is a row of the weight, as its number among so many
    /// equal parts. Most rows are stored alone.
    pub const fn part_of_row(self) -> (usize, usize) {
        match self {
            WeightSlot::TokenProjection => (0, 2),
            WeightSlot::StateProjection => (1, 2),
            _ => (0, 1),
        }
    }

    /// Returns the index of the layer that the weight belongs to.
    pub fn layer(self) -> Option<usize> {
        match self {
            WeightSlot::Layer(index, _) | WeightSlot::Recurrent(index, _) => Some(index),
            _ => None,
        }
    }
}
