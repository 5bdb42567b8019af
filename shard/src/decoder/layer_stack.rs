//! Consecutive layers on one device, with everything that belongs to them.

use std::ops::Range;

use millrace_backend::{Backend, Norm, RopeSpec, StateCopy};
use millrace_model::{
    AttentionHeads, DecoderSpec, LayerSpec, Mlp, NormPlace, RecurrentLayer, Residual, ShardLimits,
};

use super::experts::ExpertsIo;
use super::group::RankGroup;
use super::mlp::{MlpBuffers, MlpPlan};
use super::recurrent::RecurrentOutput;
use super::residual::BranchOutput;
use super::softmax::Softmax;
use super::step_context::StepContext;
use super::weights::{AttentionWeights, LayerWeights, MlpWeights};
use super::workspace::{HiddenStates, LayerBuffers};
use crate::Error;

/// The weights of consecutive layers.
pub(super) struct StackWeights<B: Backend> {
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

impl<B: Backend> StackWeights<B> {
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

/// Consecutive layers on one device: their weights, KV caches and buffers.
pub(super) struct LayerStack<B: Backend> {
    layers: Vec<LayerSpec>,
    /// Width of the residual stream.
    hidden: usize,
    plan: BranchPlan,
    weights: StackWeights<B>,
    /// For each layer the paged cache of keys and values, if it has softmax attention and does not
    /// read the cache of another layer.
    kv: Vec<Option<B::Kv>>,
    /// For each layer the recurrent states of all slots, if it has a recurrence.
    recurrent_states: Vec<Option<B::States>>,
    buffers: LayerBuffers<B>,
}

impl<B: Backend> LayerStack<B> {
    /// Creates a stack of the layers `layers` of `spec`, whose weights are `weights`, and allocates
    /// their KV caches, recurrent states and buffers.
    pub(super) fn new(
        backend: &B,
        spec: &DecoderSpec,
        layers: Range<usize>,
        weights: StackWeights<B>,
        limits: &ShardLimits,
    ) -> millrace_backend::Result<Self> {
        let plan = BranchPlan { place: spec.norm.place, residual: spec.residual, factor: spec.branch_factor };
        let layers = spec.layers[layers].to_vec();
        let (mut kv, mut recurrent_states) = (Vec::new(), Vec::new());
        for LayerSpec { attention, .. } in &layers {
            let kv_spec = |heads: &AttentionHeads| {
                heads.kv_spec(limits.num_blocks, limits.block_size, limits.kv_format)
            };
            kv.push(attention.cached_heads().map(|heads| backend.kv(kv_spec(heads))).transpose()?);
            let states = |layer: &RecurrentLayer| {
                backend.states(layer.state_spec(limits.max_sequences, limits.state_checkpoints))
            };
            recurrent_states.push(attention.recurrent().map(states).transpose()?);
        }
        let buffers = LayerBuffers::new(backend, spec, &layers, limits)?;
        Ok(LayerStack { layers, hidden: spec.hidden, plan, weights, kv, recurrent_states, buffers })
    }

    /// Iterates over the KV caches, in the order of their layers.
    pub(super) fn caches(&self) -> impl Iterator<Item = &B::Kv> {
        self.kv.iter().flatten()
    }

    /// Iterates over the KV caches for writing.
    pub(super) fn caches_mut(&mut self) -> impl Iterator<Item = &mut B::Kv> {
        self.kv.iter_mut().flatten()
    }

    /// Returns the weights of the layers, so that adapters beside them can be replaced.
    pub(super) fn weights(&mut self) -> impl Iterator<Item = &mut LayerWeights<B>> {
        self.weights.layers.iter_mut()
    }

    /// Copies the recurrent states of sequences, in all layers.
    pub(super) fn copy_states(&mut self, backend: &B, copies: &[StateCopy]) -> Result<(), Error> {
        if !copies.is_empty() {
            self.recurrent_states.iter_mut().flatten().try_for_each(|of| backend.copy_states(copies, of))?;
        }
        Ok(())
    }

