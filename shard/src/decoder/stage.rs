//! A range of layers, with everything that belongs to them.

use std::ops::Range;

use millrace_kernels::{AttentionSpec, Backend, KvSpec, Norm, OpenStep, Prologue, RopeSpec};

use super::group::RankGroup;
use super::weights::LayerWeights;
use super::workspace::{HiddenStates, LayerBuffers};
use crate::model::{DecoderSpec, LayerSpec, Mlp, NormPlace, Positions, Residual};
use crate::{Error, ShardLimits};

/// A step as a stage sees it.
pub(super) struct StageStep<'a, B: Backend> {
    pub(super) backend: &'a B,
    pub(super) step: &'a OpenStep<'a, B::Queue>,
    /// Number of tokens.
    pub(super) tokens: usize,
}

/// A range of a model's layers that computes hidden states from hidden states.
///
/// A decoder is an embedding, a list of stages, and a head. The list has one entry today: one
/// device computes all layers.
pub(super) trait Stage<B: Backend> {
    /// Adds the branches of the stage's layers to `states.residual`, `[tokens, hidden]`, and leaves
    /// the normalized sum in `states.normed`. Stores the keys and values of the step's tokens.
    fn forward(
        &mut self,
        step: &StageStep<'_, B>,
        states: &mut HiddenStates<B>,
        group: &mut RankGroup<B>,
    ) -> Result<(), Error>;
}

/// The weights of consecutive layers.
pub(super) struct StageWeights<B: Backend> {
    pub(super) layers: Vec<LayerWeights<B>>,
    pub(super) ropes: Vec<RopeSpec<B::Vector>>,
    /// The norm after the last layer.
    pub(super) exit_norm: Norm<B::Vector>,
}

impl<B: Backend> StageWeights<B> {
    /// Returns the norm between the residual stream and layer `index`, or the one after the last
    /// layer.
    fn norm_before(&self, index: usize) -> &Norm<B::Vector> {
        self.layers.get(index).map_or(&self.exit_norm, |layer| &layer.attention_norm)
    }
}

/// Consecutive layers on one device: their weights, KV caches and buffers.
pub(super) struct LayerStage<B: Backend> {
    layers: Vec<LayerSpec>,
    weights: StageWeights<B>,
    /// One paged cache per layer.
    kv: Vec<B::Kv>,
    buffers: LayerBuffers<B>,
}

impl<B: Backend> LayerStage<B> {
    /// Creates a stage of the layers `layers` of `spec`, whose weights are `weights`, and allocates
    /// their KV caches and buffers.
    pub(super) fn new(
        backend: &B,
        spec: &DecoderSpec,
        layers: Range<usize>,
        weights: StageWeights<B>,
        limits: &ShardLimits,
    ) -> millrace_kernels::Result<Self> {
        // The order of operations in `forward` is that of these kinds.
        let (NormPlace::BeforeBranches, Residual::Sequential) = (spec.norm.place, spec.residual);
        let layers = spec.layers[layers].to_vec();
        let kv = layers.iter().map(|layer| backend.kv(kv_spec(layer, limits)));
        let kv = kv.collect::<millrace_kernels::Result<_>>()?;
        let buffers = LayerBuffers::new(backend, &layers, spec.hidden, limits)?;
        Ok(LayerStage { layers, weights, kv, buffers })
    }

    /// `branch = attention(normed)`: softmax(q kᵀ · scale) v over the sequence's cache, projected
    /// to `[tokens, hidden]`.
    fn attention(&mut self, index: usize, step: &StageStep<'_, B>, normed: &B::Buf) -> Result<(), Error> {
        let &StageStep { backend, step, tokens: n } = step;
        let LayerStage { layers, weights, kv, buffers } = self;
        let (layer, w, kv) = (&layers[index], &weights.layers[index], &mut kv[index]);
        let spec = layer.attention.heads();
        let layout = spec.layout;
        let qkv = buffers.qkv.of(layout.cols());
        let heads = buffers.heads.of(layout.heads * layout.head_dim);
        backend.linear(n, normed, &w.qkv, w.qkv_bias.as_ref(), qkv)?; // [n, (heads + 2 kv_heads) * head_dim]
        let prologue = Prologue {
            layout,
            head_norm: w.head_norm.as_ref(),
            rope: match spec.positions {
                Positions::None => None,
                Positions::Rotary { table } => Some(&weights.ropes[table]),
            },
        };
        backend.prologue(step, qkv, &prologue, kv)?;
        backend.attention(step, qkv, kv, &attention_spec(layer), heads)?; // [n, heads * head_dim]
        backend.linear(n, heads, &w.out, w.out_bias.as_ref(), &mut buffers.branch)?; // [n, hidden]
        Ok(())
    }

    /// `branch = down(act(gate(normed)) * up(normed))`, `[tokens, hidden]`.
    fn mlp(&mut self, index: usize, step: &StageStep<'_, B>, normed: &B::Buf) -> Result<(), Error> {
        let &StageStep { backend, tokens: n, .. } = step;
        let LayerStage { layers, weights, buffers, .. } = self;
        let (layer, w) = (&layers[index], &weights.layers[index]);
        let Mlp::Gated(mlp) = &layer.mlp;
        let (gate_up, gated) = (buffers.gate_up.of(2 * mlp.width), buffers.gated.of(mlp.width));
        backend.linear(n, normed, &w.gate_up, w.gate_up_bias.as_ref(), gate_up)?; // [n, 2 * width]
        backend.gate(n, mlp.act, gate_up, gated)?; // [n, width]
        backend.linear(n, gated, &w.down, w.down_bias.as_ref(), &mut buffers.branch)?; // [n, hidden]
        Ok(())
    }
}

impl<B: Backend> Stage<B> for LayerStage<B> {
    fn forward(
        &mut self,
        step: &StageStep<'_, B>,
        states: &mut HiddenStates<B>,
        group: &mut RankGroup<B>,
    ) -> Result<(), Error> {
        let &StageStep { backend, tokens: n, .. } = step;
        let HiddenStates { residual, normed } = states;
        backend.norm(n, residual, self.weights.norm_before(0), normed)?; // [n, hidden]
        for index in 0..self.layers.len() {
            self.attention(index, step, normed)?;
            let (branch, norm) = (&mut self.buffers.branch, &self.weights.layers[index].mlp_norm);
            group.all_reduce_norm(backend, n, residual, branch, norm, normed)?;

            self.mlp(index, step, normed)?;
            let (branch, norm) = (&mut self.buffers.branch, self.weights.norm_before(index + 1));
            group.all_reduce_norm(backend, n, residual, branch, norm, normed)?;
        }
        Ok(())
    }
}

/// Returns the shape of a layer's KV cache.
fn kv_spec(layer: &LayerSpec, limits: &ShardLimits) -> KvSpec {
    let layout = layer.attention.heads().layout;
    KvSpec {
        blocks: limits.num_blocks,
        block_size: limits.block_size,
        heads: layout.kv_heads,
        key_dim: layout.head_dim,
        value_dim: layout.head_dim,
        format: limits.kv_format,
    }
}

/// Returns the attention of a layer in the terms of the backend.
pub(super) fn attention_spec(layer: &LayerSpec) -> AttentionSpec {
    let heads = layer.attention.heads();
    AttentionSpec { layout: heads.layout, scale: heads.score_scale, window: layer.attention.window() }
}
