//! The decoder: computes what a [`DecoderSpec`] specifies with the operations of a [`Backend`].
//!
//! The worker holds the steps, whose types are the ones of the device's queue
//! ([`StepQueue`](millrace_backend::StepQueue)). The decoder takes a step from one of them to the
//! next where that needs the model: [`Decoder::compute`] asks for the forward pass and
//! [`Decoder::sample`] for the sampling.

mod adapters;
mod collective;
mod experts;
mod forward;
mod group;
mod host_layers;
mod kv_blocks;
mod latent;
mod layer_stack;
mod mlp;
mod narrow_embedding;
mod packed_adapter;
mod per_layer;
mod projection;
mod recurrent;
mod residual;
mod softmax;
mod states_input;
mod step_context;
mod token_types;
mod weight_loader;
mod weights;
mod workspace;

use std::ops::Range;
use std::time::Duration;

use millrace_backend::{
    Backend, ComputedStep, HostMemory, OpenStep, SampleRow, SampledRows, ScoreRow, Scored, StepInput,
};
use millrace_model::step_sizes::{attention, step_size};
use millrace_model::{DecoderSpec, ShardLimits};

pub use adapters::RankAdapter;
pub use collective::Collective;
pub use host_layers::HostLayers;
pub use packed_adapter::PackedAdapter;
pub use weights::{Ends, ModelPart, Weights};

use crate::Error;
use forward::{ForwardPass, Head};
use group::RankGroup;
use layer_stack::{LayerStack, StackWeights};
use narrow_embedding::NarrowEmbedding;
use per_layer::LayerInputs;
use states_input::StatesInput;
use token_types::SecondType;
use workspace::HiddenStates;

/// A model that is ready to compute steps: weights, KV pool and every buffer that a step needs but
/// the queue.
pub struct Decoder<B: Backend> {
    spec: DecoderSpec,
    /// The layers that the device computes.
    layers: Range<usize>,
    forward: ForwardPass<B>,
    /// Recorded steps of decode rows, by ascending numbers of rows.
    graphs: Vec<StepGraphs<B>>,
}

/// The recorded parts of a step of decode rows. They are separate because masks may come between
/// them.
struct StepGraphs<B: Backend> {
    /// Largest number of rows.
    rows: usize,
    forward: B::Graph,
    sampling: B::Graph,
}

impl<B: Backend> Decoder<B> {
    /// Allocates the KV pool and the buffers; a step allocates nothing. `spec` is this rank's share
    /// of the model. `collective` connects it to the other ranks, if there are any.
    ///
    /// # Errors
    /// If the device has not enough memory.
    pub fn new(
        backend: &B,
        spec: DecoderSpec,
        weights: Weights<B>,
        limits: &ShardLimits,
        collective: Option<Box<dyn Collective<B>>>,
    ) -> Result<Self, Error> {
        let group = RankGroup::new(collective, backend, limits.max_outputs(), spec.vocab_rows.len())?;
        Self::with_group(backend, spec, weights, limits, group)
    }

    /// Creates one rank of a pipeline. `weights` has the layers of this rank, and on rank 0 also
    /// the embedding and the head ([`LayerShare`](millrace_model::split::LayerShare)). `collective`
    /// connects it to the other ranks.
    ///
    /// # Errors
    /// If the device has not enough memory.
    pub fn in_pipeline(
        backend: &B,
        spec: DecoderSpec,
        weights: Weights<B>,
        limits: &ShardLimits,
        collective: Box<dyn Collective<B>>,
    ) -> Result<Self, Error> {
        let group = RankGroup::pipeline(collective, limits.max_step_tokens, spec.hidden);
        Self::with_group(backend, spec, weights, limits, group)
    }

