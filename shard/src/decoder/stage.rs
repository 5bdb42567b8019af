//! A range of layers, with everything that belongs to them.

use std::ops::Range;

use millrace_backend::{
    Backend, GateFunction, HeadNorm, KeyWindow, Norm, NormKind, Prologue, QkvLayout, RopeSpec, RowParts,
    ScoreTerms,
};
use millrace_model::{
    Attention, AttentionHeads, DecoderSpec, HeadNormPlan, LayerSpec, Mlp, NormPlace, Positions,
    RecurrentLayer, Residual, ShardLimits,
};

use super::experts::ExpertsIo;
use super::group::RankGroup;
use super::mlp::{MlpBuffers, MlpPlan};
use super::step::StageStep;
use super::weights::{AttentionWeights, LayerWeights, MlpWeights, SoftmaxWeights};
use super::workspace::{HiddenStates, LayerBuffers};
use crate::Error;

/// A range of a model's layers that computes hidden states from hidden states.
///
/// A decoder is an embedding, a list of stages, and a head. One stage has the layers of the
/// decoder's device. If the device has not enough memory for all layers, the host computes the
/// first ones in a stage before it ([`HostLayers`](super::HostLayers)). In a pipeline, other stages
/// pass on the hidden states of each rank ([`pipeline`](super::pipeline)).
pub(super) trait Stage<B: Backend> {
    /// Tells whether the device can record the stage as a part of a graph.
    fn is_recordable(&self) -> bool {
        true
    }

    /// Adds the branches of the stage's layers to `states.residual`, `[tokens, hidden]`, and leaves
    /// the normalized sum in `states.normed`. Stores the keys and values of the step's tokens, and
    /// updates the recurrent states of its sequences.
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
    /// Factors on queries by position, `[positions]`.
    pub(super) query_scale: Option<B::Vector>,
    /// The norm after the last layer, if there is one.
    pub(super) exit_norm: Option<Norm<B::Vector>>,
}

/// The two branches of a layer, in the order in which they are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Branch {
    Attention,
    Mlp,
}

impl<B: Backend> StageWeights<B> {
    /// Returns the norm that the first branch of layer `index` reads, or the one after the last
    /// layer. There is none if the branch reads the residual stream as it is.
    fn norm_before(&self, index: usize) -> Option<&Norm<B::Vector>> {
        match self.layers.get(index) {
            Some(LayerWeights { attention: AttentionWeights::None, mlp_norm, .. }) => mlp_norm.as_ref(),
            Some(layer) => layer.attention_norm.as_ref(),
            None => self.exit_norm.as_ref(),
        }
    }

