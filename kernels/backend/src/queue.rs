//! The queue of steps: what is asked of a device, in which order, and what comes back.

use crate::sampling::{SampleRow, SamplingParams, ScoreRow, Scored};
use crate::step::{BegunStep, ComputedStep, OpenStep, PaddedStep, SampledRows, StepInput, UnmaskedStep};
use crate::types::DeviceTypes;
use crate::{Error, Result};

/// The queue of a device's steps.
///
/// The types express the order of calls. Each rung of the ladder is a type, and each arrow is a
/// call of the worker (W) or of its decoder (D):
///
/// ```text
///               D begin
///                 │
///                 ▼
///             BegunStep ───D pad───► PaddedStep
///                 │                      │
///             D prepare              D replay (the recorded forward pass)
///                 │                      │
///                 ▼                      ▼
///             OpenStep ◄─────────────────┘      the forward pass: D `ForwardOps`
///              │  │  ▲
///              │  │  └─W set_masks──┐           the masks are there, or their rows deferred
///              │  └─W await_masks─► UnmaskedStep    only if a mask is late
///              │
///         D sample, D append         (or D replay_sampling, or `without_sampling`)
///              │
///              ▼
///         ComputedStep                          D score; states are read
///              │
///          W finish
///              │
///              ▼
///         FinishedStep ──W collect──► SampledRows
/// ```
///
/// The worker holds steps of two types between its calls: at most one [`UnmaskedStep`], which is
/// the last one, and the [`StepQueue::FinishedStep`]s before it. **If a mask is late**, the device
/// computes the forward pass, the worker collects earlier steps and polls
/// [`StepQueue::is_forward_done`], and sampling begins with [`StepQueue::set_masks`]. A step that
/// needs no late mask never becomes an [`UnmaskedStep`].
///
/// A step that samples nothing goes from [`OpenStep`] to [`ComputedStep`] by
/// [`OpenStep::without_sampling`]. A step may be dropped in any state if only its activations are
/// wanted.
///
/// **Running ahead.** A device may keep the tokens of all sequences itself ([`StepQueue::admit`])
/// and append the tokens that it samples. Such a device accepts a step whose input tokens the host
/// does not know yet; [`StepQueue::steps_ahead`] says how many finished steps may wait to be
/// collected.
///
/// All calls fail with [`Error::Device`] if the device has failed.
pub trait StepQueue: StepGraphs {
    /// A step whose results come back from the device.
    type FinishedStep;

    /// Returns how many steps may be finished before the first of them is collected.
    fn steps_ahead(&self) -> usize {
        1
    }

    /// Gives `slot` to a sequence from the next step on. `tokens` are its tokens so far; `params`
    /// say how the next ones are sampled.
    fn admit(
        &self,
        _queue: &mut Self::Queue,
        _slot: usize,
        _tokens: &[u32],
        _params: &SamplingParams,
    ) -> Result<()> {
        Ok(())
    }