    /// Adds the branches of the layers to `states.residual`, `[tokens, hidden]`, and leaves the
    /// normalized sum in `states.normed`. Stores the keys and values of the step's tokens, and
    /// updates the recurrent states of its sequences.
    pub(super) fn forward(
        &mut self,
        step: &StepContext<'_, B>,
        states: &mut HiddenStates<B>,
        group: &mut RankGroup<B>,
    ) -> Result<(), Error> {
        let &StepContext { backend, tokens: n, .. } = step;
        if let Some(norm) = self.weights.norm_before(0) {
            backend.norm(n, &states.residual, norm, &mut states.normed)?; // [n, hidden]
        }
        for index in 0..self.layers.len() {
            if !self.layers[index].attention.is_none() {
                // A layer that has no norm before attention reads the residual stream.
                let is_normed = self.plan.place.is_before() && !self.layers[index].reads_residual();
                self.attention(index, step, if is_normed { &states.normed } else { &states.residual })?;
                self.add_branch(index, Branch::Attention, step, states, group)?;
            }
            if !self.layers[index].mlp.is_none() {
                self.mlp(index, step, states, group)?;
                self.add_branch(index, Branch::Mlp, step, states, group)?;
            }
            self.end_layer(index, step, states)?;
        }
        Ok(())
    }

