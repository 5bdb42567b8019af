//! The division of a step's attention among the threads.

use std::cmp::Reverse;
use std::ops::Range;

use millrace_backend::{Result, StepSize};

use super::super::memory::Memory;
use super::super::queue::Queue;
use super::QUERIES;
use super::job::{Queries, Scoring};
use super::merge::stride;

/// Numbers of partial results for each thread.
const PARTIALS: usize = 1 << 16;
/// Tasks for each thread that come from tiles whose ranges are separate tasks.
const SPLIT_TASKS: usize = 64;
/// A tile that takes more than a thread's share of the step's time divided by this number is
/// computed by several tasks.
const SHARES: usize = 4;

/// Returns the numbers of the buffer for partial results. A single thread needs none.
pub(crate) const fn partial_floats(threads: usize) -> usize {
    if threads > 1 { threads.saturating_mul(PARTIALS) } else { 0 }
}

/// The tasks of the running attention. Steps allocate nothing: lists and buffer are as large as the
/// largest step needs, or bounded.
pub(crate) struct AttentionTasks {
    pub(super) list: Vec<Task>,
    /// The tiles whose ranges are separate tasks.
    pub(super) split: Vec<Task>,
    pub(super) partials: Memory<f32>,
}

/// Some ranges of a tile.
#[derive(Clone)]
pub(super) struct Task {
    /// Index of the row.
    pub(super) row: usize,
    pub(super) kv_head: usize,
    pub(super) queries: Range<usize>,
    pub(super) ranges: Range<usize>,
    /// Index of the partial results, if the tile's ranges are separate tasks.
    pub(super) partials: Option<usize>,
    /// Estimated time, relative to other tasks.
    cost: usize,
}

impl AttentionTasks {
    pub(crate) fn new(threads: usize) -> Result<AttentionTasks> {
        let partials = Memory::zeroed(partial_floats(threads), "partial attention")?;
        Ok(AttentionTasks { list: Vec::new(), split: Vec::new(), partials })
    }

    /// Reserves the lists for steps of this size.
    pub(crate) fn reserve(&mut self, size: &StepSize<'_>, threads: usize) {
        let tiles = size.attention.iter().map(|spec| {
            let group = spec.layout.heads / spec.layout.kv_heads.max(1);
            (size.rows + size.tokens * group / QUERIES) * spec.layout.kv_heads
        });
        let tiles = tiles.max().unwrap_or(0);
        let split = SPLIT_TASKS * threads;
        self.list.reserve((tiles + split).saturating_sub(self.list.len()));
        self.split.reserve(split.saturating_sub(self.split.len()));
    }

    /// Makes the tasks of a step.
    pub(super) fn make(&mut self, step: &Queue, scoring: Scoring<'_>, threads: usize) {
        let Scoring { dims, spec, .. } = scoring;
        self.list.clear();
        self.split.clear();
        let group = spec.layout.heads / spec.layout.kv_heads;
        for (index, row) in step.rows.iter().enumerate() {
            for first in (0..row.count * group).step_by(QUERIES) {
                let queries = first..(first + QUERIES).min(row.count * group);
                let of = Queries { dims, spec, row, kv_head: 0 };
                let (ranges, keys) = (of.ranges(&queries), of.sees(queries.end - 1).len());
                let cost = queries.len() * (keys + 16);
                self.list.extend((0..spec.layout.kv_heads).map(|kv_head| Task {
                    row: index,
                    kv_head,
                    queries: queries.clone(),
                    ranges: ranges.clone(),
                    partials: None,
                    cost,
                }));
            }
        }
        if threads > 1 {
            self.split_long(stride(dims.value), threads);
        }
        // The longest tasks come first, so that no thread starts a long one when the others are
        // done.
        self.list.sort_unstable_by_key(|task| Reverse(task.cost));
    }

