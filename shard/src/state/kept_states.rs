//! The positions that a head which predicts further tokens has read, and those whose states wait.
//!
//! For a position the head reads the model's state and the token after it, which is known only when
//! the next row of the sequence comes. So the states of the last positions are kept until then. Of
//! a row with several tokens the head reads all positions but the last one with the step itself.
//! Rows of one token are read together, when the head is to guess or no more states can be kept.
//!
//! Reading takes time from every step, also from those in which the router does not have the head
//! guess. So the head stops to read a sequence that has had no guess for a while, and all sequences
//! if none has had one. When it is to guess again, it begins with the states that are kept, at the
//! first of their positions with which a block begins, as if the sequence began there.

use std::ops::Range;

use millrace_model::{KEPT_STATES, ShardLimits};

/// Number of tokens of a sequence without a guess after which its states are not read any more.
const SEQUENCE_PATIENCE: usize = 2 * KEPT_STATES;

/// Number of tokens of all sequences without a guess after which no states are read any more.
const PATIENCE: usize = 2 * SEQUENCE_PATIENCE;

/// The positions that a head has read and will read.
#[derive(Debug)]
pub(super) struct KeptStates {
    block_size: usize,
    /// Number of positions of the head.
    positions: usize,
    /// The sequence of each slot that has had a row.
    sequences: Vec<Option<ReadSequence>>,
    /// For each block, whether the head has read all its positions.
    read: Vec<bool>,
    /// Number of tokens since the last guess.
    unguessed: usize,
}

/// The part of a sequence that a head has read.
#[derive(Debug, Clone)]
struct ReadSequence {
    /// The position from which on it has read all positions before those that are kept, as if the
    /// sequence began there. None if it has not read the last one of them.
    from: Option<usize>,
    /// The positions whose states are kept.
    kept: Range<usize>,
    /// Number of tokens since the last guess.
    unguessed: usize,
}

/// The reads of a head for a row: its own states, and those before it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RowStates {
    /// The position with which the sequence begins for the head. It is the first one of a block.
    pub(super) from: usize,
    /// The positions whose states were kept, and that are read before the step.
    pub(super) before: Range<usize>,
    /// The positions of the row that are read with the step.
    pub(super) with_step: Range<usize>,
    /// The positions of the row whose states are kept.
    pub(super) kept: Range<usize>,
}

impl KeptStates {
    /// Creates the table for a head of `positions` positions.
    pub(super) fn new(limits: &ShardLimits, positions: usize) -> Self {
        let ShardLimits { block_size, num_blocks, max_sequences, .. } = *limits;
        let (sequences, read) = (vec![None; max_sequences], vec![false; num_blocks]);
        KeptStates { block_size, positions, sequences, read, unguessed: 0 }
    }

    /// Forgets the sequence that had this slot.
    pub(super) fn forget(&mut self, slot: usize) {
        self.sequences[slot] = None;
    }

    /// Forgets what was read of a block, because it is about to hold something else.
    pub(super) fn forget_block(&mut self, block: u32) {
        if let Some(read) = self.read.get_mut(block as usize) {
            *read = false;
        }
    }

    /// Returns whether the head can guess `guesses` tokens after the row of one token at `start`.
    pub(super) fn can_guess(&self, slot: usize, start: usize, guesses: usize) -> bool {
        let Some(ReadSequence { from, kept, .. }) = &self.sequences[slot] else { return false };
        let first = self.begins(*from, kept.start).max(kept.start);
        // The last guess is not read.
        first < start && start <= kept.end && start + guesses <= self.positions && guesses < KEPT_STATES
    }

    /// Notes that the next row of a sequence with these blocks computes the positions of `row`, of
    /// which the last ones are `guesses` guesses. Returns what the head reads.
    pub(super) fn note_row(
        &mut self,
        slot: usize,
        row: Range<usize>,
        guesses: usize,
        blocks: &[u32],
    ) -> RowStates {
        let Range { start, end } = row;
        let ReadSequence { from, kept, unguessed } = match self.sequences[slot].take() {
            Some(sequence) => sequence,
            None => ReadSequence { from: self.shared_from(start, blocks), kept: start..start, unguessed: 0 },
        };
        // The states after wrong guesses are of no use, and those before a gap are of no more use.
        let known = if kept.end < start { start..start } else { kept.start.min(start)..start };
        let from = from.filter(|from| kept.end >= start && *from <= known.start);
        self.replace(start..end, blocks);

        let is_long = row.len() - guesses > 1 || row.len() > KEPT_STATES;
        let unguessed = self.note_guesses(guesses, unguessed, is_long);
        let is_full = known.len() + row.len() > KEPT_STATES;
        let reads = self.is_patient(unguessed) && (guesses > 0 || is_long || is_full);
        let (from, read, kept) = if reads {
            // The next token of the last state of a prompt is not known yet.
            let until = if is_long { end - 1 } else { start };
            let from = self.begins(from, known.start);
            let read = known.start.max(from).min(until)..until;
            self.note_read(&read, blocks);
            (Some(from).filter(|from| *from <= until), read, until..end)
        } else {
            let oldest = known.start.max(end.saturating_sub(KEPT_STATES));
            (from.filter(|_| oldest == known.start), start..start, oldest..end)
        };
        let states = RowStates {
            from: from.unwrap_or(0),
            before: read.start.min(start)..read.end.min(start),
            with_step: read.start.max(start)..read.end.max(start),
            kept: kept.start.max(start)..end,
        };
        self.sequences[slot] = Some(ReadSequence { from, kept, unguessed });
        states
    }

