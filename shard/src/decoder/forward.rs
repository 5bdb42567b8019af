//! The computation of one step: embedding, layers, head, and sampling.

use std::ops::Range;
use std::sync::Arc;

use millrace_backend::{
    Backend, BegunStep, ComputedStep, Norm, OpenStep, SampleRow, ScoreRow, Scored, StepInput,
};

use super::group::RankGroup;
use super::host_layers::HostForward;
use super::layer_stack::LayerStack;
use super::narrow_embedding::NarrowEmbedding;
use super::states_input::StatesInput;
use super::step_context::StepContext;
use super::token_types::SecondType;
use super::workspace::HiddenStates;
use crate::Error;

/// The embedding, the layers and the head of a model, and every buffer that a step needs.
pub(super) struct ForwardPass<B: Backend> {
    /// `[vocab_rows, width]`; none on a rank of a pipeline that has only layers.
    pub(super) embedding: Option<Arc<B::Matrix>>,
    /// The projection of embeddings that are not as wide as the residual stream.
    pub(super) embedding_projection: Option<NarrowEmbedding<B>>,
    /// The token of the embedding's first row.
    pub(super) first_row: usize,
    /// Factor on the embedding.
    pub(super) embedding_factor: f32,
    pub(super) embedding_norm: Option<Norm<B::Vector>>, // [hidden]
    /// Learned positions, `[positions, hidden]`.
    pub(super) positions: Option<B::Matrix>,
    /// The numbers that tokens of the second type get in addition.
    pub(super) second_type: Option<SecondType<B>>,
    /// The input beside the embedding, if the decoder is a head that reads the states of a model.
    pub(super) states_input: Option<StatesInput<B>>,
    /// The first layers of the model, if the host computes them.
    pub(super) host_layers: Option<HostForward<B>>,
    /// The layers that the device computes: all others, or this rank's in a pipeline.
    pub(super) layers: LayerStack<B>,
    /// The norm after the layers of the last rank of a pipeline, on the rank that has the head.
    pub(super) pipeline_norm: Option<Norm<B::Vector>>,
    pub(super) head: Head<B>,
    pub(super) states: HiddenStates<B>,
    pub(super) group: RankGroup<B>,
}

/// The head, which computes logits of states.
pub(super) struct Head<B: Backend> {
    /// The projection of states to the width of the head, if that is another.
    pub(super) projection: Option<NarrowEmbedding<B>>,
    /// `[vocab_rows, width]`; none if the head is the embedding.
    pub(super) matrix: Option<Arc<B::Matrix>>,
    /// `[vocab_rows]`
    pub(super) bias: Option<B::Vector>,
    /// Factor on the logits.
    pub(super) factor: f32,
    /// Bound on the logits, after the factor.
    pub(super) soft_cap: Option<f32>,
    /// The states whose logits are computed, `[outputs, hidden]`.
    pub(super) states: B::Buf,
    /// `[outputs, vocab]`.
    pub(super) logits: B::Buf,
    /// The largest number of outputs at once.
    pub(super) max_outputs: usize,
}

impl<B: Backend> ForwardPass<B> {
    /// Tells whether the device can record forward passes as graphs.
    pub(super) fn is_recordable(&self) -> bool {
        // The host's layers are not in a graph, and the states of a pipeline may travel through the
        // memory of the host.
        self.host_layers.is_none() && self.group.place_in_pipeline().is_none()
    }

