//! A step that the device has been asked for: first its forward pass, then the sampling.

use std::ops::Range;
use std::time::Duration;

use millrace_backend::{Backend, ComputedStep, OpenStep, PausedStep, SampleRow, ScoreRow, Scored};

use super::forward::ForwardPass;
use super::graphs::StepGraphs;
use crate::Error;

/// A step whose forward pass the device has been asked for.
#[must_use = "a step is sampled from or paused, unless only its logits or states are wanted"]
pub struct ForwardedStep<'d, B: Backend> {
    pub(super) backend: &'d B,
    pub(super) forward: &'d mut ForwardPass<B>,
    pub(super) graphs: &'d [StepGraphs<B>],
    pub(super) step: OpenStep<'d, B::Queue>,
    /// Features of a state.
    pub(super) hidden: usize,
    pub(super) progress: Progress,
}

/// A step that was paused after its forward pass.
#[must_use = "a paused step is resumed"]
pub struct PausedForward {
    pub(super) step: PausedStep,
    pub(super) progress: Progress,
}

/// Properties of a forward pass that are needed to sample its rows.
#[derive(Debug, Clone, Copy)]
pub(super) struct Progress {
    /// Number of rows of logits.
    pub(super) outputs: usize,
    /// Index of the graphs that compute the step, if it is a recorded one.
    pub(super) graph: Option<usize>,
    /// The host's time in the forward pass.
    pub(super) time: Duration,
}

impl<'d, B: Backend> ForwardedStep<'d, B> {
    /// Sets the step aside. No other step may be computed until it is resumed.
    ///
    /// # Errors
    /// If the device fails.
    pub fn pause(self) -> Result<PausedForward, Error> {
        Ok(PausedForward { step: self.backend.pause(self.step)?, progress: self.progress })
    }

    /// Gives the device the masks of `samples`, which were not known when the step began.
    ///
    /// # Errors
    /// If the device fails.
    pub fn set_masks(&mut self, samples: &[SampleRow<'_>]) -> Result<(), Error> {
        Ok(self.backend.set_masks(&mut self.step, samples)?)
    }

    /// Samples a token for each of `samples`, which are those of the step's input except for masks
    /// that have come since.
    ///
    /// # Errors
    /// If the device fails, or another rank is lost.
    pub fn sample(self, samples: &[SampleRow<'_>]) -> Result<SubmittedStep<'d, B>, Error> {
        let ForwardedStep { backend, forward, graphs, step, hidden, progress } = self;
        let step = match progress.graph {
            Some(index) => backend.replay_sampling(step, &graphs[index].sampling)?,
            None if samples.is_empty() => step.without_sampling(),
            None => forward.sample(backend, step, progress.outputs, samples)?,
        };
        Ok(SubmittedStep { backend, forward, step, hidden, forward_time: progress.time })
    }
}

/// A step that the device has been asked for, whose states may still be used until it is finished.
#[must_use = "a submitted step is finished, unless only its logits or states are wanted"]
pub struct SubmittedStep<'d, B: Backend> {
    pub(super) backend: &'d B,
    pub(super) forward: &'d mut ForwardPass<B>,
    pub(super) step: ComputedStep<'d, B::Queue>,
    /// Features of a state.
    pub(super) hidden: usize,
    pub(super) forward_time: Duration,
}

impl<B: Backend> SubmittedStep<'_, B> {
    /// Returns the host's time in the forward pass; zero if a recorded graph computes it.
    pub fn forward_time(&self) -> Duration {
        self.forward_time
    }

    /// Tells whether this rank samples tokens and answers the router.
    pub fn samples(&self) -> bool {
        self.forward.samples()
    }

    /// Scores one token for each of `rows`, by the states of the step's tokens in `states`, in
    /// their order. The logits of the step's outputs are lost. Appends to `scored`, on the rank
    /// that samples tokens only.
    ///
    /// # Errors
    /// If the device fails, or another rank is lost.
    pub fn score(
        &mut self,
        states: impl Iterator<Item = Range<usize>>,
        rows: &[ScoreRow],
        scored: &mut Vec<Scored>,
    ) -> Result<(), Error> {
        self.forward.score(self.backend, &mut self.step, states, rows, scored)
    }

    /// Calls `each` with the states `[hidden]` of these tokens of the step after the final norm, in
    /// their order. Waits for the device.
    ///
    /// # Errors
    /// If the device fails.
    pub fn for_states(
        &mut self,
        states: impl Iterator<Item = Range<usize>>,
        mut each: impl FnMut(&[f32]),
    ) -> Result<(), Error> {
        let (backend, hidden) = (self.backend, self.hidden);
        self.forward.in_pieces(backend, states, |forward, m| {
            let rows = backend.read(&forward.head.states, m)?;
            rows.chunks_exact(hidden).for_each(&mut each);
            Ok(())
        })
    }

    /// Ends the step. It is done when the device has computed everything that was asked of it,
    /// scores included: otherwise a rank that only waits for its tokens would be ahead of one that
    /// still has to compute scores.
    ///
    /// # Errors
    /// If the device fails.
    pub fn finish(self) -> Result<B::FinishedStep, Error> {
        Ok(self.backend.finish(self.step)?)
    }
}
