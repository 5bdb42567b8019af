//! The buffers of a step.

use millrace_backend::{MlpKind, RoutingSpec, Sizing};

use crate::adapters::adaptable;
use crate::description::{
    Attention, AttentionHeads, DecoderSpec, ExpertsSpec, LatentPlan, LayerSpec, Mlp, RecurrentLayer,
};
use crate::{AdapterLimits, ShardLimits};

/// A buffer that all layers of a model share, with a row for each token of a step. Layers of
/// different widths have one buffer of each width.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerBuffer {
    /// The output of a recurrence beside attention, `[t, hidden]`.
    Beside,
    /// The fused projection, `[t, (heads + 2 kv_heads) * head_dim]`, or the queries alone of layers
    /// that read the cache of another one.
    Qkv,
    /// The attention of all heads, `[t, heads * head_dim]`.
    Heads,
    /// The gates of the attention of all heads, `[t, heads * head_dim]`.
    OutGates,
    /// Gate and up features, `[t, 2 * width]`, of layers whose MLP has a gate.
    GateUp,
    /// The features that the down projection reads, `[t, width]`.
    Activated,
    /// The features that the queries of latent attention are computed from, `[t, query_rank]`.
    QueryDown,
    /// The normalized features, `[t, query_rank]`.
    QueryNormed,
    /// The queries before the projection to the latent's features, `[t, heads * query_dim]`.
    Queries,
    /// The queries as latent attention reads them, `[t, heads * row_dim]`.
    Absorbed,
    /// The rows that latent attention caches, `[t, row_dim]`.
    LatentRows,
    /// The weighted latents, `[t, heads * rank]`.
    Latents,
    /// The values of latent attention, `[t, heads * value_dim]`.
    LatentValues,
    /// Queries, keys, values and gates of a recurrent layer, `[t, projected_cols]`.
    Projected,
    /// The results of the convolution, `[t, channels]`.
    Mixed,
    /// The rates of a recurrent layer, `[t, rate_cols]`.
    Rates,
    /// The features between the two matrices of rates, and then of gates, `[t, rank]`.
    LowRank,
    /// The rates of the features of keys, `[t, heads * key_dim]`.
    ChannelRates,
    /// The gates of a recurrent layer that are products of two matrices, `[t, heads * value_dim]`.
    LowRankGates,
    /// The results of all heads of a recurrent layer, `[t, heads * value_dim]`.
    RecurrentResults,
    /// The output of the shared expert, and before it the normalized inputs of the others, `[t,
    /// hidden]`.
    SharedExpert,
    /// The gate of the shared expert's output, `[t, 1]`.
    SharedGate,
    /// The logits of a router of experts in single precision, `[t, experts]`.
    RouterLogits,
}

impl LayerBuffer {
    /// The buffers of activations: all but those in single precision.
    const ACTIVATIONS: [LayerBuffer; 22] = [
        LayerBuffer::Beside,
        LayerBuffer::Qkv,
        LayerBuffer::Heads,
        LayerBuffer::OutGates,
        LayerBuffer::GateUp,
        LayerBuffer::Activated,
        LayerBuffer::QueryDown,
        LayerBuffer::QueryNormed,
        LayerBuffer::Queries,
        LayerBuffer::Absorbed,
        LayerBuffer::LatentRows,
        LayerBuffer::Latents,
        LayerBuffer::LatentValues,
        LayerBuffer::Projected,
        LayerBuffer::Mixed,
        LayerBuffer::Rates,
        LayerBuffer::LowRank,
        LayerBuffer::ChannelRates,
        LayerBuffer::LowRankGates,
        LayerBuffer::RecurrentResults,
        LayerBuffer::SharedExpert,
        LayerBuffer::SharedGate,
    ];

    /// Returns the different widths among the layers that have such a buffer, ascending. The
    /// residual stream has `hidden` features.
    pub fn widths(self, layers: &[LayerSpec], hidden: usize) -> Vec<usize> {
        let widths = layers.iter().map(|layer| self.width(layer, hidden));
        let mut widths: Vec<usize> = widths.filter(|&width| width > 0).collect();
        widths.sort_unstable();
        widths.dedup();
        widths
    }

