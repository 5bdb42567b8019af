//! The decoder: computes what a [`DecoderSpec`] specifies with the operations of a [`Backend`].
//!
//! A step goes through [`Decoder::compute`], which computes the forward pass, through
//! [`ForwardedStep::sample`] and [`SubmittedStep::finish`], and through [`Decoder::collect`], which
//! waits for the sampled tokens. Between the first two, a step whose masks are not known yet can be
//! paused.

mod by_width;
mod collective;
mod experts;
mod forward;
mod graphs;
mod group;
mod host_layers;
mod latent;
mod mlp;
mod model_part;
mod pipeline;
mod recurrent;
mod stage;
mod step;
mod submitted;
mod weight_loader;
mod weights;
mod workspace;

use std::time::{Duration, Instant};

use millrace_backend::{Backend, HostMemory, SampledRows, SamplingParams, StepInput};
use millrace_model::step_sizes::{attention, step_size};
use millrace_model::{DecoderSpec, ShardLimits};

pub use collective::Collective;
pub use host_layers::HostLayers;
pub use model_part::ModelPart;
pub use submitted::{ForwardedStep, PausedForward, SubmittedStep};
pub use weights::Weights;

use crate::Error;
use forward::{ForwardPass, Head};
use graphs::StepGraphs;
use group::RankGroup;
use stage::{LayerStage, StageWeights};
use submitted::Progress;
use workspace::HiddenStates;

