//! Per-layer embeddings: what each layer reads of a token beside the residual stream.

use std::f32::consts::FRAC_1_SQRT_2;

use millrace_backend::{Backend, GateFunction, Norm, Result, RowParts};
use millrace_model::{DecoderSpec, PerLayerEmbedding, ShardLimits};

use super::step_context::StepContext;
use crate::Error;

/// The weights of per-layer embeddings that belong to no layer.
pub(super) struct PerLayerWeights<B: Backend> {
    /// `[rows, layers * width]`
    pub(super) table: B::Matrix,
    /// Factor on the rows of the table.
    pub(super) factor: f32,
    pub(super) projection: B::Matrix, // [layers * width, hidden]
    pub(super) norm: Norm<B::Vector>, // [width]
}

/// The weights by which one layer reads its input.
pub(super) struct LayerInputWeights<B: Backend> {
    pub(super) gate: B::Matrix,       // [width, hidden]
    pub(super) projection: B::Matrix, // [hidden, width]
    pub(super) norm: Norm<B::Vector>, // [hidden]
}

/// The inputs of all layers, for up to `t` tokens.
pub(super) struct LayerInputs<B: Backend> {
    plan: PerLayerEmbedding,
    layers: usize,
    /// Factor on the projection of the embedding.
    projection_factor: f32,
    weights: PerLayerWeights<B>,
    /// `[t, layers * width]`
    inputs: B::Buf,
    /// The projection of the embedding, `[t, layers * width]`.
    projected: B::Buf,
    /// The gated input of one layer, `[t, width]`.
    gated: B::Buf,
}

impl<B: Backend> LayerInputs<B> {
    /// Allocates the buffers for the per-layer embeddings `plan` of `spec`.
    pub(super) fn new(
        backend: &B,
        spec: &DecoderSpec,
        plan: PerLayerEmbedding,
        weights: PerLayerWeights<B>,
        limits: &ShardLimits,
    ) -> Result<Self> {
        let (tokens, layers) = (limits.max_step_tokens, spec.layers.len());
        Ok(LayerInputs {
            plan,
            layers,
            projection_factor: (spec.hidden as f32).sqrt().recip(),
            weights,
            inputs: backend.buf(tokens, layers * plan.width)?,
            projected: backend.buf(tokens, layers * plan.width)?,
            gated: backend.buf(tokens, plan.width)?,
        })
    }

    /// Computes the inputs of all layers: `(norm(projection · embedding) + table[token]) / √2`.
    /// `embedding` is the scaled embedding of the step's tokens, `[tokens, hidden]`.
    pub(super) fn compute(
        &mut self,
        step: &StepContext<'_, B>,
        embedding: &B::Buf,
    ) -> std::result::Result<(), Error> {
        let LayerInputs { plan, layers, projection_factor, weights, inputs, projected, .. } = self;
        let &StepContext { backend, step, tokens: n } = step;
        backend.embed(step, &weights.table, 0, weights.factor, inputs)?; // [n, layers * width]
        backend.linear(n, embedding, &weights.projection, None, projected)?;
        backend.scale(n, *projection_factor, projected)?;
        let parts = RowParts { first: 0, count: *layers, cols: plan.width };
        backend.norm_parts(n, projected, parts, &weights.norm)?;
        backend.add(n, projected, inputs)?;
        Ok(backend.scale(n, FRAC_1_SQRT_2, inputs)?)
    }

    /// `out = projection · (act(gate · x) * input)`, `[tokens, hidden]`, for the input of layer
    /// `index` and the residual stream `x`.
    pub(super) fn project(
        &mut self,
        step: &StepContext<'_, B>,
        index: usize,
        w: &LayerInputWeights<B>,
        x: &B::Buf,
        out: &mut B::Buf,
    ) -> std::result::Result<(), Error> {
        let LayerInputs { plan: PerLayerEmbedding { width, act, .. }, inputs, gated, .. } = self;
        let &StepContext { backend, tokens: n, .. } = step;
        backend.linear(n, x, &w.gate, None, gated)?; // [n, width]
        backend.activate(n, *act, gated)?;
        backend.multiply_gates(n, (inputs, index * *width), GateFunction::Identity, gated)?;
        Ok(backend.linear(n, gated, &w.projection, None, out)?) // [n, hidden]
    }
}
