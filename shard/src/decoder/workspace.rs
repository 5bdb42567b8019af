//! The activations of a step, allocated once.

use millrace_kernels::{Backend, Result};

use super::by_width::{ByWidth, widths};
use super::experts::{self, ExpertBuffers};
use super::latent::{self, LatentBuffers};
use crate::ShardLimits;
use crate::model::{AttentionHeads, DecoderSpec, LayerSpec, Mlp};

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
    /// The fused projection, `[t, (heads + 2 kv_heads) * head_dim]`.
    pub(super) qkv: ByWidth<B::Buf>,
    /// The attention of all heads, `[t, heads * head_dim]`.
    pub(super) heads: ByWidth<B::Buf>,
    /// Gate and up features, `[t, 2 * width]`, of layers whose MLP has a gate.
    pub(super) gate_up: ByWidth<B::Buf>,
    /// The features that the down projection reads, `[t, width]`.
    pub(super) activated: ByWidth<B::Buf>,
    /// The buffers of latent attention.
    pub(super) latent: LatentBuffers<B>,
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
            qkv: by_width(QKV)?,
            heads: by_width(HEADS)?,
            gate_up: by_width(GATE_UP)?,
            activated: by_width(ACTIVATED)?,
            latent: LatentBuffers::new(backend, layers, tokens)?,
            experts: ExpertBuffers::new(backend, layers, hidden, tokens)?,
        })
    }
}

/// Returns the elements of all activations except the logits, for steps of `tokens` tokens and
/// `outputs` outputs.
pub(crate) fn activation_elements(spec: &DecoderSpec, tokens: usize, outputs: usize) -> usize {
    let of_layers: usize =
        [QKV, HEADS, GATE_UP, ACTIVATED].into_iter().flat_map(|width| widths(&spec.layers, width)).sum();
    let of_layers = of_layers + experts::columns(spec) + latent::columns(&spec.layers);
    let of_tokens = tokens.saturating_mul(3 * spec.hidden + of_layers);
    of_tokens.saturating_add(outputs.saturating_mul(spec.hidden))
}

// Latent attention has buffers of its own.
const QKV: fn(&LayerSpec) -> usize = |layer| softmax_heads(layer).map_or(0, |heads| heads.layout.cols());
const HEADS: fn(&LayerSpec) -> usize = |layer| softmax_heads(layer).map_or(0, AttentionHeads::result_cols);
const GATE_UP: fn(&LayerSpec) -> usize =
    |layer| if matches!(layer.mlp, Mlp::Plain(_)) { 0 } else { 2 * ACTIVATED(layer) };
const ACTIVATED: fn(&LayerSpec) -> usize = |layer| match &layer.mlp {
    Mlp::Gated(mlp) | Mlp::Plain(mlp) => mlp.width,
    // A shared expert is a gated MLP.
    Mlp::Experts(experts) => experts.shared.map_or(0, |shared| shared.width),
};

/// Returns the heads of a layer unless its attention is over latents.
fn softmax_heads(layer: &LayerSpec) -> Option<&AttentionHeads> {
    layer.attention.heads().filter(|heads| heads.latent.is_none())
}
