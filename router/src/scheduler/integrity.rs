//! The invariants of the scheduler, checked whole. For tests and for hunting faults: it takes time linear in the pool.

use std::collections::HashSet;

use super::Scheduler;

impl Scheduler {
    /// Checks every invariant that ties queue, slots and blocks together.
    ///
    /// # Errors
    /// Says which one is broken.
    pub fn check_integrity(&self) -> Result<(), String> {
        let broken = |text: String| Err(text);
        let order: Vec<_> =
            self.running.iter().map(|r| r.sequence.id).chain(self.waiting.keys().copied()).collect();
        if !order.is_sorted_by(|a, b| a < b) {
            return broken(format!("a running sequence is younger than one that waits: {order:?}"));
        }

        let taken = self.running.iter().map(|running| running.slot);
        let slots: Vec<_> = taken.chain(self.free_slots.iter().copied()).collect();
        if slots.len() != self.limits.max_sequences || has_duplicates(&slots) {
            return broken(format!("taken and free slots are not all slots once: {slots:?}"));
        }
        if has_duplicates(&self.released) {
            return broken(format!("a slot is released twice: {:?}", self.released));
        }

        let owned = self.running.iter().flat_map(|running| &running.blocks);
        let blocks: Vec<_> = owned.chain(self.pool.free()).copied().collect();
        if blocks.len() != self.limits.num_blocks || has_duplicates(&blocks) {
            return broken(format!("owned and free blocks are not all blocks once: {blocks:?}"));
        }
        for running in &self.running {
            let covered = running.blocks.len() * self.limits.block_size;
            if covered < running.positions_after(0) {
                return broken(format!("blocks cover {covered} positions of {running:?}"));
            }
            if running.blocks.len() > self.limits.blocks_for(running.sequence.max_positions()) {
                return broken(format!("more blocks than can ever be used: {running:?}"));
            }
        }
        Ok(())
    }
}

fn has_duplicates<T: std::hash::Hash + Eq>(items: &[T]) -> bool {
    let mut seen = HashSet::with_capacity(items.len());
    !items.iter().all(|item| seen.insert(item))
}
