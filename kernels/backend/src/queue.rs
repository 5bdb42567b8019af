//! The queue of steps: what is asked of a device, in which order, and what comes back.

use crate::sampling::{SampleRow, SamplingParams, ScoreRow, Scored};
use crate::step::{BegunStep, ComputedStep, OpenStep, PaddedStep, PausedStep, SampledRows, StepInput};
use crate::types::DeviceTypes;
use crate::{Error, Result};

/// The queue of a device's steps.
///
/// The types express the order of calls:
///
/// ```text
/// begin ─► BegunStep ──prepare──► OpenStep ──append──► ComputedStep ──finish──► FinishedStep
///              │      (forward pass) ▲  │  (sample)          ▲                       │
///              └──pad──► PaddedStep ─┘  └────────────────────┘                    collect
///                       (replay a graph)    (replay a graph)
/// ```
///
/// A step that samples nothing goes from [`OpenStep`] to [`ComputedStep`] by
/// [`OpenStep::without_sampling`]. A step of which only the activations are wanted may be dropped
/// in any state. An [`OpenStep`] can be paused, so that earlier steps are collected before its rows
/// are sampled.
///
/// **Running ahead.** A device may keep the tokens of all sequences itself ([`StepQueue::admit`])
/// and append the tokens that it samples. Such a device accepts a step whose input tokens the host
/// does not know yet; [`StepQueue::steps_ahead`] says how many finished steps may wait to be
/// collected.
///
/// All calls fail with [`Error::Device`] if the device has failed.
pub trait StepQueue: DeviceTypes {
    /// A step whose results come back from the device.
    type FinishedStep;
    /// The recorded forward pass, or the recorded sampling, of a step of a fixed number of decode
    /// rows.
    type Graph;

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

    /// Sets a step aside whose forward pass has been asked for. Until it is resumed, no other step
    /// begins.
    fn pause(&self, step: OpenStep<'_, Self::Queue>) -> Result<PausedStep> {
        Ok(step.paused())
    }

    /// Tells whether the device has computed the forward pass of the paused step. Does not wait.
    fn is_forward_done(&self, _queue: &Self::Queue, _step: &PausedStep) -> Result<bool> {
        Ok(true)
    }

    /// Gives the device the masks of `rows`, which were not known when the step began. `rows` are
    /// the [`StepInput::samples`] of the step apart from that.
    fn set_masks(&self, _step: &mut OpenStep<'_, Self::Queue>, _rows: &[SampleRow<'_>]) -> Result<()> {
        Ok(())
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

    /// Appends the sampled tokens to their sequences. They are this rank's, or those that another
    /// rank has sent.
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