    /// Computes the forward pass of a step: stores the keys and values of its tokens, leaves their
    /// states in `states.normed`, `[tokens, hidden]`, and the logits of its outputs in
    /// `head.logits`.
    pub(super) fn compute<'q>(
        &mut self,
        backend: &B,
        step: BegunStep<'q, B::Queue>,
        input: &StepInput<'_>,
    ) -> Result<OpenStep<'q, B::Queue>, Error> {
        let open = backend.prepare(step)?;
        let (step, n, m) = (&open, open.tokens(), open.outputs());
        let ForwardPass { embedding, embedding_projection, first_row, states, group, .. } = self;
        let HiddenStates { residual, normed, layer_inputs } = states;
        if let Some(embedding) = embedding {
            let factor = self.embedding_factor;
            match embedding_projection {
                None => backend.embed(step, embedding, *first_row, factor, residual)?, // [n, hidden]
                Some(narrow) => narrow.embed(backend, step, (&**embedding, *first_row), factor, residual)?,
            }
            group.all_reduce(backend, n, residual)?;
        }
        if let Some(input) = &mut self.states_input {
            input.add(backend, n, residual, normed)?;
        }
        if let Some(table) = &self.positions {
            backend.embed_positions(step, table, normed)?;
            backend.add(n, normed, residual)?;
        }
        if let Some(second_type) = &self.second_type {
            second_type.add(backend, input.rows, residual, normed)?;
        }
        if let Some(norm) = &self.embedding_norm {
            backend.norm(n, residual, norm, normed)?;
            backend.copy_rows(normed, 0, n, residual, 0)?;
        }
        let context = StepContext { backend, step, tokens: n };
        if let Some(inputs) = layer_inputs {
            inputs.compute(&context, residual)?;
        }
        if let Some(host_layers) = &mut self.host_layers {
            host_layers(backend, input, residual)?;
        }
        self.layers(&context)?;
        if m > 0 {
            backend.gather(step, &self.states.normed, &mut self.head.states)?; // [m, hidden]
            self.logits(backend, m)?;
        }
        Ok(open)
    }

    /// Computes the layers of the device, from `states.residual` to `states.normed`. In a pipeline,
    /// these are the layers of all ranks, one rank after the other.
    fn layers(&mut self, context: &StepContext<'_, B>) -> Result<(), Error> {
        let ForwardPass { layers, pipeline_norm, states, group, .. } = self;
        let &StepContext { backend, tokens: n, .. } = context;
        let Some((rank, world_size)) = group.place_in_pipeline() else {
            return layers.forward(context, states, group);
        };
        for from in 0..world_size {
            if from == rank {
                layers.forward(context, states, group)?;
            }
            // Only the next rank computes with these states, and rank 0 after the last one. The
            // others take part because every rank calls the same collectives.
            group.pass_on(backend, n, from, &mut states.residual)?;
        }
        if rank != 0 {
            return Ok(());
        }
        let HiddenStates { residual, normed, .. } = states;
        match pipeline_norm {
            Some(norm) => backend.norm(n, residual, norm, normed)?,
            None => backend.copy_rows(residual, 0, n, normed, 0)?,
        }
        Ok(())
    }

    /// Computes the logits of the first `m` rows of `head.states`.
    fn logits(&mut self, backend: &B, m: usize) -> Result<(), Error> {
        let ForwardPass { embedding, head, group, .. } = self;
        let Head { projection, matrix, bias, factor, soft_cap, states, logits, .. } = head;
        // A rank of a pipeline that has only layers has no logits.
        let Some(matrix) = matrix.as_ref().or(embedding.as_ref()) else { return Ok(()) };
        let bias = bias.as_ref();
        let states = match projection {
            Some(narrow) => narrow.project(backend, m, states)?,
            None => states,
        };
        match group {
            RankGroup::Alone | RankGroup::Pipeline(_) => backend.linear(m, states, matrix, bias, logits)?, // [m, vocab]
            RankGroup::Member(member) => {
                backend.linear(m, states, matrix, bias, &mut member.own_logits)?; // [m, vocab_rows]
                member.gather_logits(backend, m, logits)?; // [m, vocab]
            }
        }
        if *factor != 1.0 {
            backend.scale(m, *factor, logits)?;
        }
        if let Some(cap) = *soft_cap {
            backend.soft_cap(m, cap, logits)?;
        }
        Ok(())
    }

    /// Samples a token for each of the step's outputs, on the first rank, and appends the tokens to
    /// their sequences on all ranks. The logits are lost.
    pub(super) fn sample<'q>(
        &mut self,
        backend: &B,
        mut step: OpenStep<'q, B::Queue>,
        samples: &[SampleRow<'_>],
    ) -> Result<ComputedStep<'q, B::Queue>, Error> {
        if self.samples() {
            backend.sample(&mut step, &mut self.head.logits, samples)?;
        }
        self.group.broadcast_sampled(backend, &mut step)?;
        Ok(backend.append(step)?)
    }

    /// Scores one token for each of `rows`, by the states of the step's tokens in `states`, in
    /// their order.
    pub(super) fn score(
        &mut self,
        backend: &B,
        step: &mut ComputedStep<'_, B::Queue>,
        states: impl Iterator<Item = Range<usize>>,
        rows: &[ScoreRow],
        scored: &mut Vec<Scored>,
    ) -> Result<(), Error> {
        let mut left = rows;
        self.in_pieces(backend, states, |forward, m| {
            forward.logits(backend, m)?;
            let (rows, rest) = left.split_at(m);
            left = rest;
            if forward.samples() {
                backend.score(step, &mut forward.head.logits, rows, scored)?;
            }
            Ok(())
        })
    }

    /// Copies these states of the step's tokens to `head.states`, as many at a time as fit, and
    /// calls `each` with their number.
    pub(super) fn in_pieces(
        &mut self,
        backend: &B,
        states: impl Iterator<Item = Range<usize>>,
        mut each: impl FnMut(&mut Self, usize) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let (most, mut held) = (self.head.max_outputs, 0);
        for Range { mut start, end } in states {
            while start < end {
                let n = (end - start).min(most - held);
                backend.copy_rows(&self.states.normed, start, n, &mut self.head.states, held)?;
                (start, held) = (start + n, held + n);
                if held == most {
                    each(self, held)?;
                    held = 0;
                }
            }
        }
        if held > 0 { each(self, held) } else { Ok(()) }
    }

    /// Tells whether this rank samples tokens and answers the router: it is alone or the first of
    /// its group.
    pub(super) fn samples(&self) -> bool {
        self.group.is_first()
    }
}
