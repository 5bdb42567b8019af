//! The order of a step's calls on the device.

use millrace_backend::{
    BegunStep, ComputedStep, Error, OpenStep, PaddedStep, Result, SampleRow, SampledRows, SamplingParams,
    ScoreRow, Scored, StepGraphs, StepInput, StepQueue, UnmaskedStep,
};

use super::buffers::Buf;
use super::cuda::Cuda;
use super::queue::{FinishedStep, Queue, STEPS_AHEAD};
use crate::Graph;

impl StepGraphs for Cuda {
    type Graph = Graph;

    fn pad<'q>(
        &self,
        mut step: BegunStep<'q, Queue>,
        rows: usize,
    ) -> std::result::Result<PaddedStep<'q, Queue>, BegunStep<'q, Queue>> {
        if step.queue().pad(rows) { Ok(step.padded(rows)) } else { Err(step) }
    }

    fn record<T, E: From<Error>>(
        &self,
        work: impl FnOnce() -> std::result::Result<T, E>,
    ) -> std::result::Result<(T, Graph), E> {
        let mut outcome = None;
        let graph = self.device.record(|| match outcome.insert(work()) {
            Ok(_) => Ok(()),
            Err(_) => Err(Error::Device("the step to be recorded failed".to_owned())),
        });
        match outcome {
            // The error of `work` says more than that of the recording.
            Some(Err(error)) => Err(error),
            Some(Ok(recorded)) => Ok((recorded, graph?)),
            None => Err(graph.err().unwrap_or(Error::Device("nothing was recorded".to_owned())).into()),
        }
    }

    fn replay<'q>(&self, step: PaddedStep<'q, Queue>, graph: &Graph) -> Result<OpenStep<'q, Queue>> {
        graph.replay()?;
        Ok(step.replayed())
    }

    fn replay_sampling<'q>(
        &self,
        step: OpenStep<'q, Queue>,
        graph: &Graph,
    ) -> Result<ComputedStep<'q, Queue>> {
        graph.replay()?;
        Ok(step.appended())
    }
}

impl StepQueue for Cuda {
    type FinishedStep = FinishedStep;

    fn steps_ahead(&self) -> usize {
        STEPS_AHEAD
    }

    fn admit(&self, queue: &mut Queue, slot: usize, tokens: &[u32], params: &SamplingParams) -> Result<()> {
        queue.admit(&self.device, slot, tokens, params)
    }

    fn begin<'q>(&self, queue: &'q mut Queue, input: &StepInput<'_>) -> Result<BegunStep<'q, Queue>> {
        queue.begin(&self.device, input)?;
        Ok(BegunStep::new(queue, input))
    }

    fn await_masks(&self, step: OpenStep<'_, Queue>) -> Result<UnmaskedStep> {
        step.queue().mark_forward()?;
        Ok(step.unmasked())
    }

    fn is_forward_done(&self, queue: &Queue, _step: &UnmaskedStep) -> Result<bool> {
        queue.is_forward_done()
    }

    fn set_masks<'q>(
        &self,
        queue: &'q mut Queue,
        step: UnmaskedStep,
        rows: &[SampleRow<'_>],
    ) -> Result<OpenStep<'q, Queue>> {
        queue.set_masks(&self.device, rows)?;
        Ok(step.masked(queue))
    }

    fn prepare<'q>(&self, mut step: BegunStep<'q, Queue>) -> Result<OpenStep<'q, Queue>> {
        step.queue().prepare(&self.device)?;
        Ok(step.opened())
    }

    fn sample(
        &self,
        step: &mut OpenStep<'_, Queue>,
        logits: &mut Buf,
        _rows: &[SampleRow<'_>],
    ) -> Result<()> {
        let queue = step.queue_mut();
        queue.sample(&self.device, logits.rows(queue.outputs()))
    }

    fn append<'q>(&self, step: OpenStep<'q, Queue>) -> Result<ComputedStep<'q, Queue>> {
        step.queue().append(&self.device)?;
        Ok(step.appended())
    }

    fn score(
        &self,
        step: &mut ComputedStep<'_, Queue>,
        logits: &mut Buf,
        rows: &[ScoreRow],
        scored: &mut Vec<Scored>,
    ) -> Result<()> {
        step.queue().score(&self.device, logits.rows(rows.len()), rows, scored)
    }

    fn finish(&self, mut step: ComputedStep<'_, Queue>) -> Result<FinishedStep> {
        step.queue().finish(&self.device)
    }

    fn is_done(&self, queue: &Queue, step: &FinishedStep) -> Result<bool> {
        queue.is_done(step)
    }

    fn collect(&self, queue: &mut Queue, step: FinishedStep, sampled: &mut SampledRows) -> Result<()> {
        queue.collect(step, sampled)
    }
}