    /// Returns the width for one layer, or 0 if the layer has no such buffer.
    fn width(self, layer: &LayerSpec, hidden: usize) -> usize {
        match self {
            LayerBuffer::Beside => match layer.attention {
                Attention::Hybrid { .. } => hidden,
                _ => 0,
            },
            LayerBuffer::Qkv => softmax_width(layer, |heads| heads.projected().cols()),
            LayerBuffer::Heads => softmax_width(layer, AttentionHeads::result_cols),
            LayerBuffer::OutGates => {
                softmax_width(layer, |heads| if heads.out_gate { heads.result_cols() } else { 0 })
            }
            LayerBuffer::GateUp => match &layer.mlp {
                Mlp::Plain(_) => 0,
                // The kind of the experts is also that of the shared one.
                Mlp::Experts(ExpertsSpec { kind: MlpKind::Plain(_), .. }) => 0,
                _ => 2 * LayerBuffer::Activated.width(layer, hidden),
            },
            LayerBuffer::Activated => match &layer.mlp {
                Mlp::Gated(mlp) | Mlp::Plain(mlp) => mlp.width,
                Mlp::Experts(experts) => experts.shared.map_or(0, |shared| shared.width),
                Mlp::None => 0,
            },
            LayerBuffer::QueryDown | LayerBuffer::QueryNormed => {
                latent_width(layer, |_, plan| plan.query_rank.unwrap_or(0))
            }
            LayerBuffer::Queries => latent_width(layer, |heads, plan| heads * plan.query_dim()),
            LayerBuffer::Absorbed => latent_width(layer, |heads, plan| heads * plan.row_dim()),
            LayerBuffer::LatentRows => latent_width(layer, |_, plan| plan.row_dim()),
            LayerBuffer::Latents => latent_width(layer, |heads, plan| heads * plan.rank),
            LayerBuffer::LatentValues => latent_width(layer, |heads, plan| heads * plan.value_dim),
            LayerBuffer::Projected => recurrent_width(layer, RecurrentLayer::projected_cols),
            LayerBuffer::Mixed => recurrent_width(layer, RecurrentLayer::channels),
            LayerBuffer::Rates => recurrent_width(layer, RecurrentLayer::rate_cols),
            LayerBuffer::LowRank => recurrent_width(layer, RecurrentLayer::rank),
            LayerBuffer::ChannelRates => recurrent_width(layer, RecurrentLayer::channel_rates),
            LayerBuffer::LowRankGates => recurrent_width(layer, RecurrentLayer::low_rank_gates),
            // The result of a convolution is what it returns.
            LayerBuffer::RecurrentResults => {
                recurrent_width(
                    layer,
                    |layer| {
                        if layer.is_convolution() { 0 } else { layer.heads.value_cols() }
                    },
                )
            }
            LayerBuffer::SharedExpert => {
                experts_width(
                    layer,
                    |experts| {
                        if experts.shared.is_some() || experts.own_norms { hidden } else { 0 }
                    },
                )
            }
            LayerBuffer::SharedGate => {
                experts_width(layer, |experts| usize::from(experts.shared.is_some_and(|shared| shared.gated)))
            }
            LayerBuffer::RouterLogits => experts_width(layer, ExpertsSpec::count),
        }
    }
}

/// Returns a number of features of softmax attention. Latent attention has buffers of its own.
fn softmax_width(layer: &LayerSpec, width: impl Fn(&AttentionHeads) -> usize) -> usize {
    layer.attention.heads().filter(|heads| heads.latent.is_none()).map_or(0, width)
}

/// Returns a number of features of latent attention, which depends on the number of query heads.
fn latent_width(layer: &LayerSpec, width: impl Fn(usize, &LatentPlan) -> usize) -> usize {
    let Some(heads) = layer.attention.heads() else { return 0 };
    heads.latent.as_ref().map_or(0, |plan| width(heads.layout.heads, plan))
}

/// Returns a number of features of a recurrent layer.
fn recurrent_width(layer: &LayerSpec, width: impl Fn(&RecurrentLayer) -> usize) -> usize {
    layer.attention.recurrent().map_or(0, width)
}

/// Returns a number of features of a mixture of experts.
fn experts_width(layer: &LayerSpec, width: impl Fn(&ExpertsSpec) -> usize) -> usize {
    layer.mlp.experts().map_or(0, width)
}

/// Returns the different ranks that adapters may have in the matrices of a model, ascending: the
/// widths of the buffers between their two matrices.
pub fn adapter_ranks(spec: &DecoderSpec, adapters: AdapterLimits) -> Vec<usize> {
    if adapters.count == 0 {
        return Vec::new();
    }
    let mut ranks: Vec<usize> = adaptable(spec).into_iter().map(|slot| adapters.rank(slot)).collect();
    ranks.sort_unstable();
    ranks.dedup();
    ranks
}

/// Returns the elements of all activations of a step except the logits.
pub(crate) fn activation_elements(spec: &DecoderSpec, limits: &ShardLimits) -> usize {
    let (tokens, outputs) = (limits.max_step_tokens, limits.max_outputs());
    let of_layers = LayerBuffer::ACTIVATIONS.into_iter();
    let of_layers = of_layers.flat_map(|buffer| buffer.widths(&spec.layers, spec.hidden));
    // Beside the buffers of layers are the residual stream, its norm, the output of a branch, the
    // rows that tokens of the second type get, the states that a head reads and their projection,
    // and per-layer embeddings.
    let states = 3 + usize::from(spec.embedding.has_second_type()) + 2 * usize::from(spec.reads_states);
    let others = spec.per_layer_columns().saturating_add(states * spec.hidden);
    let of_adapters = adapter_ranks(spec, limits.adapters).into_iter();
    let columns = of_layers.chain(of_adapters).fold(others, usize::saturating_add);
    // Narrow embeddings have buffers of their own, for tokens and for outputs.
    let width = spec.embedding.width.unwrap_or(0);
    let of_outputs = outputs.saturating_mul(spec.hidden + width);
    tokens.saturating_mul(columns.saturating_add(width)).saturating_add(of_outputs)
}

/// Returns the bytes of the devices' working memory of experts, and of the routers' logits.
pub(crate) fn routing_bytes(spec: &DecoderSpec, tokens: usize, device: &impl Sizing) -> usize {
    let logits: usize = LayerBuffer::RouterLogits.widths(&spec.layers, spec.hidden).into_iter().sum();
    let logits = tokens.saturating_mul(logits).saturating_mul(size_of::<f32>());
    let routings = routings(&spec.layers, spec.hidden, tokens);
    routings.iter().map(|spec| device.routing_bytes(spec)).fold(logits, usize::saturating_add)
}

/// Returns the different routings among the layers, for steps of `tokens` tokens.
pub fn routings(layers: &[LayerSpec], hidden: usize, tokens: usize) -> Vec<RoutingSpec> {
    let mut all: Vec<RoutingSpec> = Vec::new();
    for experts in layers.iter().filter_map(|layer| layer.mlp.experts()) {
        let spec = experts.routing_spec(hidden, tokens);
        if !all.contains(&spec) {
            all.push(spec);
        }
    }
    all
}
