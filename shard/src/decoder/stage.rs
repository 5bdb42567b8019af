//! A range of layers, with everything that belongs to them.

use std::ops::Range;

use millrace_kernels::{
    AttentionSpec, Backend, HeadNorm, KvSpec, Norm, NormKind, Prologue, QkvLayout, RopeSpec, RowParts,
    ScoreTerms,
};

use super::group::RankGroup;
use super::mlp::MlpBuffers;
use super::step::StageStep;
use super::weights::{LayerWeights, MlpWeights, QkvWeights};
use super::workspace::{HiddenStates, LayerBuffers};
use crate::model::{
    AttentionHeads, DecoderSpec, HeadNormPlan, LayerSpec, Mlp, NormPlace, Positions, Residual,
};
use crate::{Error, ShardLimits};

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

/// The two branches of a layer, in the order in which they are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Branch {
    Attention,
    Mlp,
}

impl<B: Backend> StageWeights<B> {
    /// Returns the norm that attention of layer `index` reads, or the one after the last layer.
    /// There is none if attention reads the residual stream as it is.
    fn norm_before(&self, index: usize) -> Option<&Norm<B::Vector>> {
        match self.layers.get(index) {
            Some(layer) => layer.attention_norm.as_ref(),
            None => Some(&self.exit_norm),
        }
    }

    /// Returns the norm that is computed after a branch of layer `index` was added to the residual
    /// stream.
    fn norm_after(&self, index: usize, branch: Branch) -> Option<&Norm<B::Vector>> {
        match branch {
            Branch::Attention => self.layers[index].mlp_norm.as_ref(),
            Branch::Mlp => self.norm_before(index + 1),
        }
    }
}

/// How branches read the residual stream, and how they are added to it.
#[derive(Debug, Clone, Copy)]
struct BranchPlan {
    place: NormPlace,
    residual: Residual,
    /// Factor on the output of each branch.
    factor: f32,
}

