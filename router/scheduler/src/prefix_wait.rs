//! Waiting for a prefix that a running sequence is computing.
//!
//! Answers to one prompt, and requests with one system prompt, often arrive together. If all of
//! them were admitted at once, each of them would compute the common prefix. Instead, one of them
//! is admitted, and the others stay in the queue until it has published the common blocks. The
//! sequence that computes is the *producer*. A waiting sequence is overtaken like one for which
//! there are no blocks, so the limit on overtaking holds for it as well.
//!
//! Nothing is stored about a wait: each plan asks again whether the next block that a waiting
//! sequence needs is the next one that a running sequence will publish. If the producer is
//! cancelled, fails, is preempted or lost, it is not running any more, and one of the others is
//! admitted in the next plan.
//!
//! If sequences have recurrent states, the others can begin only where the producer saves its
//! states ([`state_checkpoints`](super::state_checkpoints)), so they wait for its next checkpoint.
//!
//! A wait always ends. A producer computes tokens that it was admitted with, so it needs neither a
//! mask nor another sequence, and either its rows are in flight or it takes part in the next step.
//!
//! # When waiting does not pay
//!
//! - The common part that the producer computes has fewer than [`MIN_COMMON_BLOCKS`] blocks. A wait
//!   takes about as long as two steps.
//! - The producer may be computed much later than the waiting sequence would be, because short
//!   prompts go first ([`prompt_shares`](super::prompt_shares)) and the producer's prompt is much
//!   longer, or because the waiting sequence would become the first in order.

use super::cache::{BlockHash, Prefix, common_blocks};
use super::id::SeqId;
use super::running::RunningSequence;
use super::sequence::Sequence;
use super::state::Scheduler;

/// Minimum number of common blocks that a producer computes.
pub(super) const MIN_COMMON_BLOCKS: usize = 2;

/// How many times as many tokens as the waiting sequence a producer may have left that is not the
/// first prompt in order.
pub(super) const MAX_PRODUCER_RATIO: usize = 2;

/// A running sequence that is computing blocks for which others may wait.
#[derive(Debug)]
pub(super) struct Producer {
    id: SeqId,
    /// The last of the blocks with which another sequence can begin next: the next one that the
    /// producer will publish, or the last one before its next checkpoint.
    next: BlockHash,
    /// The index of that block.
    index: usize,
}

impl Scheduler {
    /// The running sequences that are computing blocks for which others may wait.
    pub(super) fn producers(&self) -> Vec<Producer> {
        self.running.iter().filter_map(|running| self.producer(running)).collect()
    }

    /// Describes a running sequence as a producer, if it will publish blocks of the tokens with
    /// which it was admitted.
    pub(super) fn producer(&self, running: &RunningSequence) -> Option<Producer> {
        let index = match self.cache.has_checkpoints() {
            true => running.next_save()? / self.limits.block_size - 1,
            false => running.table.published(),
        };
        let next = *running.admitted_hashes(&self.limits).get(index)?;
        Some(Producer { id: running.sequence.id, next, index })
    }

    /// Whether a sequence whose blocks are cached up to `prefix` should wait for the blocks that
    /// one of the producers is computing.
    pub(super) fn waits_for_prefix(
        &self,
        sequence: &Sequence,
        prefix: &Prefix,
        producers: &[Producer],
    ) -> bool {
        let hashes = sequence.block_hashes.as_slice();
        // The block of the last token is computed anyway.
        let usable = &hashes[..hashes.len().min(sequence.len().saturating_sub(1) / self.limits.block_size)];
        let producing = producers.iter().filter(|producer| {
            producer.index >= prefix.blocks && usable.get(producer.index) == Some(&producer.next)
        });
        let mut producing = producing.filter_map(|producer| self.running.get(self.position(producer.id)?));
        let remaining = sequence.len() - self.cache.positions(prefix);
        !sequence.ignores_prefix_cache()
            && producing.any(|producer| {
                self.shared_blocks(producer, prefix, usable) >= MIN_COMMON_BLOCKS
                    && self.is_soon(producer, sequence.id, remaining)
            })
    }

    /// Number of blocks that the producer computes and that a sequence with the hashes `usable`
    /// can begin with. Its cached blocks are `prefix`.
    fn shared_blocks(&self, producer: &RunningSequence, prefix: &Prefix, usable: &[BlockHash]) -> usize {
        let cached = producer.cached() / self.limits.block_size;
        match producer.next_save() {
            Some(save) => (save / self.limits.block_size).saturating_sub(prefix.blocks.max(cached)),
            None => common_blocks(usable, producer.admitted_hashes(&self.limits)) - cached,
        }
    }

    /// Whether the producer is computed about as soon as a sequence with this id would be, which
    /// has `remaining` tokens to run.
    fn is_soon(&self, producer: &RunningSequence, id: SeqId, remaining: usize) -> bool {
        let first = self.running.iter().find(|running| running.is_prefill());
        first.is_none_or(|first| {
            let is_first = first.sequence.id == producer.sequence.id;
            let all_in_flight = producer.remaining() <= 1;
            let is_short = producer.remaining() <= MAX_PRODUCER_RATIO * remaining;
            is_first || all_in_flight || is_short && first.sequence.id < id
        })
    }
}