    /// Returns the norm that is computed after a branch of layer `index` was added to the residual
    /// stream.
    fn norm_after(&self, index: usize, branch: Branch) -> Option<&Norm<B::Vector>> {
        let layer = &self.layers[index];
        match (branch, &layer.mlp) {
            (Branch::Attention, MlpWeights::None) | (Branch::Mlp, _) => self.norm_before(index + 1),
            (Branch::Attention, _) => layer.mlp_norm.as_ref(),
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

/// The memory of a layer for sequences between steps.
struct LayerCache<B: Backend> {
    /// The paged cache of keys and values, if the layer has softmax attention.
    kv: Option<B::Kv>,
    /// The recurrent states of all slots, if the layer has a recurrence.
    states: Option<B::States>,
}

/// Consecutive layers on one device: their weights, KV caches and buffers.
pub(super) struct LayerStage<B: Backend> {
    layers: Vec<LayerSpec>,
    /// Width of the residual stream.
    hidden: usize,
    plan: BranchPlan,
    weights: StageWeights<B>,
    /// The state of sequences, one for each layer.
    caches: Vec<LayerCache<B>>,
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
    ) -> millrace_backend::Result<Self> {
        let plan = BranchPlan { place: spec.norm.place, residual: spec.residual, factor: spec.branch_factor };
        let layers = spec.layers[layers].to_vec();
        let caches = layers.iter().map(|layer| cache(backend, &layer.attention, limits));
        let caches = caches.collect::<millrace_backend::Result<_>>()?;
        let buffers = LayerBuffers::new(backend, &layers, spec.hidden, limits)?;
        Ok(LayerStage { layers, hidden: spec.hidden, plan, weights, caches, buffers })
    }

    /// `branch = attention(x)`, `[tokens, hidden]`.
    fn attention(&mut self, index: usize, step: &StageStep<'_, B>, x: &B::Buf) -> Result<(), Error> {
        let LayerStage { layers, hidden, weights, caches, buffers, .. } = self;
        let attention = &layers[index].attention;
        let cache = &mut caches[index];
        if let (Some(spec), Some(kv)) = (attention.heads(), &mut cache.kv) {
            match &weights.layers[index].attention {
                AttentionWeights::Softmax(w) | AttentionWeights::Hybrid(w, _) => {
                    let query_scale = weights.query_scale.as_ref().filter(|_| spec.scales_queries);
                    let window = attention.key_window();
                    let softmax = Softmax { spec, window, ropes: &weights.ropes, query_scale, w };
                    softmax.compute(step, x, kv, buffers)?;
                }
                AttentionWeights::Latent(w) => {
                    let LayerBuffers { latent, branch, .. } = buffers;
                    let result = latent.compute(step, (spec, w), &weights.ropes, x, kv)?;
                    step.backend.linear(step.tokens, result, &w.out, w.out_bias.as_ref(), branch)?;
                }
                _ => unreachable!("weights are loaded as specified; this is a bug"),
            }
            if spec.out_factor != 1.0 {
                step.backend.scale(step.tokens, spec.out_factor, &mut buffers.branch)?;
            }
        }
        if let (Some(spec), Some(states)) = (attention.recurrent(), &mut cache.states) {
            let LayerBuffers { recurrent, branch, beside, .. } = buffers;
            match &weights.layers[index].attention {
                AttentionWeights::Recurrent(w) => recurrent.compute(step, (spec, w), x, states, branch)?,
                AttentionWeights::Hybrid(_, w) => {
                    let result = beside.of(*hidden);
                    recurrent.compute(step, (spec, w), x, states, result)?;
                    step.backend.add(step.tokens, result, branch)?;
                }
                _ => unreachable!("weights are loaded as specified; this is a bug"),
            }
        }
        Ok(())
    }

    /// `branch = mlp(x)`, `[tokens, hidden]`.
    fn mlp(
        &mut self,
        index: usize,
        step: &StageStep<'_, B>,
        states: &HiddenStates<B>,
        group: &mut RankGroup<B>,
    ) -> Result<(), Error> {
        let LayerStage { layers, plan, weights, buffers, .. } = self;
        let residual = &states.residual;
        let x = if plan.place.is_before() { &states.normed } else { residual };
        let (layer, w) = (&layers[index], &weights.layers[index]);
        let LayerBuffers { branch, gate_up, activated, experts, .. } = buffers;
        let mlp = MlpBuffers { gate_up, activated };
        match (&layer.mlp, &w.mlp) {
            (Mlp::Gated(spec) | Mlp::Plain(spec), MlpWeights::Dense(w)) => {
                mlp.compute(step, MlpPlan::dense(spec, layer.mlp.is_gated()), w, x, branch)
            }
            (Mlp::Experts(spec), MlpWeights::Experts(w)) => {
                let io = ExpertsIo { x, residual, mlp, group, out: branch };
                experts.compute(step, (spec, w), io)
            }
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
        // A result that is the sum over all ranks already is added by each rank alone.
        let is_summed = branch == Branch::Mlp && layer.mlp.is_summed();
        let mut alone = RankGroup::Alone;
        let group = if is_summed { &mut alone } else { group };
        if plan.factor != 1.0 {
            backend.scale(n, plan.factor, &mut buffers.branch)?;
        }
        if plan.place.is_of_sums() {
            let norm = match branch {
                Branch::Attention => layer.mlp_norm.as_ref(),
                Branch::Mlp => layer.mlp_out_norm.as_ref(),
            };
            if let Some(norm) = norm {
                group.all_reduce_norm(backend, n, residual, &mut buffers.branch, norm, normed)?;
            }
            return Ok(backend.copy_rows(normed, 0, n, residual, 0)?);
        }
        if let Residual::Normalized { factor } = plan.residual {
            // The branch is added to what it has read.
            backend.copy_rows(normed, 0, n, residual, 0)?;
            backend.scale(n, factor, residual)?;
        }
        // A layer with a scalar ends after its branches.
        let next = if ends_here(layer, branch) { None } else { weights.norm_after(index, branch) };
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

    /// Multiplies the residual stream by the scalar of layer `index`, if it has one, and leaves
    /// what the next layer reads in `states.normed`, if that is normalized.
    fn end_layer(
        &mut self,
        index: usize,
        step: &StageStep<'_, B>,
        states: &mut HiddenStates<B>,
    ) -> Result<(), Error> {
        let &StageStep { backend, tokens: n, .. } = step;
        let HiddenStates { residual, normed } = states;
        let Some(scalar) = self.weights.layers[index].scalar else { return Ok(()) };
        backend.scale(n, scalar, residual)?;
        if let Some(norm) = self.weights.norm_after(index, Branch::Mlp) {
            backend.norm(n, residual, norm, normed)?;
        }
        Ok(())
    }
}

/// Returns whether more than the next norm follows after a branch of a layer.
fn ends_here<B: Backend>(layer: &LayerWeights<B>, branch: Branch) -> bool {
    branch == Branch::Mlp && layer.scalar.is_some()
}

/// Softmax attention of one layer.
struct Softmax<'a, B: Backend> {
    spec: &'a AttentionHeads,
    window: Option<KeyWindow>,
    ropes: &'a [RopeSpec<B::Vector>],
    query_scale: Option<&'a B::Vector>,
    w: &'a SoftmaxWeights<B>,
}

impl<B: Backend> Softmax<'_, B> {
    /// `branch = attention(x)`: softmax(scores) v over the sequence's cache, projected to `[tokens,
    /// hidden]`.
    fn compute(
        &self,
        step: &StageStep<'_, B>,
        x: &B::Buf,
        kv: &mut B::Kv,
        buffers: &mut LayerBuffers<B>,
    ) -> Result<(), Error> {
        let &StageStep { backend, step, tokens: n, .. } = step;
        let Softmax { spec, w, .. } = *self;
        let layout = spec.layout;
        let qkv = buffers.qkv.of(layout.cols());
        let heads = buffers.heads.of(layout.heads * layout.head_dim);
        backend.linear(n, x, &w.qkv, w.qkv_bias.as_ref(), qkv)?; // [n, (heads + 2 kv_heads) * head_dim]
        // The prologue computes the usual norm of heads itself.
        let in_prologue = |norms: &&HeadNorm<B::Vector>| {
            let is_shared = matches!(spec.head_norm, HeadNormPlan::Shared | HeadNormPlan::Unscaled);
            is_shared && norms.q.kind == NormKind::Rms
        };
        if let Some(norms) = w.head_norm.as_ref().filter(|norms| !in_prologue(norms)) {
            let (queries, keys) = head_parts(spec);
            backend.norm_parts(n, qkv, queries, &norms.q)?;
            backend.norm_parts(n, qkv, keys, &norms.k)?;
        }
        if let Some(norm) = &w.value_norm {
            let QkvLayout { heads, kv_heads: count, head_dim: cols } = layout;
            backend.norm_parts(n, qkv, RowParts { first: (heads + count) * cols, count, cols }, norm)?;
        }
        let prologue = Prologue {
            layout,
            head_norm: w.head_norm.as_ref().filter(in_prologue),
            rope: match spec.positions {
                Positions::None | Positions::Linear(_) => None,
                Positions::Rotary { table } => Some(&self.ropes[table]),
            },
            query_scale: self.query_scale,
        };
        backend.prologue(step, qkv, &prologue, kv)?;
        let terms = ScoreTerms { alibi: w.alibi.as_ref(), sinks: w.sinks.as_ref() };
        backend.attention(step, qkv, kv, &spec.softmax_spec(self.window), terms, heads)?; // [n, heads * head_dim]
        if let Some(gate) = &w.out_gate {
            let gates = buffers.out_gates.of(layout.heads * layout.head_dim);
            backend.linear(n, x, gate, None, gates)?; // [n, heads * head_dim]
            backend.multiply_gates(n, (gates, 0), GateFunction::Sigmoid, heads)?;
        }
        backend.linear(n, heads, &w.out, w.out_bias.as_ref(), &mut buffers.branch)?; // [n, hidden]
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
        if let Some(norm) = self.weights.norm_before(0) {
            backend.norm(n, &states.residual, norm, &mut states.normed)?; // [n, hidden]
        }
        let is_normed = self.plan.place.is_before();
        for index in 0..self.layers.len() {
            if !self.layers[index].attention.is_none() {
                self.attention(index, step, if is_normed { &states.normed } else { &states.residual })?;
                self.add_branch((index, Branch::Attention), step, states, group)?;
            }
            if !self.layers[index].mlp.is_none() {
                self.mlp(index, step, states, group)?;
                self.add_branch((index, Branch::Mlp), step, states, group)?;
            }
            self.end_layer(index, step, states)?;
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

/// Allocates what a layer remembers of sequences between steps.
fn cache<B: Backend>(
    backend: &B,
    attention: &Attention,
    limits: &ShardLimits,
) -> millrace_backend::Result<LayerCache<B>> {
    let kv = |heads: &AttentionHeads| {
        backend.kv(heads.kv_spec(limits.num_blocks, limits.block_size, limits.kv_format))
    };
    let states = |layer: &RecurrentLayer| backend.states(layer.state_spec(limits.max_sequences));
    Ok(LayerCache {
        kv: attention.heads().map(kv).transpose()?,
        states: attention.recurrent().map(states).transpose()?,
    })
}