/// Consecutive layers on one device: their weights, KV caches and buffers.
pub(super) struct LayerStage<B: Backend> {
    layers: Vec<LayerSpec>,
    plan: BranchPlan,
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
        let plan = BranchPlan { place: spec.norm.place, residual: spec.residual, factor: spec.branch_factor };
        let layers = spec.layers[layers].to_vec();
        let kv = layers.iter().map(|layer| backend.kv(kv_spec(layer, limits)));
        let kv = kv.collect::<millrace_kernels::Result<_>>()?;
        let buffers = LayerBuffers::new(backend, &layers, spec.hidden, limits)?;
        Ok(LayerStage { layers, plan, weights, kv, buffers })
    }

    /// `branch = attention(x)`: softmax(scores) v over the sequence's cache, projected to `[tokens,
    /// hidden]`.
    fn attention(&mut self, index: usize, stage_step: &StageStep<'_, B>, x: &B::Buf) -> Result<(), Error> {
        let &StageStep { backend, step, tokens: n } = stage_step;
        let LayerStage { layers, weights, kv, buffers, .. } = self;
        let (layer, w, kv) = (&layers[index], &weights.layers[index], &mut kv[index]);
        let spec = layer.attention.heads();
        let layout = spec.layout;
        let w_qkv = match &w.qkv {
            QkvWeights::Fused(matrix) => matrix,
            QkvWeights::Latent(of_latent) => {
                let LayerBuffers { latent, branch, .. } = buffers;
                let result = latent.compute(stage_step, (spec, of_latent), &weights.ropes, x, kv)?;
                backend.linear(n, result, &w.out, w.out_bias.as_ref(), branch)?; // [n, hidden]
                return Ok(());
            }
        };
        let qkv = buffers.qkv.of(layout.cols());
        let heads = buffers.heads.of(layout.heads * layout.head_dim);
        backend.linear(n, x, w_qkv, w.qkv_bias.as_ref(), qkv)?; // [n, (heads + 2 kv_heads) * head_dim]
        // The prologue computes the usual norm of heads itself.
        let in_prologue = |norms: &&HeadNorm<B::Vector>| {
            spec.head_norm == HeadNormPlan::Shared && norms.q.kind == NormKind::Rms
        };
        if let Some(norms) = w.head_norm.as_ref().filter(|norms| !in_prologue(norms)) {
            let (queries, keys) = head_parts(spec);
            backend.norm_parts(n, qkv, queries, &norms.q)?;
            backend.norm_parts(n, qkv, keys, &norms.k)?;
        }
        let prologue = Prologue {
            layout,
            head_norm: w.head_norm.as_ref().filter(in_prologue),
            rope: match spec.positions {
                Positions::None | Positions::Linear(_) => None,
                Positions::Rotary { table } => Some(&weights.ropes[table]),
            },
        };
        backend.prologue(step, qkv, &prologue, kv)?;
        let terms = ScoreTerms { alibi: w.alibi.as_ref(), sinks: w.sinks.as_ref() };
        backend.attention(step, qkv, kv, &attention_spec(layer), terms, heads)?; // [n, heads * head_dim]
        backend.linear(n, heads, &w.out, w.out_bias.as_ref(), &mut buffers.branch)?; // [n, hidden]
        Ok(())
    }

    /// `branch = mlp(x)`, `[tokens, hidden]`.
    fn mlp(&mut self, index: usize, step: &StageStep<'_, B>, x: &B::Buf) -> Result<(), Error> {
        let LayerStage { layers, weights, buffers, .. } = self;
        let (layer, w) = (&layers[index], &weights.layers[index]);
        let LayerBuffers { branch, gate_up, activated, experts, .. } = buffers;
        let mlp = MlpBuffers { gate_up, activated };
        match (&layer.mlp, &w.mlp) {
            (Mlp::Gated(spec), MlpWeights::Dense(w)) => mlp.compute(step, (spec, true), w, x, branch),
            (Mlp::Plain(spec), MlpWeights::Dense(w)) => mlp.compute(step, (spec, false), w, x, branch),
            (Mlp::Experts(spec), MlpWeights::Experts(w)) => experts.compute(step, (spec, w), x, mlp, branch),
            _ => unreachable!("weights are loaded as specified; this is a bug"),
        }
    }

    /// Adds the branch that was computed last to the residual stream, and leaves what the next
    /// branch reads in `states.normed`, if that is normalized.
    fn add_branch(
        &mut self,
        (index, branch): (usize, Branch),
        step: &StageStep<'_, B>,
        states: &mut HiddenStates<B>,
        group: &mut RankGroup<B>,
    ) -> Result<(), Error> {
        let &StageStep { backend, tokens: n, .. } = step;
        let HiddenStates { residual, normed } = states;
        let LayerStage { plan, weights, buffers, .. } = self;
        let layer = &weights.layers[index];
        if plan.factor != 1.0 {
            backend.scale(n, plan.factor, &mut buffers.branch)?;
        }
        let next = weights.norm_after(index, branch);
        let own = match branch {
            Branch::Attention => layer.attention_out_norm.as_ref(),
            Branch::Mlp => layer.mlp_out_norm.as_ref(),
        };
        if let Some(own) = own {
            group.all_reduce(backend, n, &mut buffers.branch)?;
            backend.norm(n, &buffers.branch, own, normed)?;
            backend.add(n, normed, residual)?;
            return next.map_or(Ok(()), |norm| Ok(backend.norm(n, residual, norm, normed)?));
        }
        if matches!(plan.residual, Residual::Parallel { .. }) && branch == Branch::Attention {
            // The MLP reads the residual stream from before attention.
            if let Some(norm) = next {
                backend.norm(n, residual, norm, normed)?;
            }
            group.all_reduce(backend, n, &mut buffers.branch)?;
            return Ok(backend.add(n, &buffers.branch, residual)?);
        }
        match next {
            Some(norm) => group.all_reduce_norm(backend, n, residual, &mut buffers.branch, norm, normed),
            None => {
                group.all_reduce(backend, n, &mut buffers.branch)?;
                Ok(backend.add(n, &buffers.branch, residual)?)
            }
        }
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
        if let Some(norm) = self.weights.norm_before(0) {
            backend.norm(n, &states.residual, norm, &mut states.normed)?; // [n, hidden]
        }
        let is_normed = self.plan.place.is_before();
        for index in 0..self.layers.len() {
            self.attention(index, step, if is_normed { &states.normed } else { &states.residual })?;
            self.add_branch((index, Branch::Attention), step, states, group)?;
            self.mlp(index, step, if is_normed { &states.normed } else { &states.residual })?;
            self.add_branch((index, Branch::Mlp), step, states, group)?;
        }
        Ok(())
    }
}

/// Returns the parts of a row of the fused projection that are normalized: queries and keys.
fn head_parts(heads: &AttentionHeads) -> (RowParts, RowParts) {
    let QkvLayout { heads: query_heads, kv_heads, head_dim } = heads.layout;
    let parts = |first: usize, count: usize| match heads.head_norm {
        HeadNormPlan::AllHeads => RowParts { first, count: 1, cols: count * head_dim },
        _ => RowParts { first, count, cols: head_dim },
    };
    (parts(0, query_heads), parts(query_heads * head_dim, kv_heads))
}

/// Returns the shape of a layer's KV cache.
fn kv_spec(layer: &LayerSpec, limits: &ShardLimits) -> KvSpec {
    layer.attention.heads().kv_spec(limits.num_blocks, limits.block_size, limits.kv_format)
}

/// Returns the attention of a layer in the terms of the backend.
pub(super) fn attention_spec(layer: &LayerSpec) -> AttentionSpec {
    let heads = layer.attention.heads();
    AttentionSpec {
        layout: heads.layout,
        scale: heads.score_scale,
        window: layer.attention.window(),
        soft_cap: heads.score_cap,
    }
}
