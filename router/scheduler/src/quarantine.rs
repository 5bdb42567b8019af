//! The quarantine of sequences that may have caused the loss of the shards.
//!
//! When the shards are lost, every sequence with a row in flight is a suspect. A sequence that was
//! a suspect in two losses is in quarantine: with the next shards it runs alone, before all other
//! sequences, until it has passed the position that it had reached when the shards were lost. Then
//! it goes back to the queue.
//!
//! If the shards are lost while it runs alone, and one of its positions was in flight in all of its
//! losses, then the sequence caused them and is the only one to fail. Without such a position the
//! losses may have had other causes, such as an operator who stops a shard. Then the sequence stays
//! in quarantine, and fails if the shards are lost once more while it runs alone.
//!
//! A request that crashes the shards whenever it computes a certain position therefore costs three
//! losses, whatever runs beside it, and one that crashes them anywhere costs four. The other
//! suspects only lose time: their prompts are computed one after the other, which takes about as
//! long as together.

use std::ops::Range;

use super::cache::Prefix;
use super::id::SeqId;
use super::in_flight::RowInFlight;
use super::output::Admitted;
use super::running::RunningSequence;
use super::state::Scheduler;

/// Number of losses after which a sequence runs alone.
const QUARANTINE_LOSSES: u32 = 2;

/// Returns the positions from the first to the last one that the rows of a sequence compute.
fn positions_in_flight(rows: &[RowInFlight], id: SeqId) -> Range<usize> {
    let own = || rows.iter().filter(|row| row.sequence == id);
    let start = own().map(|row| row.start).min().unwrap_or(0);
    start..own().map(|row| row.computed).max().unwrap_or(start)
}

impl Scheduler {
    /// Notes that the shards are lost, and with them all steps in flight.
    ///
    /// Returns the sequence that caused the loss, if a sequence in quarantine was running alone and
    /// its losses agree. The scheduler has removed it.
    #[must_use = "the request of the returned sequence must be failed"]
    pub fn lose(&mut self) -> Option<SeqId> {
        let rows: Vec<RowInFlight> = self.in_flight.drain(..).flat_map(|step| step.rows).collect();
        let first = rows.first()?.sequence;
        if self.quarantine.contains(&first) && rows.iter().all(|row| row.sequence == first) {
            let in_flight = positions_in_flight(&rows, first);
            let is_cause = self.update(first, |sequence| sequence.loss_history.add_alone(in_flight));
            if is_cause == Some(false) {
                return None;
            }
            self.cancel(first);
            return Some(first);
        }
        let mut suspects: Vec<SeqId> = rows.iter().map(|row| row.sequence).collect();
        suspects.sort_unstable();
        suspects.dedup();
        for id in suspects {
            let in_flight = positions_in_flight(&rows, id);
            let losses = self.update(id, |sequence| {
                sequence.loss_history.add(in_flight);
                sequence.loss_history.losses
            });
            if losses.is_some_and(|losses| losses >= QUARANTINE_LOSSES) {
                self.quarantine.insert(id);
            }
        }
        None
    }

    /// Admits the first sequence in quarantine that can continue, if nothing is running or in
    /// flight.
    pub(super) fn admit_from_quarantine(&mut self) -> Vec<Admitted> {
        if !self.running.is_empty() || !self.in_flight.is_empty() {
            return Vec::new();
        }
        let Scheduler { quarantine, waiting, .. } = &*self;
        let next =
            quarantine.iter().filter_map(|&id| waiting.get(id)).find(|sequence| !sequence.awaits_mask());
        let Some((id, len)) = next.map(|sequence| (sequence.id, sequence.len())) else { return Vec::new() };
        // The sequence did run before, so it is not charged as overtaking the sequences before it.
        let claim = self.place_claims(&[id]).get(id);
        let Some(sequence) = self.waiting.remove(id) else { return Vec::new() };
        let prefix = match sequence.ignores_prefix_cache() {
            true => Prefix::default(),
            false => self.cache.find(sequence.block_hashes.as_slice(), sequence.len()),
        };
        let cached = self.cache.positions(&prefix);
        let table = self.cache.allocate(&prefix, len);
        let save_positions = self.save_positions(len, &prefix);
        debug_assert!(table.is_some(), "all blocks are available, and the sequence fits alone");
        let (Some(table), Some(slot)) = (table, self.free_slots.pop()) else {
            self.waiting.insert(sequence);
            return Vec::new();
        };
        // Nothing runs, so every place is free.
        self.use_place(&sequence, claim);
        self.hit_tokens += cached as u64;
        self.miss_tokens += (len - cached) as u64;
        let running = RunningSequence::new(sequence, slot, table, cached, self.next_step);
        self.running.push(running.with_checkpoints(prefix.checkpoint, save_positions));
        vec![Admitted { sequence: id, cached_tokens: cached }]
    }

    /// Moves a sequence from the quarantine to the queue if it has computed `computed` positions
    /// alone, and so has passed the position that it had reached when the shards were lost.
    pub(super) fn leave_quarantine(&mut self, id: SeqId, computed: usize) {
        if !self.quarantine.contains(&id) {
            return;
        }
        let Some(index) = self.position(id) else { return };
        let history = &mut self.running[index].sequence.loss_history;
        if computed < history.reached {
            return;
        }
        // One more loss brings the sequence back into quarantine.
        history.pass(QUARANTINE_LOSSES - 1);
        self.quarantine.remove(&id);
        let sequence = self.vacate(index);
        self.waiting.insert(sequence);
    }
}
