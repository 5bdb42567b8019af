//! The weights of a model in device memory.

use std::ops::Range;
use std::sync::Arc;
use std::vec::IntoIter;

use millrace_backend::{Activation, Backend, HeadNorm, Norm, RopeSpec};
use millrace_model::{DecoderSpec, WeightSlot};

use super::per_layer::{LayerInputWeights, PerLayerWeights};
use super::projection::Projection;
use super::recurrent::RecurrentWeights;
use super::states_input::StatesInputWeights;

/// All constants of a decoder in device memory.
pub struct Weights<B: Backend> {
    /// `[vocab_rows, width]`, where most embeddings are as wide as the residual stream; none on a
    /// rank of a pipeline that has only layers, which has none of the weights outside of layers.
    pub(super) embedding: Option<Arc<B::Matrix>>,
    /// The projection of embeddings of another width, `[hidden, width]`.
    pub(super) embedding_projection: Option<B::Matrix>,
    /// Factor on the embedding.
    pub(super) embedding_factor: f32,
    pub(super) embedding_norm: Option<Norm<B::Vector>>, // [hidden]
    pub(super) positions: Option<B::Matrix>,            // [positions, hidden]
    /// The numbers that tokens of the second type get in addition, `[hidden]`. They stay on the
    /// host until a decoder makes a row of them for each token of a step.
    pub(super) second_type: Option<Vec<f32>>,
    /// The weights by which a head reads the states of a model.
    pub(super) states_input: Option<StatesInputWeights<B>>,
    pub(super) per_layer: Option<PerLayerWeights<B>>,
    pub(super) ropes: Vec<RopeSpec<B::Vector>>,
    pub(super) query_scale: Option<B::Vector>, // [positions]
    /// The index of the first of `layers` in the model.
    pub(super) first_layer: usize,
    pub(super) layers: Vec<LayerWeights<B>>,
    pub(super) final_norm: Option<Norm<B::Vector>>, // [hidden]
    /// The projection of states to the width of embeddings, `[width, hidden]`.
    pub(super) head_projection: Option<B::Matrix>,
    pub(super) head: Option<Arc<B::Matrix>>, // [vocab_rows, width]; none if the head is the embedding
    pub(super) head_bias: Option<B::Vector>, // [vocab_rows]
    pub(super) bytes_read: usize,
}

/// The constants of one layer.
pub(super) struct LayerWeights<B: Backend> {
    pub(super) attention_norm: Option<Norm<B::Vector>>, // [hidden]
    pub(super) attention: AttentionWeights<B>,
    pub(super) attention_out_norm: Option<Norm<B::Vector>>, // [hidden]
    pub(super) mlp_norm: Option<Norm<B::Vector>>,           // [hidden]
    pub(super) mlp: MlpWeights<B>,
    pub(super) mlp_out_norm: Option<Norm<B::Vector>>, // [hidden]
    /// The weights of the layer's own embedding, which is read after its branches.
    pub(super) input: Option<LayerInputWeights<B>>,
    /// Factor on the residual stream after the layer.
    pub(super) scalar: Option<f32>,
}

/// The constants of a layer's attention.
pub(super) enum AttentionWeights<B: Backend> {
    Softmax(SoftmaxWeights<B>),
    Latent(LatentWeights<B>),
    Recurrent(RecurrentWeights<B>),
    Hybrid(SoftmaxWeights<B>, RecurrentWeights<B>),
    None,
}

/// The constants of softmax attention.
pub(super) struct SoftmaxWeights<B: Backend> {
    /// `[(heads + 2 kv_heads) * head_dim, hidden]`, or the queries alone, `[heads * head_dim,
    /// hidden]`, if the layer reads the cache of another one.
    pub(super) qkv: Projection<B>,
    pub(super) head_norm: Option<HeadNorm<B::Vector>>, // [head_dim], or the features of all heads, each
    /// The norm of query heads of a layer that has no key heads, as `head_norm`.
    pub(super) query_norm: Option<Norm<B::Vector>>,
    pub(super) value_norm: Option<Norm<B::Vector>>, // [head_dim], of ones
    pub(super) alibi: Option<B::Vector>,            // [heads]
    pub(super) distance: Option<B::Vector>,         // [heads, 2 * REACH + 1]
    pub(super) sinks: Option<B::Vector>,            // [heads]
    pub(super) out_gate: Option<Projection<B>>,     // [heads * head_dim, hidden]
    pub(super) out: Projection<B>,                  // [hidden, heads * head_dim]
}

