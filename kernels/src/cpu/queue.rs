//! The step queue. The CPU computes during the calls, so that at most one step is under way.

use std::convert::Infallible;

use super::memory::Shared;
use super::simd::{Kernel, Simd, Target};
use super::{Buf, Cpu};
use crate::Result;
use crate::backend::{
    Backend, BegunStep, ComputedStep, HostMemory, OpenStep, SampledRows, SeqRow, StepInput, StepQueue,
    StepSize, SynchronousStep,
};
use crate::sample::{self, Pass, Passes};
use crate::sampling::{SampleRow, Sampled, ScoreRow, Scored};

/// The current step, in memory that was reserved for the largest one.
#[derive(Debug)]
pub struct Queue {
    pub(super) tokens: Vec<u32>,
    pub(super) outputs: Vec<u32>,
    pub(super) rows: Vec<Row>,
    /// For each token the index of its row.
    row_of: Vec<u32>,
    /// The block tables of all rows, one after the other.
    tables: Vec<u32>,
    /// One more than the highest block in all tables.
    pub(super) blocks_end: usize,
    sampled: Vec<Sampled>,
}

/// One sequence's share of a step.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row {
    /// Position of the first token.
    pub(super) start: usize,
    pub(super) count: usize,
    /// Index of the first token in the step.
    pub(super) token: usize,
    /// Index of the first block in `tables`.
    table: usize,
    blocks: usize,
}

impl Queue {
    pub(super) fn new(size: &StepSize<'_>) -> Queue {
        Queue {
            tokens: Vec::with_capacity(size.tokens),
            outputs: Vec::with_capacity(size.tokens),
            rows: Vec::with_capacity(size.rows),
            row_of: Vec::with_capacity(size.tokens),
            tables: Vec::with_capacity(size.rows * size.table_blocks()),
            blocks_end: 0,
            sampled: Vec::with_capacity(size.rows),
        }
    }

    fn set(&mut self, input: &StepInput<'_>) {
        for list in [&mut self.tokens, &mut self.outputs, &mut self.row_of, &mut self.tables] {
            list.clear();
        }
        self.rows.clear();
        self.tokens.extend_from_slice(input.tokens);
        self.outputs.extend_from_slice(input.outputs);
        for &SeqRow { start, count, blocks, .. } in input.rows {
            let token = self.row_of.len();
            self.row_of.extend(std::iter::repeat_n(self.rows.len() as u32, count));
            self.rows.push(Row { start, count, token, table: self.tables.len(), blocks: blocks.len() });
            self.tables.extend_from_slice(blocks);
        }
        assert_eq!(self.row_of.len(), self.tokens.len(), "tokens of the rows and of the step");
        assert!(self.outputs.iter().all(|&t| (t as usize) < self.tokens.len()), "outputs among the tokens");
        self.blocks_end = self.tables.iter().max().map_or(0, |&b| b as usize + 1);
    }

    /// Returns the block table of a row.
    pub(super) fn blocks(&self, row: &Row) -> &[u32] {
        &self.tables[row.table..row.table + row.blocks]
    }

    /// Returns the position of a token of the step in its sequence, and the sequence's block table.
    pub(super) fn place(&self, token: usize) -> (usize, &[u32]) {
        let row = &self.rows[self.row_of[token] as usize];
        (row.start + token - row.token, self.blocks(row))
    }
}

impl StepQueue for Cpu {
    type FinishedStep = SynchronousStep;
    type Graph = Infallible;

    fn begin<'q>(&self, queue: &'q mut Queue, input: &StepInput<'_>) -> Result<BegunStep<'q, Queue>> {
        queue.set(input);
        Ok(BegunStep::new(queue))
    }

    fn sample(&self, step: &mut OpenStep<'_, Queue>, logits: &mut Buf, rows: &[SampleRow<'_>]) -> Result<()> {
        let sampled = &mut step.queue_mut().sampled;
        sampled.clear();
        let empty = Sampled { token: 0, logprob: f32::NAN, top: Vec::new() };
        self.for_logits(logits, rows, sampled, empty, |logits, row| {
            sample::choose(logits, row, &self.target)
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
        self.for_logits(logits, rows, scored, empty, |logits, row| sample::score(logits, row, &self.target));
        Ok(())
    }

    fn finish(&self, _step: ComputedStep<'_, Queue>) -> Result<SynchronousStep> {
        Ok(SynchronousStep(()))
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
