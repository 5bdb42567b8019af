//! A complete check of the scheduler's invariants, for tests and debugging. It takes time linear in
//! the size of the KV cache.

use std::collections::HashSet;

use super::cache::DiskRestore;
use super::id::SeqId;
use super::request::Tenant;
use super::running::RunningSequence;
use super::state::Scheduler;

impl Scheduler {
    /// Checks every invariant that ties queue, slots and blocks together.
    ///
    /// # Errors
    /// A description of the broken invariant.
    pub fn check_integrity(&self) -> Result<(), String> {
        let broken = |text: String| Err(text);
        let running: Vec<_> = self.running.iter().map(|running| running.sequence.id).collect();
        if !running.is_sorted_by(|a, b| a < b) {
            return broken(format!("the running sequences are not in order: {running:?}"));
        }
        if self.waiting.iter().any(|sequence| running.contains(&sequence.id)) {
            return broken(format!("a sequence is running and waiting: {running:?}"));
        }
        if self.waiting.iter().map(|sequence| sequence.len()).sum::<usize>() != self.waiting.tokens() {
            return broken(format!("not {} tokens are waiting", self.waiting.tokens()));
        }
        let tenants: HashSet<&Tenant> = self.waiting.iter().map(|sequence| &sequence.tenant).collect();
        if tenants != self.waiting.tenants().collect() {
            return broken(format!("the waiting tenants are {tenants:?}"));
        }

        let taken = self.running.iter().map(|running| running.slot);
        let slots: Vec<_> = taken.chain(self.free_slots.iter().copied()).collect();
        if slots.len() != self.limits.max_sequences || has_duplicates(&slots) {
            return broken(format!("taken and free slots are not all slots once: {slots:?}"));
        }
        if has_duplicates(&self.released) {
            return broken(format!("a slot is released twice: {:?}", self.released));
        }

        let alone = self.quarantine.is_empty()
            || self.running.iter().all(|running| self.quarantine.contains(&running.sequence.id))
                && self.running.len() <= 1;
        if !alone {
            return broken(format!("{running:?} run beside the quarantine {:?}", self.quarantine));
        }
        let unknown = |id: &&SeqId| self.position(**id).is_none() && self.waiting.get(**id).is_none();
        if let Some(id) = self.quarantine.iter().find(unknown) {
            return broken(format!("{id:?} is in quarantine, but neither running nor waiting"));
        }

        for running in &self.running {
            let blocks = running.table.blocks.len();
            if blocks * self.limits.block_size < running.positions_after(0) {
                return broken(format!("{blocks} blocks do not cover the positions of {running:?}"));
            }
            if blocks > self.limits.blocks_for(running.sequence.max_positions()) {
                return broken(format!("more blocks than can ever be used: {running:?}"));
            }
        }
        self.check_places()?;
        let users = self
            .running
            .iter()
            .map(|RunningSequence { sequence, table, .. }| (table, sequence.block_hashes.as_slice()))
            .chain(self.copies.restores().map(DiskRestore::table));
        let rows = self.in_flight.iter().flat_map(|step| &step.rows);
        let kept = self.running.iter().filter_map(RunningSequence::kept);
        let reserved: Vec<_> = rows.filter_map(|row| row.saves).chain(kept).collect();
        self.cache.check_disk(&self.copies.restores().collect::<Vec<_>>())?;
        self.cache.check_integrity(&users.collect::<Vec<_>>(), &reserved)
    }
}

fn has_duplicates<T: std::hash::Hash + Eq>(items: &[T]) -> bool {
    let mut seen = HashSet::with_capacity(items.len());
    !items.iter().all(|item| seen.insert(item))
}