    fn with_group(
        backend: &B,
        spec: DecoderSpec,
        weights: Weights<B>,
        limits: &ShardLimits,
        group: RankGroup<B>,
    ) -> Result<Self, Error> {
        let Weights {
            embedding,
            embedding_projection,
            embedding_factor,
            embedding_norm,
            positions,
            second_type,
            states_input,
            per_layer,
            ropes,
            query_scale,
            first_layer,
            layers,
            final_norm,
            head_projection,
            head,
            head_bias,
            ..
        } = weights;
        let held = first_layer..first_layer + layers.len();
        let (exit_norm, pipeline_norm) = match group.place_in_pipeline() {
            Some(_) => (None, final_norm),
            None => (final_norm, None),
        };
        let stack_weights = StackWeights { layers, ropes, query_scale, exit_norm };
        let stack = LayerStack::new(backend, &spec, held.clone(), stack_weights, limits)?;
        let max_outputs = limits.max_outputs();
        let mut states = HiddenStates::new(backend, &spec, limits)?;
        if let Some((plan, weights)) = spec.per_layer.zip(per_layer) {
            states.layer_inputs = Some(LayerInputs::new(backend, &spec, plan, weights, limits)?);
        }
        let second_type =
            second_type.map(|row| SecondType::new(backend, &row, limits.max_step_tokens)).transpose()?;
        let states_input = states_input.map(|weights| StatesInput::new(backend, &spec, weights, limits));
        let projected = |matrix: Option<B::Matrix>, rows| {
            matrix.map(|matrix| NarrowEmbedding::new(backend, &spec, matrix, rows)).transpose()
        };
        let forward = ForwardPass {
            embedding,
            embedding_projection: projected(embedding_projection, limits.max_step_tokens)?,
            first_row: spec.vocab_rows.start,
            embedding_factor,
            embedding_norm,
            positions,
            second_type,
            states_input: states_input.transpose()?,
            host_layers: None,
            layers: stack,
            pipeline_norm,
            head: Head {
                projection: projected(head_projection, max_outputs)?,
                matrix: head,
                bias: head_bias,
                factor: spec.head.factor,
                soft_cap: spec.head.soft_cap,
                states: backend.buf(max_outputs, spec.hidden)?,
                logits: backend.logits(max_outputs, spec.logit_cols())?,
                max_outputs,
            },
            states,
            group,
        };
        Ok(Decoder { spec, layers: held, forward, graphs: Vec::new() })
    }