/// A model that is ready to compute steps: weights, KV pool and every buffer that a step needs.
pub struct Decoder<B: Backend> {
    spec: DecoderSpec,
    queue: B::Queue,
    forward: ForwardPass<B>,
    /// Recorded steps of decode rows, by ascending numbers of rows.
    graphs: Vec<StepGraphs<B>>,
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
        let group = RankGroup::new(collective, backend, limits.max_sequences, spec.vocab_rows.len())?;
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
            embedding_factor,
            embedding_norm,
            positions,
            ropes,
            query_scale,
            first_layer,
            layers,
            final_norm,
            head,
            head_bias,
            ..
        } = weights;
        let held = first_layer..first_layer + layers.len();
        let queue = backend.queue(&step_size(&spec, limits, &attention(&spec.layers[held.clone()])))?;
        let place = group.place_in_pipeline();
        let (exit_norm, end) = if place.is_some() { (None, final_norm) } else { (final_norm, None) };
        let stage_weights = StageWeights { layers, ropes, query_scale, exit_norm };
        let stage = Box::new(LayerStage::new(backend, &spec, held, stage_weights, limits)?);
        let stages = match place {
            Some(place) => pipeline::stages(stage, end, place),
            None => vec![stage as _],
        };
        let max_outputs = limits.max_sequences;
        let forward = ForwardPass {
            embedding,
            first_row: spec.vocab_rows.start,
            embedding_factor,
            embedding_norm,
            positions,
            stages,
            head: Head {
                matrix: head,
                bias: head_bias,
                factor: spec.head.factor,
                soft_cap: spec.head.soft_cap,
                states: backend.buf(max_outputs, spec.hidden)?,
                logits: backend.logits(max_outputs, spec.logit_cols())?,
                max_outputs,
            },
            states: HiddenStates::new(backend, &spec, limits)?,
            group,
        };
        Ok(Decoder { spec, queue, forward, graphs: Vec::new() })
    }

    /// Lets the host compute the layers before those of the device. The weights that the decoder
    /// was created with begin with the layer after them.
    #[must_use]
    pub fn with_host_layers<H: HostMemory>(mut self, layers: HostLayers<H>) -> Self {
        self.forward.stages.insert(0, Box::new(layers));
        self
    }

    /// Returns the specification of this rank's share of the model.
    pub fn spec(&self) -> &DecoderSpec {
        &self.spec
    }

    /// Gives `slot` to a sequence from the next step on. `tokens` are its tokens so far; `params`
    /// say how the next ones are sampled.
    ///
    /// # Errors
    /// If the device fails.
    pub fn admit(
        &mut self,
        backend: &B,
        slot: usize,
        tokens: &[u32],
        params: &SamplingParams,
    ) -> Result<(), Error> {
        Ok(backend.admit(&mut self.queue, slot, tokens, params)?)
    }

    /// Asks the device for the forward pass of one step. At most as many steps as the backend
    /// allows may be finished and not collected, and none may be paused.
    ///
    /// `input` holds at least one token, and keeps to the limits that the decoder was created for.
    ///
    /// # Errors
    /// If the device fails, or another rank is lost.
    pub fn compute<'d>(
        &'d mut self,
        backend: &'d B,
        input: &StepInput<'_>,
    ) -> Result<ForwardedStep<'d, B>, Error> {
        let since = Instant::now();
        let Decoder { spec, queue, forward, graphs } = self;
        let hidden = spec.hidden;
        let mut begun = backend.begin(queue, input)?;
        let rows = input.rows.len();
        let decodes = input.rows.iter().all(|row| row.decodes());
        if let Some(index) = graphs.iter().position(|graphs| decodes && graphs.rows >= rows) {
            let of_size = &graphs[index];
            match backend.pad(begun, of_size.rows) {
                Ok(padded) => {
                    let step = backend.replay(padded, &of_size.forward)?;
                    let progress = Progress { outputs: rows, graph: Some(index), time: Duration::ZERO };
                    return Ok(ForwardedStep { backend, forward, graphs, step, hidden, progress });
                }
                Err(not_padded) => begun = not_padded,
            }
        }
        forward.begin(input)?;
        let step = backend.prepare(begun)?;
        let outputs = input.outputs.len();
        forward.compute(backend, &step, input.tokens.len(), outputs)?;
        let progress = Progress { outputs, graph: None, time: since.elapsed() };
        Ok(ForwardedStep { backend, forward, graphs, step, hidden, progress })
    }

    /// Continues a step that was paused after its forward pass.
    pub fn resume<'d>(&'d mut self, backend: &'d B, paused: PausedForward) -> ForwardedStep<'d, B> {
        let Decoder { spec, queue, forward, graphs } = self;
        let PausedForward { step, progress } = paused;
        ForwardedStep { backend, forward, graphs, step: step.resume(queue), hidden: spec.hidden, progress }
    }

    /// Tells whether the device has computed the forward pass of the paused step.
    ///
    /// # Errors
    /// If the device has failed.
    pub fn is_forward_done(&self, backend: &B, paused: &PausedForward) -> Result<bool, Error> {
        Ok(backend.is_forward_done(&self.queue, &paused.step)?)
    }

    /// Runs the forward pass of one step without sampling, for tests and tools. [`Decoder::logits`]
    /// and [`Decoder::states`] return its results.
    ///
    /// # Errors
    /// If the device fails, or another rank is lost.
    pub fn forward<'d>(
        &'d mut self,
        backend: &'d B,
        input: &StepInput<'_>,
    ) -> Result<SubmittedStep<'d, B>, Error> {
        let Decoder { spec, queue, forward, .. } = self;
        forward.begin(input)?;
        let open = backend.prepare(backend.begin(queue, input)?)?;
        forward.compute(backend, &open, input.tokens.len(), input.outputs.len())?;
        let step = open.without_sampling();
        Ok(SubmittedStep { backend, forward, step, hidden: spec.hidden, forward_time: Duration::ZERO })
    }

    /// Tells whether the device has computed a step.
    ///
    /// # Errors
    /// If the device has failed.
    pub fn is_done(&self, backend: &B, step: &B::FinishedStep) -> Result<bool, Error> {
        Ok(backend.is_done(&self.queue, step)?)
    }

    /// Waits for a step and appends its sampled tokens to `sampled`. Steps are collected in the
    /// order in which they were finished.
    ///
    /// # Errors
    /// If the device has failed, or another rank was lost.
    pub fn collect(
        &mut self,
        backend: &B,
        step: B::FinishedStep,
        sampled: &mut SampledRows,
    ) -> Result<(), Error> {
        backend.collect(&mut self.queue, step, sampled)?;
        // A device that has computed the step knows whether a rank was missing in it.
        self.forward.group.check()
    }

    /// Records a step of up to `rows` decode rows, so that later steps launch it as one graph.
    /// Calls are in ascending order of `rows`, and the same on all ranks. Returns false if the
    /// device has no graphs, or if the host computes some layers, which no graph can contain.
    ///
    /// # Errors
    /// If the device fails, or another rank is lost.
    pub fn record(&mut self, backend: &B, rows: usize) -> Result<bool, Error> {
        let Decoder { queue, forward, graphs, .. } = self;
        if !forward.is_recordable() {
            return Ok(false);
        }
        // The first execution is not recorded: it loads what is loaded on first use.
        let begun = backend.begin(queue, &StepInput::EMPTY)?;
        let Ok(padded) = backend.pad(begun, rows) else { return Ok(false) };
        let open = forward.decode(backend, padded.into(), rows)?;
        let _ = forward.sample(backend, open, rows, &[])?;

        let begun = backend.begin(queue, &StepInput::EMPTY)?;
        let Ok(padded) = backend.pad(begun, rows) else { return Ok(false) };
        let (open, of_forward) = backend.record(|| forward.decode(backend, padded.into(), rows))?;
        let (step, sampling) = backend.record(|| forward.sample(backend, open, rows, &[]))?;
        let finished = backend.finish(step)?;
        backend.collect(queue, finished, &mut SampledRows::default())?;
        graphs.push(StepGraphs { rows, forward: of_forward, sampling });
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