    /// Returns the position with which a sequence begins for the head that has been read from
    /// `from` on, or whose first kept state is at `first`.
    fn begins(&self, from: Option<usize>, first: usize) -> usize {
        from.unwrap_or(first.next_multiple_of(self.block_size))
    }

    /// Returns the position with which a sequence begins for the head whose first row is at
    /// `start`: other sequences have had the head read the last ones of its blocks.
    fn shared_from(&self, start: usize, blocks: &[u32]) -> Option<usize> {
        let shared = blocks.iter().take(start / self.block_size).rev();
        let read = shared.take_while(|block| self.read[**block as usize]).count();
        start.is_multiple_of(self.block_size).then(|| start - read * self.block_size)
    }

    /// Notes that the model computes these positions of a sequence.
    fn replace(&mut self, positions: Range<usize>, blocks: &[u32]) {
        let first = positions.start / self.block_size;
        for &block in &blocks[first..positions.end.div_ceil(self.block_size)] {
            self.read[block as usize] = false;
        }
    }

    /// Notes that these positions of a sequence are read, as all before them are from the beginning
    /// of a block on.
    fn note_read(&mut self, positions: &Range<usize>, blocks: &[u32]) {
        let whole = positions.start / self.block_size..positions.end / self.block_size;
        for &block in blocks.get(whole).unwrap_or_default() {
            self.read[block as usize] = true;
        }
    }

    /// Notes the guesses after a row of a sequence that had so many tokens without one. Returns how
    /// many it has now.
    fn note_guesses(&mut self, guesses: usize, unguessed: usize, is_long: bool) -> usize {
        let tokens = usize::from(!is_long);
        let [of_all, of_sequence] =
            [self.unguessed, unguessed].map(|before| if guesses > 0 { 0 } else { before + tokens });
        self.unguessed = of_all;
        of_sequence
    }

    /// Returns whether the states of a sequence with so many tokens without a guess are read. The
    /// head could not begin again if no block began among the kept states.
    fn is_patient(&self, unguessed: usize) -> bool {
        let is_used = self.unguessed < PATIENCE && unguessed < SEQUENCE_PATIENCE;
        is_used || self.block_size > KEPT_STATES
    }
}

#[cfg(test)]
mod tests {
    use millrace_model::AdapterLimits;
    use millrace_numbers::DType;
    use proptest::prelude::*;

    use super::*;

    const LIMITS: ShardLimits = ShardLimits {
        max_step_tokens: 64,
        max_sequences: 2,
        max_sequence_tokens: 1000,
        block_size: 16,
        state_checkpoints: 0,
        max_drafts: 8,
        adapters: AdapterLimits::NONE,
        num_blocks: 128,
        kv_format: millrace_backend::KvFormat::Dense(DType::F32),
    };

    fn blocks() -> Vec<u32> {
        (0..64).collect()
    }

    /// A sequence in slot 1, and what was read of it.
    struct Sequence {
        states: KeptStates,
        next: usize,
        /// The positions whose states are kept, by the rows.
        kept: Vec<usize>,
        read: Range<usize>,
    }

    impl Sequence {
        fn new() -> Self {
            Sequence { states: KeptStates::new(&LIMITS, 1000), next: 0, kept: vec![], read: 0..0 }
        }