    /// Gives the device the input of the next step.
    ///
    /// # Panics
    /// If `input` exceeds the size that the queue was allocated for, or if
    /// [`StepQueue::steps_ahead`] steps have been finished and not collected.
    fn begin<'q>(
        &self,
        queue: &'q mut Self::Queue,
        input: &StepInput<'_>,
    ) -> Result<BegunStep<'q, Self::Queue>>;

    /// Sets a step aside whose forward pass has been asked for, because masks of its rows are not
    /// there yet. Until they are, no other step begins.
    fn await_masks(&self, step: OpenStep<'_, Self::Queue>) -> Result<UnmaskedStep> {
        Ok(step.unmasked())
    }

    /// Tells whether the device has computed the forward pass of a step that waits for its masks.
    /// Does not wait.
    fn is_forward_done(&self, _queue: &Self::Queue, _step: &UnmaskedStep) -> Result<bool> {
        Ok(true)
    }

    /// Continues a step with its masks. `rows` are the [`StepInput::samples`] of the step, but with
    /// the masks that were not known when the step began.
    fn set_masks<'q>(
        &self,
        queue: &'q mut Self::Queue,
        step: UnmaskedStep,
        _rows: &[SampleRow<'_>],
    ) -> Result<OpenStep<'q, Self::Queue>> {
        Ok(step.masked(queue))
    }

    /// Prepares what the operations of the forward pass read. This is the first call of a step that
    /// a graph records.
    fn prepare<'q>(&self, step: BegunStep<'q, Self::Queue>) -> Result<OpenStep<'q, Self::Queue>> {
        Ok(step.opened())
    }

    /// Samples a token from each of the first `rows.len()` rows of `logits`, whose contents are
    /// lost. `rows` are the [`StepInput::samples`] of the step, or the rows that were given to
    /// [`StepQueue::set_masks`] since. A row without a finite logit yields
    /// the first token that it allows, with a log-probability of NaN.
    fn sample(
        &self,
        step: &mut OpenStep<'_, Self::Queue>,
        logits: &mut Self::Buf,
        rows: &[SampleRow<'_>],
    ) -> Result<()>;

    /// Appends the sampled tokens to their sequences. This rank has sampled them, or another rank
    /// has sent them.
    fn append<'q>(&self, step: OpenStep<'q, Self::Queue>) -> Result<ComputedStep<'q, Self::Queue>> {
        Ok(step.appended())
    }

    /// Computes the log-probability and rank of one token for each of the first `rows.len()` rows
    /// of `logits`, whose contents are lost. Waits for the device and appends the results to
    /// `scored`.
    fn score(
        &self,
        step: &mut ComputedStep<'_, Self::Queue>,
        logits: &mut Self::Buf,
        rows: &[ScoreRow],
        scored: &mut Vec<Scored>,
    ) -> Result<()>;

    /// Ends a step: its tokens come back as soon as the device has computed everything asked for so
    /// far.
    fn finish(&self, step: ComputedStep<'_, Self::Queue>) -> Result<Self::FinishedStep>;

    /// Tells whether the device has computed the step. Does not wait.
    fn is_done(&self, _queue: &Self::Queue, _step: &Self::FinishedStep) -> Result<bool> {
        Ok(true)
    }

    /// Waits for the step and appends a row to `sampled` for each of its [`StepInput::samples`].
    /// Steps are collected in the order in which they were finished.
    fn collect(
        &self,
        queue: &mut Self::Queue,
        step: Self::FinishedStep,
        sampled: &mut SampledRows,
    ) -> Result<()>;
}

/// Steps that are recorded once and replayed for each step of the same size.
pub trait StepGraphs: DeviceTypes {
    /// The recorded forward pass, or the recorded sampling, of a step of a fixed number of decode
    /// rows.
    type Graph;

    /// Widens a step in which all rows decode to `rows` rows; the added rows have no effect.
    /// Returns the step unchanged if that is not possible, or if the device has no graphs.
    fn pad<'q>(
        &self,
        step: BegunStep<'q, Self::Queue>,
        _rows: usize,
    ) -> std::result::Result<PaddedStep<'q, Self::Queue>, BegunStep<'q, Self::Queue>> {
        Err(step)
    }

    /// Records what `work`, a part of a step, asks of the device instead of executing it. `work`
    /// has been executed before for a step of the same size, so that everything that is loaded on
    /// first use is there.
    ///
    /// # Errors
    /// The error of `work`, and [`Error::Unsupported`] on a device without graphs.
    fn record<T, E: From<Error>>(
        &self,
        _work: impl FnOnce() -> std::result::Result<T, E>,
    ) -> std::result::Result<(T, Self::Graph), E> {
        Err(Error::Unsupported("recorded steps".to_owned()).into())
    }

    /// Executes a forward pass that was recorded for a step padded to the same number of rows.
    ///
    /// # Errors
    /// [`Error::Unsupported`] on a device without graphs.
    fn replay<'q>(
        &self,
        _step: PaddedStep<'q, Self::Queue>,
        _graph: &Self::Graph,
    ) -> Result<OpenStep<'q, Self::Queue>> {
        Err(Error::Unsupported("recorded steps".to_owned()))
    }

    /// Executes the sampling that was recorded for a step padded to the same number of rows.
    ///
    /// # Errors
    /// [`Error::Unsupported`] on a device without graphs.
    fn replay_sampling<'q>(
        &self,
        _step: OpenStep<'q, Self::Queue>,
        _graph: &Self::Graph,
    ) -> Result<ComputedStep<'q, Self::Queue>> {
        Err(Error::Unsupported("recorded steps".to_owned()))
    }
}
