//! Sequences that move from the scheduler of one group of shards to the scheduler of another one.
//!
//! A sequence that left its scheduler has everything that is needed to continue it elsewhere: its
//! tokens that have come back, its parameters, and the losses of shards in which it was in flight.
//! The other scheduler computes its tokens again, as after a loss, so its text stays the same.
//!
//! A sequence in quarantine does not move. It may have ended the shards of two groups, and must not
//! end more of them.

use super::id::SeqId;
use super::limits::InfeasibleRequest;
use super::sequence::Sequence;
use super::state::Scheduler;
use super::{AdapterId, BlockHashes};

/// A sequence between two schedulers.
#[derive(Debug)]
pub struct MovedSequence {
    sequence: Sequence,
    /// Number of steps for which the sequence has been due. It is negative for a sequence of low
    /// priority that has not been due yet.
    waited: i64,
}

impl MovedSequence {
    /// The adapter that the sequence is computed with.
    pub fn adapter(&self) -> Option<AdapterId> {
        self.sequence.adapter
    }
}

impl Scheduler {
    /// Returns the number of tokens of a sequence that can be taken out, and the hashes of their
    /// blocks.
    ///
    /// Returns `None` if the sequence has ended, is in quarantine, or waits for a mask. The last
    /// kind can be taken after [`release`](Self::release).
    pub fn can_take(&self, id: SeqId) -> Option<(usize, &BlockHashes)> {
        let sequence = self.get(id).filter(|sequence| !sequence.awaits_mask())?;
        (!self.quarantine.contains(&id)).then_some((sequence.len(), &sequence.block_hashes))
    }

    /// Takes a sequence out, waiting or running, to be continued by another scheduler. Its rows in
    /// flight must have been answered or lost. Returns `None` if it cannot be taken
    /// ([`can_take`](Self::can_take)).
    pub fn take(&mut self, id: SeqId) -> Option<MovedSequence> {
        debug_assert!(
            !self.in_flight.iter().flat_map(|step| &step.rows).any(|row| row.sequence == id),
            "the tokens in flight would be lost"
        );
        self.can_take(id)?;
        let mut sequence = match self.position(id) {
            Some(index) => self.vacate(index),
            None => self.waiting.remove(id)?,
        };
        if self.is_idle() {
            self.shares.reset();
        }
        sequence.lose_pending();
        (sequence.gave_slot, sequence.restored, sequence.overtaken) = (false, false, 0);
        Some(MovedSequence { sequence, waited: self.next_step.cast_signed() - id.due.cast_signed() })
    }

    /// Adds a sequence that another scheduler had, at the place in the order that it would have if
    /// it had waited here.
    ///
    /// # Errors
    /// [`InfeasibleRequest`] if these shards cannot run the sequence.
    pub fn adopt(&mut self, moved: MovedSequence) -> Result<SeqId, InfeasibleRequest> {
        let MovedSequence { mut sequence, waited } = moved;
        sequence.check(&self.limits)?;
        sequence.id.due = self.next_step.saturating_add_signed(-waited);
        sequence.block_hashes.resize(self.cache.hashed_block_size(), &sequence.tokens);
        Ok(self.enqueue(sequence))
    }
}
