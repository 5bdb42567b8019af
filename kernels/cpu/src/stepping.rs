//! Steps: their begin, sampling and end. The CPU computes during the calls.

use std::convert::Infallible;

use millrace_backend::sampling::{self, Pass, Passes};
use millrace_backend::{
    Backend, BegunStep, ComputedStep, HostMemory, OpenStep, Result, SampleRow, Sampled, SampledRows,
    ScoreRow, Scored, StepGraphs, StepInput, StepQueue, SynchronousStep,
};

use super::memory::Shared;
use super::queue::Queue;
use super::simd::{Extension, Kernel, Simd, Target};
use super::{Buf, Cpu, Kv};

impl StepGraphs for Cpu {
    type Graph = Infallible;
}

impl StepQueue for Cpu {
    type FinishedStep = SynchronousStep;

    fn begin<'q>(&self, queue: &'q mut Queue, input: &StepInput<'_>) -> Result<BegunStep<'q, Queue>> {
        queue.set(input);
        Ok(BegunStep::new(queue, input))
    }

    fn sample(&self, step: &mut OpenStep<'_, Queue>, logits: &mut Buf, rows: &[SampleRow<'_>]) -> Result<()> {
        let sampled = &mut step.queue_mut().sampled;
        sampled.clear();
        let empty = Sampled { token: 0, logprob: f32::NAN, top: Vec::new() };
        self.for_logits(logits, rows, sampled, empty, |logits, row| {
            sampling::choose(logits, row, &self.target)
        });
        Ok(())
    }

    fn score(
        &self,
        _step: &mut ComputedStep<'_, Queue>,
        logits: &mut Buf,
        rows: &[ScoreRow],
        scored: &mut Vec<Scored>,
    ) -> Result<()> {
        let empty = Scored { logprob: f32::NAN, rank: 0, top: Vec::new() };
        self.for_logits(logits, rows, scored, empty, |logits, row| {
            sampling::score(logits, row, &self.target)
        });
        Ok(())
    }

    fn finish(&self, step: ComputedStep<'_, Queue>) -> Result<SynchronousStep> {
        Ok(SynchronousStep::new(step))
    }

    fn collect(&self, queue: &mut Queue, _step: SynchronousStep, sampled: &mut SampledRows) -> Result<()> {
        queue.sampled.drain(..).for_each(|token| sampled.push_row([token]));
        Ok(())
    }
}

impl Passes for Target {
    fn run<P: Pass>(&self, pass: P) -> P::Output {
        struct OnIsa<P>(P);
        impl<P: Pass> Kernel for OnIsa<P> {
            const USES: Extension = Extension::None;
            type Output = P::Output;
            #[inline(always)]
            unsafe fn run<S: Simd>(self) -> P::Output {
                self.0.run()
            }
        }
        self.dispatch(OnIsa(pass))
    }
}

impl Cpu {
    /// Calls `make` for each row of logits, in parallel, and appends its results to `results`.
    /// `empty` fills the place of a result until it is there.
    fn for_logits<Row: Sync, T: Clone + Send>(
        &self,
        logits: &mut Buf,
        rows: &[Row],
        results: &mut Vec<T>,
        empty: T,
        make: impl Fn(&mut [f32], &Row) -> T + Sync,
    ) {
        let cols = logits.cols;
        let logits = Shared::new(logits.rows_mut(rows.len()));
        let first = results.len();
        results.resize(first + rows.len(), empty);
        let results = Shared::new(&mut results[first..]);
        self.parallel(rows.len(), 8 * cols * rows.len(), |t, _| {
            // SAFETY: row t and its result belong to this task alone.
            let (logits, result) = unsafe { (logits.slice(t * cols, cols), results.slice(t, 1)) };
            result[0] = make(logits, &rows[t]);
        });
    }
}

impl Backend for Cpu {
    fn name(&self) -> String {
        let threads = self.threads();
        format!("cpu ({}, {threads} {})", self.isa().name(), if threads == 1 { "thread" } else { "threads" })
    }

    fn block_bytes(&self, kv: &Kv) -> Option<usize> {
        Some(kv.block_bytes())
    }

    fn read_block(&self, kv: &Kv, block: usize, bytes: &mut [u8]) -> Result<()> {
        kv.read_block(block, bytes);
        Ok(())
    }

    fn write_block(&self, kv: &mut Kv, block: usize, bytes: &[u8]) -> Result<()> {
        kv.write_block(block, bytes);
        Ok(())
    }
}

impl HostMemory for Cpu {
    fn host<'a>(&self, buf: &'a Buf, n: usize) -> &'a [f32] {
        buf.rows(n)
    }

    fn host_mut<'a>(&self, buf: &'a mut Buf, n: usize) -> &'a mut [f32] {
        buf.rows_mut(n)
    }

    fn sampled<'a>(&self, step: &'a mut OpenStep<'_, Queue>) -> &'a mut Vec<Sampled> {
        &mut step.queue_mut().sampled
    }
}
