//! The steps of one run of a benchmark: all prompts first, and then decode steps.

use millrace_model::ShardLimits;
use millrace_proto::{Admission, Row, Sampling, Step};

/// The work of one run: equally long sequences that are prefilled and then decoded together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BenchWorkload {
    /// Number of sequences.
    pub batch: usize,
    /// Number of tokens of each prompt.
    pub prompt: usize,
    /// Number of decode steps after the prompts. Each of them generates a token for each sequence.
    pub generate: usize,
}

impl BenchWorkload {
    /// Returns the number of positions that each sequence takes.
    pub fn sequence_tokens(&self) -> usize {
        self.prompt.saturating_add(self.generate)
    }

    /// Returns the steps that compute the prompts, cut into steps of at most
    /// [`ShardLimits::max_step_tokens`] tokens. The last step of each prompt samples its next
    /// token.
    pub(super) fn prefill_steps(&self, limits: &ShardLimits, vocab: usize) -> Vec<Step> {
        let mut steps = Vec::new();
        let mut step = Step::default();
        let mut left = limits.max_step_tokens;
        for slot in 0..self.batch {
            step.admit.push(self.admission(slot, vocab));
            let mut start = 0;
            while start < self.prompt {
                let count = left.min(self.prompt - start);
                step.rows.push(self.row(limits, slot, start, count, start + count == self.prompt));
                (start, left) = (start + count, left - count);
                if left == 0 {
                    steps.push(std::mem::take(&mut step));
                    left = limits.max_step_tokens;
                }
            }
        }
        if !step.rows.is_empty() {
            steps.push(step);
        }
        steps
    }

    /// Returns the decode step with this index.
    pub(super) fn decode_step(&self, limits: &ShardLimits, index: usize) -> Step {
        let rows = (0..self.batch).map(|slot| self.row(limits, slot, self.prompt + index, 1, true));
        Step { rows: rows.collect(), ..Step::default() }
    }

    /// Returns the step that ends all sequences.
    pub(super) fn release_step(&self) -> Step {
        Step { release: (0..self.batch as u32).collect(), ..Step::default() }
    }

    fn admission(&self, slot: usize, vocab: usize) -> Admission {
        Admission {
            slot: slot as u32,
            tokens: prompt(slot, self.prompt, vocab),
            prompt_len: self.prompt as u32,
            sampling: Some(Sampling { repetition_penalty: 1.0, ..Sampling::default() }),
            ..Admission::default()
        }
    }

    /// Returns the row of the positions `[start, start + count)` with the blocks that they begin.
    ///
    /// The blocks of a sequence are apart from each other in the pool, as in a server that has run
    /// for a while.
    fn row(&self, limits: &ShardLimits, slot: usize, start: usize, count: usize, sample: bool) -> Row {
        let first = start.div_ceil(limits.block_size);
        let end = (start + count).div_ceil(limits.block_size);
        Row {
            slot: slot as u32,
            start: start as u32,
            count: count as u32,
            new_blocks: (first..end).map(|block| (block * self.batch + slot) as u32).collect(),
            sample,
            ..Row::default()
        }
    }
}

/// Makes up a prompt. Each sequence gets other tokens.
fn prompt(sequence: usize, tokens: usize, vocab: usize) -> Vec<u32> {
    let mut state = sequence as u32;
    let next = || {
        // Numerical Recipes' linear congruential generator; the high bits are the better ones.
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        ((u64::from(state) * vocab as u64) >> 32) as u32
    };
    std::iter::repeat_with(next).take(tokens).collect()
}

#[cfg(test)]
mod tests {
    use millrace_numbers::DType;

    use millrace_model::AdapterLimits;

    use super::*;
    use crate::state::{Batch, SlotTable};

    fn limits(workload: &BenchWorkload, max_step_tokens: usize) -> ShardLimits {
        ShardLimits {
            max_step_tokens,
            max_sequences: workload.batch,
            max_sequence_tokens: workload.sequence_tokens(),
            block_size: 4,
            state_checkpoints: 0,
            max_drafts: 0,
            adapters: AdapterLimits::NONE,
            num_blocks: workload.batch * workload.sequence_tokens().div_ceil(4),
            kv_format: DType::F32.into(),
        }
    }

    /// The slot table checks every number of a step, so a step that it accepts can be computed.
    #[test]
    fn the_slot_table_accepts_every_step() {
        for (batch, prompt, generate) in [(1, 1, 0), (1, 5, 3), (3, 7, 6), (4, 8, 1), (2, 30, 9)] {
            for max_step_tokens in [4, 5, 8, 64] {
                let workload = BenchWorkload { batch, prompt, generate };
                let limits = limits(&workload, max_step_tokens);
                let mut table = SlotTable::new(limits, 16);
                let mut steps = workload.prefill_steps(&limits, 16);
                let computed: u32 = steps.iter().flat_map(|step| &step.rows).map(|row| row.count).sum();
                assert_eq!(computed as usize, batch * prompt);
                let sampling = steps.iter().flat_map(|step| &step.rows).filter(|row| row.sample).count();
                assert_eq!(sampling, batch);
                steps.extend((0..generate).map(|index| workload.decode_step(&limits, index)));
                steps.push(workload.release_step());
                for step in steps.iter().chain([&workload.prefill_steps(&limits, 16)[0]]) {
                    let mut rows = Batch::new(&limits);
                    table.apply(step, &mut rows).unwrap();
                    assert_eq!(rows.refused().count(), 0, "{workload:?} {step:?}");
                    table.expect(&mut rows);
                }
            }
        }
    }

    #[test]
    fn no_step_is_longer_than_allowed() {
        let workload = BenchWorkload { batch: 3, prompt: 10, generate: 1 };
        let steps = workload.prefill_steps(&limits(&workload, 8), 16);
        let tokens = |step: &Step| step.rows.iter().map(|row| row.count).collect::<Vec<_>>();
        assert_eq!(steps.iter().map(tokens).collect::<Vec<_>>(), [vec![8], vec![2, 6], vec![4, 4], vec![6]]);
    }

    #[test]
    fn prompts_differ_and_stay_in_the_vocabulary() {
        let prompts: Vec<_> = (0..50).map(|sequence| prompt(sequence, 40, 7)).collect();
        assert!(prompts.iter().flatten().all(|&token| token < 7));
        assert!((0..7).all(|token| prompts[0].contains(&token)));
        assert!((1..50).all(|sequence| prompts[sequence] != prompts[sequence - 1]));
    }
}
