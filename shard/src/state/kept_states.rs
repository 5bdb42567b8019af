//! The positions whose states a head that predicts further tokens has not read.
//!
//! For a position the head reads the model's state and the token after it, which is known only when
//! the next row of the sequence comes. So the states of the last positions are kept until then. Of
//! a row with several tokens the head reads all positions but the last one with the step itself.
//! Rows of one token are read together, when the head is to guess or no more states can be kept.

use std::ops::Range;

use millrace_model::KEPT_STATES;

/// The positions of each sequence whose states are kept.
#[derive(Debug)]
pub(super) struct KeptStates {
    /// Number of positions of the head.
    positions: usize,
    /// For each slot the positions.
    kept: Vec<Range<usize>>,
}

/// The states of a row, and those before it, by when the head reads them.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RowStates {
    /// The positions whose states were kept, and that are read before the step.
    pub(super) before: Range<usize>,
    /// Number of the first positions of the row that are read with the step. The states of the
    /// others are kept.
    pub(super) with_step: usize,
}

impl KeptStates {
    /// Creates the table of `slots` slots for a head of `positions` positions.
    pub(super) fn new(slots: usize, positions: usize) -> Self {
        KeptStates { positions, kept: vec![0..0; slots] }
    }

    /// Forgets the states of the sequence that had this slot.
    pub(super) fn forget(&mut self, slot: usize) {
        self.kept[slot] = 0..0;
    }

    /// Returns whether the head can guess `guesses` tokens after the row of one token at `start`.
    pub(super) fn can_guess(&self, slot: usize, start: usize, guesses: usize) -> bool {
        let Range { start: first, end } = self.kept[slot];
        // The last guess is not read.
        first < start && start <= end && start + guesses <= self.positions && guesses < KEPT_STATES
    }

    /// Notes that the next row of a sequence computes `count` positions from `start` on, of which
    /// the last ones are `drafts` guesses. Returns what the head reads.
    pub(super) fn note_row(&mut self, slot: usize, start: usize, count: usize, guesses: usize) -> RowStates {
        let kept = &mut self.kept[slot];
        // The states after wrong guesses are of no use, and those before a gap are of no more use.
        let known = if kept.end < start { start..start } else { kept.start.min(start)..start };
        let is_long = count - guesses > 1 || count > KEPT_STATES;
        let reads_before = guesses > 0 || is_long || known.len() + count > KEPT_STATES;
        let with_step = if is_long { count - 1 } else { 0 };
        let from = if reads_before || known.is_empty() { start + with_step } else { known.start };
        *kept = from..start + count;
        RowStates { before: if reads_before { known } else { start..start }, with_step }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every position but the last one is read once, in order, however a sequence is divided into
    /// rows, and no more states are kept than there is room for.
    #[test]
    fn every_position_is_read_once() {
        let mut states = KeptStates::new(2, 1000);
        let (mut read, mut start) = (0, 0);
        let mut note = |start, count, guesses, states: &mut KeptStates| {
            let RowStates { before, with_step } = states.note_row(1, start, count, guesses);
            if !before.is_empty() {
                assert_eq!(before.start, read, "at {start}");
                read = before.end;
            }
            if with_step > 0 {
                assert_eq!(start, read);
                read += with_step;
            }
            assert!(start + count - read <= KEPT_STATES);
            read
        };
        for count in [40, 1, 7].into_iter().chain([1; 50]).chain([3, 1, 1, 2]) {
            note(start, count, 0, &mut states);
            start += count;
        }
        assert!(states.can_guess(1, start, 3) && !states.can_guess(0, start, 3));
        assert!(!states.can_guess(1, start, KEPT_STATES) && !states.can_guess(1, start, 1000 - start + 1));
        // Of three guesses one is right.
        assert_eq!(note(start, 4, 3, &mut states), start);
        assert_eq!(note(start + 2, 4, 3, &mut states), start + 2);
    }

    /// A sequence that begins behind a shared prefix has no states of it.
    #[test]
    fn nothing_is_read_of_states_that_are_not_there() {
        let mut states = KeptStates::new(1, 1000);
        assert!(!states.can_guess(0, 32, 1));
        assert_eq!(states.note_row(0, 32, 1, 0), RowStates { before: 32..32, with_step: 0 });
        assert!(states.can_guess(0, 33, 1));
        assert_eq!(states.note_row(0, 33, 2, 1), RowStates { before: 32..33, with_step: 0 });
        states.forget(0);
        assert!(!states.can_guess(0, 34, 1));
        // A row that goes back has the states before it, if they are kept.
        states.note_row(0, 0, 40, 0);
        assert!(!states.can_guess(0, 36, 1) && states.can_guess(0, 40, 1));
    }
}
