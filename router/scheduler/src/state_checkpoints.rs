//! Checkpoints of recurrent states: where they are saved, and when.
//!
//! A recurrent state belongs to one position and cannot go back, so a sequence of a model with such
//! states can begin with computed blocks only where the states were saved. The states are saved
//! after a row, so rows of a prompt end at the positions of its checkpoints. There are at most two:
//!
//! - Where the computed blocks of its prefix end, if that is behind the checkpoint with which it
//!   begins. Another prompt has left this prefix there, and so will others: most prompts of a
//!   server begin with one of few instructions. Marconi (Pan et al., "Prefix Caching for the Era of
//!   Hybrid LLMs") saves states at such branches, too.
//! - Near its end, where the next turn of a conversation continues. The last
//!   [`OPEN_POSITIONS`] tokens are left out: they begin the answer, and many templates write the
//!   beginning of a past answer in another way.
//!
//! A checkpoint takes a part of a step and as much memory as a running sequence, so it must spare
//! at least [`MIN_SPARED_BLOCKS`]. No states are saved while a sequence generates: an answer is
//! short beside its prompt, and many templates leave its reasoning out of the next prompt.

use super::cache::{CheckpointId, Prefix};
use super::id::SeqId;
use super::state::Scheduler;

/// Minimum number of blocks from one checkpoint of a sequence to the next.
const MIN_SPARED_BLOCKS: usize = 4;

/// Number of tokens at the end of a prompt that the next prompt of a conversation may not have.
const OPEN_POSITIONS: usize = 8;

/// Maximum number of checkpoints of a prompt.
pub(super) const MAX_SAVES: usize = 2;

impl Scheduler {
    /// The positions at which the states of a sequence of `len` tokens are to be saved that begins
    /// with `prefix`, in ascending order.
    pub(super) fn save_positions(&self, len: usize, prefix: &Prefix) -> Vec<usize> {
        if !self.cache.has_checkpoints() {
            return Vec::new();
        }
        let block_size = self.limits.block_size;
        let branch = prefix.computed_blocks * block_size;
        let end = len.saturating_sub(1 + OPEN_POSITIONS) / block_size * block_size;
        let mut last = self.cache.positions(prefix);
        let mut spares = |position: &usize| {
            let spares = *position >= last + MIN_SPARED_BLOCKS * block_size;
            last = if spares { *position } else { last };
            spares
        };
        [branch, end].into_iter().filter(|position| spares(position)).collect()
    }

    /// Takes checkpoints for the planned rows after which states are to be saved.
    pub(super) fn reserve_checkpoints(&mut self) {
        let Scheduler { running, cache, .. } = self;
        for running in running.iter_mut().filter(|running| running.wants_checkpoint()) {
            running.save_in(cache.reserve_checkpoint());
        }
    }

    /// Notes that the states of a sequence were saved when it had computed `positions`. They are of
    /// no use if the sequence has left its slot since.
    pub(super) fn note_saved(&mut self, id: SeqId, step: u64, checkpoint: CheckpointId, positions: usize) {
        let running = self.position(id).map(|index| &mut self.running[index]);
        match running.filter(|running| running.first_step <= step) {
            Some(running) => {
                running.end_save(positions);
                let hashes = running.sequence.block_hashes.as_slice();
                self.cache.save(checkpoint, &running.table, hashes, positions);
            }
            None => self.cache.give_back(checkpoint),
        }
    }
}