        /// Notes a row of `count` tokens and of guesses, of which `right` are right.
        fn row(&mut self, count: usize, guesses: usize, right: usize) {
            let can_guess = self.states.can_guess(1, self.next, guesses);
            let row = self.next..self.next + count + guesses;
            let RowStates { from, before, with_step, kept } =
                self.states.note_row(1, row.clone(), guesses, &blocks());
            assert!(
                guesses == 0 || !can_guess || before.end == self.next && !before.is_empty(),
                "{before:?}"
            );
            for read in [before.clone(), with_step.clone()].into_iter().filter(|read| !read.is_empty()) {
                assert!(from <= read.start && from % 16 == 0);
                // It continues what was read, or begins anew.
                assert!(
                    self.read.end == read.start && self.read.start == from || read.start == from,
                    "{read:?}"
                );
                self.read = from..read.end;
            }
            assert!(
                before.clone().all(|position| self.kept.contains(&position)),
                "{before:?} of {:?}",
                self.kept
            );
            assert!(kept.is_empty() || kept.end == row.end && row.start <= kept.start);
            self.next += count + right;
            // A later state takes the place of the one 16 positions before it.
            self.kept.retain(|position| *position < row.start && position + KEPT_STATES >= row.end);
            self.kept.extend(kept);
        }
    }

    #[test]
    fn every_position_is_read_once_while_there_are_guesses() {
        let mut sequence = Sequence::new();
        let rows = [(40, 0, 0), (1, 0, 0), (7, 0, 0)].into_iter().chain([(1, 0, 0); 30]);
        for (count, guesses, right) in rows.chain([(1, 3, 1), (1, 3, 3), (3, 0, 0), (1, 0, 0), (2, 0, 0)]) {
            sequence.row(count, guesses, right);
            assert_eq!(sequence.read.start, 0);
            assert!(sequence.next - sequence.read.end <= KEPT_STATES + 1);
        }
        assert!(sequence.states.can_guess(1, sequence.next, 3));
        assert!(!sequence.states.can_guess(0, sequence.next, 3));
        assert!(!sequence.states.can_guess(1, sequence.next, KEPT_STATES));
        assert!(!sequence.states.can_guess(1, sequence.next, 1000 - sequence.next + 1));
    }

    #[test]
    fn without_guesses_nothing_is_read_until_the_next_one() {
        let mut sequence = Sequence::new();
        sequence.row(40, 0, 0);
        (0..100).for_each(|_| sequence.row(1, 0, 0));
        let read = sequence.read.clone();
        assert!(read.start == 0 && (50..75).contains(&read.end), "{read:?}");
        // The last block begins among the states that are kept.
        assert!(sequence.states.can_guess(1, 140, 2));
        sequence.row(1, 2, 0);
        assert_eq!(sequence.read, 128..140);
        (0..20).for_each(|_| sequence.row(1, 0, 0));
        assert_eq!(sequence.read, 128..156);

        // Other sequences are not read either, when none has had a guess for longer.
        (0..100).for_each(|_| sequence.row(1, 0, 0));
        sequence.states.forget(1);
        (sequence.next, sequence.read) = (0, 0..0);
        sequence.kept.clear();
        sequence.row(40, 0, 0);
        assert_eq!(sequence.read, 0..0);
        assert!(sequence.states.can_guess(1, 40, 1));
        sequence.row(1, 1, 1);
        assert_eq!(sequence.read, 32..40);
    }

    #[test]
    fn a_sequence_begins_where_the_blocks_before_it_were_read() {
        let mut sequence = Sequence::new();
        assert!(!sequence.states.can_guess(1, 32, 1));
        sequence.row(40, 0, 0);
        // Two blocks were read, and the third one has a place that was not.
        let states = &mut sequence.states;
        let begin = |states: &mut KeptStates, start| {
            states.forget(0);
            states.note_row(0, start..start + 1, 0, &blocks());
            states.note_row(0, start + 1..start + 3, 1, &blocks())
        };
        let row = |from, before: Range<usize>| RowStates {
            from,
            with_step: before.end..before.end,
            kept: before.end..before.end + 2,
            before,
        };
        assert_eq!(begin(states, 32), row(0, 32..33));
        assert_eq!(begin(states, 48), row(48, 48..49));
        states.forget_block(0);
        assert_eq!(begin(states, 32), row(16, 32..33));
        // The first row has replaced what was in the second block.
        assert_eq!(begin(states, 16), row(16, 16..17));
        assert_eq!(begin(states, 32), row(32, 32..33));
        // The beginning of the block is missing.
        assert!(begin(states, 20).before.is_empty());
    }

    proptest! {
        #[test]
        fn only_kept_states_are_read(rows in prop::collection::vec((0..20, 2..40usize, 0..100usize, 0..8usize), 1..200)) {
            let mut sequence = Sequence::new();
            for (kind, count, guesses, right) in rows {
                let can_guess = guesses < 8 && sequence.states.can_guess(1, sequence.next, guesses);
                match kind {
                    0 if sequence.next < 900 => sequence.row(count, 0, 0),
                    _ if can_guess => sequence.row(1, guesses, right.min(guesses)),
                    _ if sequence.next < 1000 => sequence.row(1, 0, 0),
                    _ => return Ok(()),
                }
            }
        }
    }
}