    /// Makes a task of each range of the tiles that would keep one thread busy when the others are
    /// done. A tile stays whole if there is no space for its partial results; the results are the
    /// same.
    fn split_long(&mut self, stride: usize, threads: usize) {
        let longest = self.cost() / (SHARES * threads);
        let (mut used, mut tasks) = (0, 0);
        for index in 0..self.list.len() {
            let tile = &self.list[index];
            let ranges = tile.ranges.clone();
            let of_range = tile.queries.len() * stride;
            let end = used + ranges.len() * of_range;
            let fits = end <= self.partials.len() && tasks + ranges.len() <= SPLIT_TASKS * threads;
            if tile.cost <= longest || ranges.len() == 1 || !fits {
                continue;
            }
            let cost = tile.cost / ranges.len();
            let whole = Task { partials: Some(used), ..tile.clone() };
            let of = |(number, range)| Task {
                ranges: range..range + 1,
                partials: Some(used + number * of_range),
                cost,
                ..whole.clone()
            };
            // The last range takes the place of the tile.
            self.list.extend(ranges.clone().enumerate().map(of));
            self.list.swap_remove(index);
            self.split.push(whole);
            (used, tasks) = (end, tasks + ranges.len());
        }
    }

    /// Returns the estimated time of all tasks.
    pub(super) fn cost(&self) -> usize {
        self.list.iter().map(|task| task.cost).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attention::HeadDims;
    use millrace_backend::{AttentionSpec, KvFormat, QkvLayout, ScoreTerms, SeqRow, StepInput};
    use millrace_numbers::DType;

    const SPEC: AttentionSpec = AttentionSpec {
        layout: QkvLayout { heads: 8, kv_heads: 2, head_dim: 64 },
        scale: 1.0,
        window: None,
        soft_cap: None,
        bidirectional: false,
    };

    /// Makes the tasks of a step with decode rows at these positions. The lists must not grow.
    fn tasks(positions: &[usize], threads: usize) -> AttentionTasks {
        let size = StepSize {
            tokens: positions.len(),
            rows: positions.len(),
            sequence_tokens: 1 << 20,
            blocks: 1,
            block_size: 16,
            kv_format: KvFormat::Dense(DType::F32),
            vocab: 1,
            attention: &[SPEC],
        };
        let mut queue = Queue::new(&size);
        let tokens = vec![0; positions.len()];
        let rows: Vec<SeqRow<'_>> =
            positions.iter().enumerate().map(|(slot, &at)| SeqRow::prefill(slot, at..at + 1, &[])).collect();
        let input =
            StepInput { tokens: &tokens, rows: &rows, outputs: &[], samples: &[], ..StepInput::EMPTY };
        queue.set(&input);
        let mut tasks = AttentionTasks::new(threads).unwrap();
        tasks.reserve(&size, threads);
        let capacities = (tasks.list.capacity(), tasks.split.capacity());
        let scoring = Scoring { dims: HeadDims::of(SPEC.layout), spec: &SPEC, terms: ScoreTerms::NONE };
        tasks.make(&queue, scoring, threads);
        assert_eq!(capacities, (tasks.list.capacity(), tasks.split.capacity()));
        tasks
    }

    #[test]
    fn a_long_sequence_is_a_task_for_each_range() {
        let found = tasks(&[20_000, 30], 4);
        assert_eq!((found.list.len(), found.split.len()), (2 * 5 + 2, 2));
        let mut places: Vec<usize> = found.list.iter().filter_map(|task| task.partials).collect();
        places.sort_unstable();
        let of_range = 4 * stride(64);
        assert_eq!(places, (0..10).map(|range| range * of_range).collect::<Vec<_>>());
        assert!(found.list.windows(2).all(|pair| pair[0].cost >= pair[1].cost));
        assert_eq!(tasks(&[20_000, 30], 1).list.len(), 4);
    }

    #[test]
    fn partial_results_stay_inside_their_buffer() {
        for position in [1 << 17, 1 << 19, (1 << 20) - 1] {
            for threads in [2, 3, 8] {
                let found = tasks(&[position], threads);
                let end = |task: &Task| Some(task.partials? + task.queries.len() * stride(64));
                let last = found.list.iter().filter_map(end).max().unwrap_or(0);
                assert!(last <= found.partials.len(), "{position} on {threads} threads");
                let ranges: usize = found.list.iter().map(|task| task.ranges.len()).sum();
                assert_eq!(ranges, 2 * (position + 1).div_ceil(4096));
            }
        }
    }
}
