//! The attention of a step.

use super::super::kv::Kv;
use super::super::memory::Shared;
use super::super::queue::Queue;
use super::super::{Buf, Cpu, lock};
use super::job::{Output, Queries, Scoring, Tile};
use super::merge::{Merge, stride};
use super::tasks::{AttentionTasks, Task};

impl Cpu {
    /// Computes the attention of all tokens of the step. The caller has checked all shapes.
    pub(crate) fn attend(&self, step: &Queue, (qkv, kv): (&Buf, &Kv), scoring: Scoring<'_>, out: &mut Buf) {
        let Scoring { dims, spec, terms } = scoring;
        let n = step.tokens.len();
        let (qkv, out) = (qkv.rows(n), Shared::new(out.rows_mut(n)));
        let mut tasks = lock(&self.attention);
        tasks.make(step, scoring, self.threads());
        let work = tasks.cost() * dims.key;
        let AttentionTasks { list, split, partials } = &mut *tasks;
        let shared = Shared::new(partials);
        self.parallel_in_order(list.len(), work, |task, thread| {
            let Task { row, kv_head, ref queries, ref ranges, partials, .. } = list[task];
            let (_guard, scratch) = self.scratch(thread);
            let row = &step.rows[row];
            let (queries, ranges) = (queries.clone(), ranges.clone());
            let to = partials.map_or(Output::Attention(out), |at| Output::Partials(shared.from(at)));
            let (of, blocks) = (Queries { dims, spec, row, kv_head }, step.blocks(row));
            self.target.dispatch(Tile {
                of,
                spec,
                terms,
                kv,
                blocks,
                kv_head,
                queries,
                ranges,
                qkv,
                to,
                #[cfg(target_arch = "x86_64")]
                has_tiles: self.target.has_tiles(),
                scratch,
            });
        });
        let partials = &partials[..];
        let stride = stride(dims.value);
        let merged: usize = split.iter().map(|tile| tile.queries.len() * tile.ranges.len() * stride).sum();
        self.parallel(split.len(), merged, |tile, thread| {
            let Task { row, kv_head, ref queries, ref ranges, partials: at, .. } = split[tile];
            let (_guard, scratch) = self.scratch(thread);
            let (row, queries, ranges) = (&step.rows[row], queries.clone(), ranges.clone());
            let partials = &partials[at.unwrap_or(0)..];
            let of = Queries { dims, spec, row, kv_head };
            let sinks = terms.sinks;
            self.target.dispatch(Merge { of, sinks, queries, ranges, partials, out, scratch });
        });
    }
}