/// The constants of latent attention.
pub(super) struct LatentWeights<B: Backend> {
    /// `[query_rank, hidden]`, and the norm that follows, if queries are not computed from the
    /// residual stream.
    pub(super) query_down: Option<(Projection<B>, Norm<B::Vector>)>,
    pub(super) query: Projection<B>, // [heads * (plain_dim + rotary_dim), query_rank or hidden]
    pub(super) down: Projection<B>,  // [rotary_dim + rank, hidden]
    pub(super) norm: Norm<B::Vector>, // [rank]
    pub(super) keys: B::HeadMatrices, // plain_dim inputs, rank outputs
    pub(super) values: B::HeadMatrices, // rank inputs, value_dim outputs
    pub(super) out: Projection<B>,   // [hidden, heads * value_dim]
}

/// The constants of an MLP.
pub(super) enum MlpWeights<B: Backend> {
    Dense(DenseWeights<B>),
    Experts(ExpertsWeights<B>),
    None,
}

impl<B: Backend> MlpWeights<B> {
    /// Returns whether the result of the MLP is the sum over all ranks, and not the summand of one.
    pub(super) fn is_summed(&self) -> bool {
        matches!(self, MlpWeights::Experts(experts) if experts.norms.is_some())
    }
}

/// The constants of an MLP that every token passes through.
pub(super) struct DenseWeights<B: Backend> {
    pub(super) up: Projection<B>, // [2 * width, hidden] with a gate, else [width, hidden]
    pub(super) act: Option<Activation>, // the layer's own activation, if its numbers are stored
    pub(super) down: Projection<B>, // [hidden, width]
}

/// The constants of a mixture of experts.
pub(super) struct ExpertsWeights<B: Backend> {
    pub(super) router: B::Matrix,               // [experts, hidden]
    pub(super) router_bias: Option<B::Vector>,  // [experts]
    pub(super) choice_bias: Option<B::Vector>,  // [experts]
    pub(super) gate_up: B::Experts,             // [2 * width, hidden] of each expert
    pub(super) gate_up_bias: Option<B::Vector>, // [experts, 2 * width]
    pub(super) down: B::Experts,                // [hidden, width] of each expert
    pub(super) down_bias: Option<B::Vector>,    // [experts, hidden]
    pub(super) shared: Option<SharedWeights<B>>,
    pub(super) scales: Option<B::Vector>, // [experts]
    pub(super) norms: Option<ExpertNorms<B>>,
}

/// The norms of a mixture of experts that has norms of its own.
pub(super) struct ExpertNorms<B: Backend> {
    pub(super) router: Norm<B::Vector>,             // [hidden]
    pub(super) input: Norm<B::Vector>,              // [hidden]
    pub(super) out: Norm<B::Vector>,                // [hidden]
    pub(super) shared_out: Option<Norm<B::Vector>>, // [hidden]
}

/// The constants of a shared expert.
pub(super) struct SharedWeights<B: Backend> {
    pub(super) mlp: DenseWeights<B>,
    pub(super) gate: Option<B::Matrix>, // [1, hidden]
}

impl<B: Backend> Weights<B> {
    /// Returns the bytes that were read from the source: this rank's share, padding included, and
    /// the weights that every rank has whole.
    pub fn bytes_read(&self) -> usize {
        self.bytes_read
    }

    /// Returns the embedding and the head, for a head that reads the states of the model.
    pub fn ends(&self) -> Ends<B> {
        Ends { embedding: self.embedding.clone(), head: self.head.clone() }
    }

    /// Sets the embedding and the head, which are those of another decoder.
    #[must_use]
    pub fn with_ends(self, Ends { embedding, head }: Ends<B>) -> Self {
        Weights { embedding, head, ..self }
    }
}

/// The embedding and the head of a model, which several decoders may share.
pub struct Ends<B: Backend> {
    embedding: Option<Arc<B::Matrix>>,
    head: Option<Arc<B::Matrix>>,
}

/// A model of which a device computes some layers.
#[derive(Debug, Clone)]
pub struct ModelPart<'a> {
    /// The model, or this rank's share of it.
    pub spec: &'a DecoderSpec,
    /// The layers that the device computes.
    pub layers: Range<usize>,
}

impl<'a> From<&'a DecoderSpec> for ModelPart<'a> {
    fn from(spec: &'a DecoderSpec) -> Self {
        ModelPart { spec, layers: 0..spec.layers.len() }
    }
}

impl ModelPart<'_> {
    /// Returns the weights of the layers of the part, and with `ends` also those that belong to no
    /// layer, in the order in which they are loaded.
    pub(super) fn slots(&self, ends: bool) -> IntoIter<WeightSlot> {
        let is_held = |slot: &WeightSlot| slot.layer().map_or(ends, |index| self.layers.contains(&index));
        let slots: Vec<WeightSlot> = self.spec.slots().into_iter().filter(is_held).collect();
        slots.into_iter()
    }
}
