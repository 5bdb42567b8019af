//! The quarantine of sequences that may have ended the shards.
//!
//! When the shards are lost, every sequence with a row in the steps in flight is a suspect. A sequence that was in two losses is in
//! quarantine: when there are shards again it runs alone, before all others, until it is past the place at which it was when they were
//! lost. Then it goes back to the queue and runs with the others. If the shards are lost while it runs alone, it is to blame, and it is
//! the only one to fail. So a request that ends the shards whenever it runs costs three losses, whatever runs beside it, and sequences that were
//! only beside it lose nothing but time: their prompts are computed one after the other, which takes about as long as together.

use super::cache::Prefix;
use super::sequence::{Running, SeqId};
use super::{Admitted, InFlightRow, Scheduler};

/// Losses after which a sequence runs alone.
const SUSPICIOUS: u32 = 2;

/// The losses of the shards that a sequence was in.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Suspicion {
    /// Losses in which it had a row in flight. One is left after it was found innocent.
    losses: u32,
    /// Positions that it had computed in them at most, those in flight included.
    reached: usize,
}

impl Scheduler {
    /// The shards are lost, and with them all steps in flight. If a sequence ran alone because it was in two losses before, it is to
    /// blame: it is forgotten, and somebody waits for it.
    #[must_use = "somebody waits for the sequence that is to blame"]
    pub fn lose(&mut self) -> Option<SeqId> {
        let rows: Vec<InFlightRow> = self.in_flight.drain(..).flat_map(|step| step.rows).collect();
        let first = rows.first()?.sequence;
        if self.quarantine.contains(&first) && rows.iter().all(|row| row.sequence == first) {
            self.cancel(first);
            return Some(first);
        }
        let mut suspects: Vec<SeqId> = rows.iter().map(|row| row.sequence).collect();
        suspects.sort_unstable();
        suspects.dedup();
        for id in suspects {
            let Some(sequence) = self.find(id) else { continue };
            let suspicion = &mut sequence.suspicion;
            let reached = rows.iter().filter(|row| row.sequence == id).map(|row| row.computed).max();
            suspicion.reached = suspicion.reached.max(reached.unwrap_or(0));
            suspicion.losses += 1;
            if suspicion.losses >= SUSPICIOUS {
                self.quarantine.insert(id);
            }
        }
        None
    }

    /// Sequences that were in so many losses that they run alone.
    pub fn quarantined(&self) -> usize {
        self.quarantine.len()
    }

    /// Admits the first sequence in quarantine that can go on, if nothing is running or in flight.
    pub(super) fn admit_from_quarantine(&mut self) -> Vec<Admitted> {
        if !self.running.is_empty() || !self.in_flight.is_empty() {
            return Vec::new();
        }
        let Scheduler { quarantine, waiting, cache, .. } = self;
        let next = quarantine.iter().filter_map(|&id| waiting.get(id)).find(|sequence| !sequence.is_held());
        let Some((id, len)) = next.map(|sequence| (sequence.id, sequence.len())) else { return Vec::new() };
        // It is no newcomer, so the patience of the sequences before it is not used up.
        let Some(sequence) = waiting.remove(id) else { return Vec::new() };
        let prefix = match sequence.is_computed_whole() {
            true => Prefix::default(),
            false => cache.find(&sequence.salt, &sequence.tokens),
        };
        let cached = cache.positions(&prefix);
        let table = cache.allocate(prefix, len);
        debug_assert!(table.is_some(), "all blocks are there, and it was checked that it fits alone");
        let (Some(table), Some(slot)) = (table, self.free_slots.pop()) else {
            self.waiting.insert(sequence);
            return Vec::new();
        };
        self.hit_tokens += cached as u64;
        self.miss_tokens += (len - cached) as u64;
        self.running.push(Running::new(sequence, slot, table, cached, self.next_step));
        vec![Admitted { sequence: id, cached_tokens: cached }]
    }

    /// A row has been answered: if its sequence ran alone and is past the place at which the shards were lost, it goes back to the queue.
    pub(super) fn acquit(&mut self, row: &InFlightRow) {
        if !self.quarantine.contains(&row.sequence) {
            return;
        }
        let Some(index) = self.position(row.sequence) else { return };
        let suspicion = &mut self.running[index].sequence.suspicion;
        if row.computed < suspicion.reached {
            return;
        }
        // One more loss is enough for another trial.
        suspicion.losses = SUSPICIOUS - 1;
        self.quarantine.remove(&row.sequence);
        let sequence = self.vacate(index);
        self.waiting.insert(sequence);
    }
}
