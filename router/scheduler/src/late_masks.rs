//! Masks that follow their step.
//!
//! A constrained sequence need not wait for its mask before it runs: only sampling needs the mask.
//! Its next row is planned while the token before it is in flight, and the mask follows when it is
//! known. Only the masks of the oldest step in flight can be known, because a mask depends on the
//! tokens of the step before.
//!
//! A row whose mask comes too late is deferred: its sequence gets no token from the step, and its
//! next row runs the same position again. A sequence whose masks come late runs ahead of them less
//! often ([`Sequence::defer`](super::sequence::Sequence::defer)), so that few rows are computed in
//! vain.

use millrace_proto::{Masks, RowMask};

use super::in_flight::RowInFlight;
use super::state::Scheduler;

impl Scheduler {
    /// Returns the masks that follow the oldest step in flight, once, as soon as all of them are
    /// known. If they `are_due`, rows whose masks are not known are deferred.
    pub fn masks(&mut self, are_due: bool) -> Option<Masks> {
        let step = self.in_flight.front().filter(|step| step.awaits_masks)?;
        let mask = |row: &RowInFlight| self.get(row.sequence).and_then(|sequence| sequence.known_mask());
        // Nobody needs the token of a sequence that has ended.
        let is_late = |row: &RowInFlight| mask(row).is_none() && self.get(row.sequence).is_some();
        if !are_due && step.late_rows().any(is_late) {
            return None;
        }
        let known = |row: &RowInFlight| Some(RowMask { slot: row.slot.0, allowed: mask(row)?.to_vec() });
        let masks = Masks { step: step.step, rows: step.late_rows().filter_map(known).collect() };
        let deferred = (0..step.rows.len()).filter(|&index| {
            let row = &step.rows[index];
            row.mask_follows && mask(row).is_none()
        });
        let deferred: Vec<usize> = deferred.collect();
        for index in deferred {
            self.defer(index);
        }
        if let Some(step) = self.in_flight.front_mut() {
            step.awaits_masks = false;
        }
        Some(masks)
    }

    /// The number of the oldest step in flight, if its masks have not been sent.
    pub fn step_without_masks(&self) -> Option<u64> {
        self.in_flight.front().filter(|step| step.awaits_masks).map(|step| step.step)
    }

    /// Whether the oldest step in flight has a row that can be answered without the masks that have
    /// not been sent.
    pub fn others_wait_for_masks(&self) -> bool {
        self.in_flight.front().is_some_and(|step| step.rows.iter().any(|row| !row.mask_follows))
    }

    /// Notes that the shards sample no token after this row of the oldest step in flight, and that
    /// later rows of the sequence run one position less.
    fn defer(&mut self, index: usize) {
        let Some(step) = self.in_flight.front_mut() else { return };
        let number = step.step;
        let row = &mut step.rows[index];
        let id = row.sequence;
        (row.samples, row.deferred) = (false, true);
        let later = self.in_flight.iter_mut().skip(1).flat_map(|step| &mut step.rows);
        later.filter(|row| row.sequence == id).for_each(|row| row.computed -= 1);
        if self.update(id, |sequence| sequence.defer()).is_some() {
            self.deferred_rows += 1;
        }
        if let Some(index) = self.position(id)
            && self.running[index].first_step <= number
        {
            self.running[index].take_back_position();
        }
    }
}
