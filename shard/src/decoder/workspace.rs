//! The activations of a step, allocated once.

use millrace_backend::{Backend, Result};
use millrace_model::step_sizes::{LayerBuffer, adapter_ranks};
use millrace_model::{DecoderSpec, LayerSpec, ShardLimits};

use super::experts::ExpertBuffers;
use super::latent::LatentBuffers;
use super::per_layer::LayerInputs;
use super::recurrent::RecurrentBuffers;
use super::step_context::ByWidth;

/// The hidden states that layers pass on, for up to `t` tokens.
pub(super) struct HiddenStates<B: Backend> {
    /// The residual stream, `[t, hidden]`.
    pub(super) residual: B::Buf,
    /// The normalized residual stream, `[t, hidden]`.
    pub(super) normed: B::Buf,
    /// The inputs that each layer reads beside them, if the model has per-layer embeddings.
    pub(super) layer_inputs: Option<LayerInputs<B>>,
}

impl<B: Backend> HiddenStates<B> {
    /// Allocates hidden states without per-layer embeddings.
    pub(super) fn new(backend: &B, spec: &DecoderSpec, limits: &ShardLimits) -> Result<Self> {
        let tokens = limits.max_step_tokens;
        let (residual, normed) = (backend.buf(tokens, spec.hidden)?, backend.buf(tokens, spec.hidden)?);
        Ok(HiddenStates { residual, normed, layer_inputs: None })
    }
}

/// The buffers inside a layer, for up to `t` tokens. All layers use the same ones.
pub(super) struct LayerBuffers<B: Backend> {
    /// The output of a branch, which is added to the residual stream, `[t, hidden]`.
    pub(super) branch: B::Buf,
    /// The output of a recurrence beside attention, which is added to `branch`, `[t, hidden]`.
    pub(super) beside: ByWidth<B::Buf>,
    /// The fused projection, `[t, (heads + 2 kv_heads) * head_dim]`, or the queries alone.
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
    /// The features between the two matrices of adapters, `[t, rank]`.
    pub(super) adapter_features: ByWidth<B::Buf>,
}

impl<B: Backend> LayerBuffers<B> {
    pub(super) fn new(
        backend: &B,
        spec: &DecoderSpec,
        layers: &[LayerSpec],
        limits: &ShardLimits,
    ) -> Result<Self> {
        let (tokens, hidden) = (limits.max_step_tokens, spec.hidden);
        let buffers = |buffer: LayerBuffer| {
            ByWidth::new(buffer.widths(layers, hidden), |cols| backend.buf(tokens, cols))
        };
        Ok(LayerBuffers {
            branch: backend.buf(tokens, hidden)?,
            beside: buffers(LayerBuffer::Beside)?,
            qkv: buffers(LayerBuffer::Qkv)?,
            heads: buffers(LayerBuffer::Heads)?,
            out_gates: buffers(LayerBuffer::OutGates)?,
            gate_up: buffers(LayerBuffer::GateUp)?,
            activated: buffers(LayerBuffer::Activated)?,
            adapter_features: ByWidth::new(adapter_ranks(spec, limits.adapters), |rank| {
                backend.buf(tokens, rank)
            })?,
            latent: LatentBuffers::new(buffers)?,
            recurrent: RecurrentBuffers::new(buffers)?,
            experts: ExpertBuffers::new(backend, layers, hidden, tokens, buffers)?,
        })
    }
}