    /// `branch = attention(x)`, `[tokens, hidden]`.
    fn attention(&mut self, index: usize, step: &StepContext<'_, B>, x: &B::Buf) -> Result<(), Error> {
        let LayerStack { layers, hidden, weights, kv, recurrent_states, buffers, .. } = self;
        let attention = &layers[index].attention;
        // A model whose layers read each other's caches has all layers on one device.
        let cache = attention.heads().and_then(|heads| heads.kv_source).unwrap_or(index);
        if let (Some(spec), Some(kv)) = (attention.heads(), &mut kv[cache]) {
            let query_scale = weights.query_scale.as_ref().filter(|_| spec.scales_queries);
            match &weights.layers[index].attention {
                AttentionWeights::Softmax(w) | AttentionWeights::Hybrid(w, _) => {
                    let window = attention.key_window();
                    let softmax = Softmax { spec, window, ropes: &weights.ropes, query_scale, w };
                    softmax.compute(step, x, kv, buffers)?;
                }
                AttentionWeights::Latent(w) => {
                    let LayerBuffers { latent, branch, adapter_features: features, .. } = buffers;
                    let by_position = (&weights.ropes[..], query_scale);
                    let result = latent.compute(step, (spec, w), by_position, x, kv, features)?;
                    w.out.compute(step, result, features, branch)?;
                }
                _ => unreachable!("weights are loaded as specified; this is a bug"),
            }
            if spec.out_factor != 1.0 {
                step.backend.scale(step.tokens, spec.out_factor, &mut buffers.branch)?;
            }
        }
        if let (Some(spec), Some(states)) = (attention.recurrent(), &mut recurrent_states[index]) {
            let LayerBuffers { recurrent, branch, beside, adapter_features: features, .. } = buffers;
            match &weights.layers[index].attention {
                AttentionWeights::Recurrent(w) => {
                    let output = RecurrentOutput { branch, features };
                    recurrent.compute(step, (spec, w), x, states, output)?;
                }
                AttentionWeights::Hybrid(_, w) => {
                    let result = beside.of(*hidden);
                    let output = RecurrentOutput { branch: result, features };
                    recurrent.compute(step, (spec, w), x, states, output)?;
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
        step: &StepContext<'_, B>,
        states: &HiddenStates<B>,
        group: &mut RankGroup<B>,
    ) -> Result<(), Error> {
        let LayerStack { layers, plan, weights, buffers, .. } = self;
        let residual = &states.residual;
        let x = if plan.place.is_before() { &states.normed } else { residual };
        let (layer, w) = (&layers[index], &weights.layers[index]);
        let LayerBuffers { branch, gate_up, activated, experts, adapter_features, .. } = buffers;
        let mlp = MlpBuffers { gate_up, activated, adapter_features };
        match (&layer.mlp, &w.mlp) {
            (Mlp::Gated(spec) | Mlp::Plain(spec), MlpWeights::Dense(w)) => {
                mlp.compute(step, MlpPlan::dense(spec, w.act, layer.mlp.is_gated()), w, x, branch)
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
        index: usize,
        branch: Branch,
        step: &StepContext<'_, B>,
        states: &mut HiddenStates<B>,
        group: &mut RankGroup<B>,
    ) -> Result<(), Error> {
        let &StepContext { backend, tokens, .. } = step;
        let LayerStack { plan, weights, buffers, .. } = self;
        let layer = &weights.layers[index];
        // A result that is the sum over all ranks already is added by each rank alone.
        let is_summed = branch == Branch::Mlp && layer.mlp.is_summed();
        let mut alone = RankGroup::Alone;
        let group = if is_summed { &mut alone } else { group };
        if plan.factor != 1.0 {
            backend.scale(tokens, plan.factor, &mut buffers.branch)?;
        }
        // A layer with an embedding or a scalar ends after its branches.
        let is_last = branch == Branch::Mlp || matches!(layer.mlp, MlpWeights::None);
        let next = if is_last && ends_later(layer) { None } else { weights.norm_after(index, branch) };
        let output = BranchOutput { backend, tokens, branch: &mut buffers.branch, states, group };
        match (plan.place, plan.residual) {
            (NormPlace::AfterSums, _) => output.add_post_norm(layer.norm_of_sum(branch)),
            (NormPlace::AfterBranches | NormPlace::AroundBranches, _) => {
                output.add_sandwich_norm(layer.norm_of_output(branch), next)
            }
            (NormPlace::BeforeBranches, Residual::Parallel { .. }) if branch == Branch::Attention => {
                output.add_parallel_attention(next)
            }
            (NormPlace::BeforeBranches, Residual::Normalized { factor }) => {
                output.add_to_normed(factor, next)
            }
            (NormPlace::BeforeBranches, Residual::Sequential | Residual::Parallel { .. }) => {
                output.add_pre_norm(next)
            }
        }
    }

    /// Adds what layer `index` makes of its own embedding to the residual stream, multiplies that
    /// by the layer's scalar, and leaves what the next layer reads in `states.normed`, if that is
    /// normalized. Most layers have neither embedding nor scalar, and end with their last branch.
    fn end_layer(
        &mut self,
        index: usize,
        step: &StepContext<'_, B>,
        states: &mut HiddenStates<B>,
    ) -> Result<(), Error> {
        let &StepContext { backend, tokens: n, .. } = step;
        let layer = &self.weights.layers[index];
        if !ends_later(layer) {
            return Ok(());
        }
        if let (Some(w), Some(inputs)) = (&layer.input, &mut states.layer_inputs) {
            let branch = &mut self.buffers.branch;
            inputs.project(step, index, w, &states.residual, branch)?;
            // Each rank has computed the whole.
            let group = &mut RankGroup::Alone;
            BranchOutput { backend, tokens: n, branch, states, group }.add_sandwich_norm(&w.norm, None)?;
        }
        let HiddenStates { residual, normed, .. } = states;
        if let Some(scalar) = layer.scalar {
            backend.scale(n, scalar, residual)?;
        }
        if let Some(norm) = self.weights.norm_after(index, Branch::Mlp) {
            backend.norm(n, residual, norm, normed)?;
        }
        Ok(())
    }
}

impl<B: Backend> LayerWeights<B> {
    /// Returns the norm of the residual stream after a branch was added (post-norm).
    fn norm_of_sum(&self, branch: Branch) -> &Norm<B::Vector> {
        let norm = match branch {
            Branch::Attention => &self.mlp_norm,
            Branch::Mlp => &self.mlp_out_norm,
        };
        norm.as_ref().expect("weights are loaded as specified")
    }

    /// Returns the norm of a branch's output.
    fn norm_of_output(&self, branch: Branch) -> &Norm<B::Vector> {
        let norm = match branch {
            Branch::Attention => &self.attention_out_norm,
            Branch::Mlp => &self.mlp_out_norm,
        };
        norm.as_ref().expect("weights are loaded as specified")
    }
}

/// Returns whether more than the next norm follows after the branches of a layer.
fn ends_later<B: Backend>(layer: &LayerWeights<B>) -> bool {
    layer.input.is_some() || layer.scalar.is_some()
}