    /// Lets the host compute the layers before those of the device. The weights that the decoder
    /// was created with begin with the layer after them.
    #[must_use]
    pub fn with_host_layers<H: HostMemory>(mut self, mut layers: HostLayers<H>) -> Self {
        let forward = move |device: &B, input: &StepInput<'_>, residual: &mut B::Buf| {
            layers.forward(device, input, residual)
        };
        self.forward.host_layers = Some(Box::new(forward));
        self
    }

    /// Returns the specification of this rank's share of the model.
    pub fn spec(&self) -> &DecoderSpec {
        &self.spec
    }

    /// Allocates the queue for the steps of the decoder, which keep to `limits`.
    ///
    /// # Errors
    /// If the device has not enough memory.
    pub fn queue(&self, backend: &B, limits: &ShardLimits) -> Result<B::Queue, Error> {
        let attention = attention(&self.spec.layers[self.layers.clone()]);
        Ok(backend.queue(&step_size(&self.spec, limits, &attention))?)
    }

    /// Asks the device for the forward pass of one step, as a recorded graph if there is one for
    /// its rows. At most as many steps as the backend allows may be finished and not collected, and
    /// none may wait for its masks.
    ///
    /// `input` holds at least one token, and keeps to the limits that the decoder was created for.
    ///
    /// # Errors
    /// If the device fails, or another rank is lost.
    pub fn compute<'q>(
        &mut self,
        backend: &B,
        queue: &'q mut B::Queue,
        input: &StepInput<'_>,
    ) -> Result<OpenStep<'q, B::Queue>, Error> {
        self.forward.layers.copy_states(backend, input.restored_states)?;
        self.forward.layers.copy_states(backend, input.kept_states)?;
        let open = self.forward_pass(backend, queue, input)?;
        self.forward.layers.copy_states(backend, input.saved_states)?;
        Ok(open)
    }

    /// Asks for the forward pass alone, without the states that are copied before and after it.
    fn forward_pass<'q>(
        &mut self,
        backend: &B,
        queue: &'q mut B::Queue,
        input: &StepInput<'_>,
    ) -> Result<OpenStep<'q, B::Queue>, Error> {
        let mut begun = backend.begin(queue, input)?;
        let decodes = input.rows.iter().all(|row| row.decodes());
        let mut graphs = self.graphs.iter();
        if let Some(graphs) = graphs.find(|graphs| decodes && graphs.rows >= input.rows.len()) {
            match backend.pad(begun, graphs.rows) {
                Ok(padded) => return Ok(backend.replay(padded, &graphs.forward)?),
                Err(not_padded) => begun = not_padded,
            }
        }
        self.forward.compute(backend, begun, input)
    }

    /// Samples a token for each of `samples`, which are the ones of the step's input except for
    /// masks that have come since. The logits are lost.
    ///
    /// # Errors
    /// If the device fails, or another rank is lost.
    pub fn sample<'q>(
        &mut self,
        backend: &B,
        step: OpenStep<'q, B::Queue>,
        samples: &[SampleRow<'_>],
    ) -> Result<ComputedStep<'q, B::Queue>, Error> {
        let is_replayed = step.is_replayed();
        match self.graphs.iter().find(|graphs| is_replayed && graphs.rows == step.outputs()) {
            Some(graphs) => Ok(backend.replay_sampling(step, &graphs.sampling)?),
            None if samples.is_empty() => Ok(step.without_sampling()),
            None => self.forward.sample(backend, step, samples),
        }
    }

    /// Scores one token for each of `rows`, by the states of the step's tokens in `states`, in
    /// their order. Appends to `scored`, on the rank that samples tokens only. The states are there
    /// until the next step begins.
    ///
    /// # Errors
    /// If the device fails, or another rank is lost.
    pub fn score(
        &mut self,
        backend: &B,
        step: &mut ComputedStep<'_, B::Queue>,
        states: impl Iterator<Item = Range<usize>>,
        rows: &[ScoreRow],
        scored: &mut Vec<Scored>,
    ) -> Result<(), Error> {
        self.forward.score(backend, step, states, rows, scored)
    }

    /// Calls `each` with the states `[hidden]` of these tokens of the last step after the final
    /// norm, in their order. Waits for the device. The states are there until the next step begins.
    ///
    /// # Errors
    /// If the device fails.
    pub fn for_states(
        &mut self,
        backend: &B,
        states: impl Iterator<Item = Range<usize>>,
        mut each: impl FnMut(&[f32]),
    ) -> Result<(), Error> {
        let hidden = self.spec.hidden;
        self.forward.in_pieces(backend, states, |forward, m| {
            let rows = backend.read(&forward.head.states, m)?;
            rows.chunks_exact(hidden).for_each(&mut each);
            Ok(())
        })
    }

    /// Returns the states of the last step after the final norm, `[tokens, hidden]`, until the next
    /// step begins.
    pub fn last_states(&self) -> &B::Buf {
        &self.forward.states.normed
    }

    /// Copies `n` of `states`, `[_, hidden]`, from row `from` on, to the states that a head reads
    /// in the next step, from that of token `to` on.
    ///
    /// # Errors
    /// If the device fails.
    pub fn set_states(
        &mut self,
        backend: &B,
        (states, from): (&B::Buf, usize),
        n: usize,
        to: usize,
    ) -> Result<(), Error> {
        if let Some(input) = &mut self.forward.states_input {
            backend.copy_rows(states, from, n, &mut input.states, to)?;
        }
        Ok(())
    }

    /// Checks whether all ranks have taken part in the steps so far. A device that has computed a
    /// step knows whether a rank was missing in it.
    ///
    /// # Errors
    /// If another rank was lost.
    pub fn check_ranks(&self) -> Result<(), Error> {
        self.forward.group.check()
    }

    /// Records a step of up to `rows` decode rows, so that later steps launch it as one graph.
    /// Calls are in ascending order of `rows`, and the same on all ranks. Returns false if the
    /// device has no graphs, or if the host computes some layers, which no graph can contain.
    ///
    /// # Errors
    /// If the device fails, or another rank is lost.
    pub fn record(&mut self, backend: &B, queue: &mut B::Queue, rows: usize) -> Result<bool, Error> {
        let Decoder { forward, graphs, .. } = self;
        if !forward.is_recordable() {
            return Ok(false);
        }
        let input = &StepInput::EMPTY;
        // The first execution is not recorded: it loads what is loaded on first use.
        let Ok(padded) = backend.pad(backend.begin(queue, input)?, rows) else { return Ok(false) };
        let open = forward.compute(backend, padded.into(), input)?;
        let _ = forward.sample(backend, open, &[])?;

        let Ok(padded) = backend.pad(backend.begin(queue, input)?, rows) else { return Ok(false) };
        let (open, forward_pass) = backend.record(|| forward.compute(backend, padded.into(), input))?;
        let (step, sampling) = backend.record(|| forward.sample(backend, open, &[]))?;
        let finished = backend.finish(step)?;
        backend.collect(queue, finished, &mut SampledRows::default())?;
        graphs.push(StepGraphs { rows, forward: forward_pass, sampling });
        Ok(true)
    }

    /// Tells whether this rank samples tokens and answers the router.
    pub fn samples(&self) -> bool {
        self.forward.samples()
    }

    /// Returns the time in exchanges with other ranks since the last call, including the time spent
    /// waiting for them.
    pub fn take_collective_time(&mut self) -> Duration {
        self.forward.group.take_elapsed()
    }

    /// Returns the logits of the last forward pass, `[outputs, vocab]`, for tests and tools.
    ///
    /// # Errors
    /// If the device fails.
    pub fn logits(&self, backend: &B, outputs: usize) -> Result<Vec<f32>, Error> {
        Ok(backend.read(&self.forward.head.logits, outputs)?)
    }

    /// Returns the states after the final norm of the last forward pass, `[n, hidden]`, for tests
    /// and tools.
    ///
    /// # Errors
    /// If the device fails.
    pub fn states(&self, backend: &B, n: usize) -> Result<Vec<f32>, Error> {
        Ok(backend.read(&self.forward.states.normed, n)?)
    }
}
