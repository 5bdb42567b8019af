//! The activations of a step, allocated once.

use millrace_backend::{Backend, MlpKind, Result};

use super::by_width::{ByWidth, widths};
use super::experts::{self, ExpertBuffers};
use super::latent::{self, LatentBuffers};
use super::recurrent::{self, RecurrentBuffers};
use crate::ShardLimits;
use crate::model::{Attention, AttentionHeads, DecoderSpec, ExpertsSpec, LayerSpec, Mlp};

/// The hidden states that stages pass on, for up to `t` tokens.
pub(super) struct HiddenStates<B: Backend> {
    /// The residual stream, `[t, hidden]`.
    pub(super) residual: B::Buf,
    /// The normalized residual stream, `[t, hidden]`.
    pub(super) normed: B::Buf,
}

impl<B: Backend> HiddenStates<B> {
    pub(super) fn new(backend: &B, spec: &DecoderSpec, limits: &ShardLimits) -> Result<Self> {
        let tokens = limits.max_step_tokens;
        let (residual, normed) = (backend.buf(tokens, spec.hidden)?, backend.buf(tokens, spec.hidden)?);
        Ok(HiddenStates { residual, normed })
    }
}

/// The buffers inside a layer, for up to `t` tokens. All layers use the same ones.
pub(super) struct LayerBuffers<B: Backend> {
    /// The output of a branch, which is added to the residual stream, `[t, hidden]`.
    pub(super) branch: B::Buf,
    /// The output of a recurrence beside attention, which is added to `branch`, `[t, hidden]`.
    pub(super) beside: ByWidth<B::Buf>,
    /// The fused projection, `[t, (heads + 2 kv_heads) * head_dim]`.
    pub(super) qkv: ByWidth<B::Buf>,
    /// The attention of all heads, `[t, heads * head_dim]`.
    pub(super) heads: ByWidth<B::Buf>,
    /// The gates of the attention of all heads, `[t, heads * head_dim]`.
    pub(super) out_gates: ByWidth<B::Buf>,
    /// Gate and up features, `[t, 2 * width]`, of layers whose MLP has a gate.
    pub(super) gate_up: ByWidth<B::Buf>,
    /// The features that the down projection reads, `[t, width]`.
    pub(super) activated: ByWidth<B::Buf>,
    /// The buffers of latent attention.
    pub(super) latent: LatentBuffers<B>,
    /// The buffers of recurrent layers.
    pub(super) recurrent: RecurrentBuffers<B>,
    /// The buffers of mixtures of experts.
    pub(super) experts: ExpertBuffers<B>,
}

impl<B: Backend> LayerBuffers<B> {
    pub(super) fn new(
        backend: &B,
        layers: &[LayerSpec],
        hidden: usize,
        limits: &ShardLimits,
    ) -> Result<Self> {
        let tokens = limits.max_step_tokens;
        let by_width = |width: fn(&LayerSpec) -> usize| {
            ByWidth::new(widths(layers, width), |cols| backend.buf(tokens, cols))
        };
        Ok(LayerBuffers {
            branch: backend.buf(tokens, hidden)?,
            beside: ByWidth::new(beside_widths(layers, hidden), |cols| backend.buf(tokens, cols))?,
            qkv: by_width(QKV)?,
            heads: by_width(HEADS)?,
            out_gates: by_width(OUT_GATES)?,
            gate_up: by_width(GATE_UP)?,
            activated: by_width(ACTIVATED)?,
            latent: LatentBuffers::new(backend, layers, tokens)?,
            recurrent: RecurrentBuffers::new(backend, layers, tokens)?,
            experts: ExpertBuffers::new(backend, layers, hidden, tokens)?,
        })
    }
}

/// Returns the elements of all activations except the logits, for steps of `tokens` tokens and
/// `outputs` outputs.
pub(crate) fn activation_elements(spec: &DecoderSpec, tokens: usize, outputs: usize) -> usize {
    let of_layers: usize = [QKV, HEADS, OUT_GATES, GATE_UP, ACTIVATED]
        .into_iter()
        .flat_map(|width| widths(&spec.layers, width))
        .sum();
    let beside: usize = beside_widths(&spec.layers, spec.hidden).into_iter().sum();
    let of_layers = of_layers + beside;
    let of_layers =
        of_layers + experts::columns(spec) + latent::columns(&spec.layers) + recurrent::columns(&spec.layers);
    let of_tokens = tokens.saturating_mul(3 * spec.hidden + of_layers);
    of_tokens.saturating_add(outputs.saturating_mul(spec.hidden))
}

/// Returns the columns of the buffers for recurrences beside attention.
fn beside_widths(layers: &[LayerSpec], hidden: usize) -> Vec<usize> {
    let is_hybrid = |layer: &LayerSpec| matches!(layer.attention, Attention::Hybrid { .. });
    if layers.iter().any(is_hybrid) { vec![hidden] } else { Vec::new() }
}

// Latent attention has buffers of its own.
const QKV: fn(&LayerSpec) -> usize = |layer| softmax_heads(layer).map_or(0, |heads| heads.layout.cols());
const HEADS: fn(&LayerSpec) -> usize = |layer| softmax_heads(layer).map_or(0, AttentionHeads::result_cols);
const OUT_GATES: fn(&LayerSpec) -> usize =
    |layer| softmax_heads(layer).filter(|heads| heads.out_gate).map_or(0, AttentionHeads::result_cols);
const GATE_UP: fn(&LayerSpec) -> usize = |layer| match &layer.mlp {
    Mlp::Plain(_) => 0,
    // The kind of the experts is also that of the shared one.
    Mlp::Experts(ExpertsSpec { kind: MlpKind::Plain(_), .. }) => 0,
    _ => 2 * ACTIVATED(layer),
};
const ACTIVATED: fn(&LayerSpec) -> usize = |layer| match &layer.mlp {
    Mlp::Gated(mlp) | Mlp::Plain(mlp) => mlp.width,
    Mlp::Experts(experts) => experts.shared.map_or(0, |shared| shared.width),
    Mlp::None => 0,
};

/// Returns the heads of a layer unless its attention is over latents.
fn softmax_heads(layer: &LayerSpec) -> Option<&AttentionHeads> {
    layer.attention.heads().filter(|heads| heads.latent.is_none())
}
