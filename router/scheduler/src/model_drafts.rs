//! The draft model of the shards, as far as it is known: how often its guesses are right, and how
//! long they take.
//!
//! The draft model guesses the first draft of all rows in one pass, the second one in another pass,
//! and so on. Each pass reads its weights, so its time hardly depends on the number of rows. The
//! [cost model](super::cost_model) learns from the time of a step without these passes.
//!
//! Before the first guess for a sequence, the draft model reads its prompt. That pays only if
//! enough tokens follow, so the time is a part of the cost of all guesses for the sequence.

use super::acceptance::Acceptance;

/// The weight of the last pass in the time of a pass.
const NEW_WEIGHT: f64 = 0.1;

/// A pass counts as at most so many times longer than earlier ones.
const MAX_SURPRISE: f64 = 3.0;

/// The share of right guesses of a draft model of which nothing is known.
const EXPECTED: f64 = 0.7;

/// Factor on the time of reading a sequence, because it is spent before the first guess, and the
/// sequence may end early or have few guesses.
const CAUTION: f64 = 2.0;

/// The draft model of the shards. Without one, nothing is ever noted.
#[derive(Debug, Default)]
pub(super) struct ModelDrafts {
    /// The guesses for all sequences.
    acceptance: Acceptance,
    /// The time of a pass in microseconds; 0 if it is not known.
    pass_micros: f64,
    /// The time in microseconds of each token that is read before the guesses, beside the last one.
    read_micros: f64,
}

impl ModelDrafts {
    /// A draft model that took so many microseconds for a guess when the shards started, and so
    /// many nanoseconds for each further token that it read before.
    pub(super) fn new(guess_micros: u64, read_nanos: u64) -> Self {
        let (pass_micros, read_micros) = (guess_micros as f64, read_nanos as f64 / 1e3);
        ModelDrafts { acceptance: Acceptance::default(), pass_micros, read_micros }
    }

    /// The time in which `unread` tokens are read before the guesses for a sequence, as a part of
    /// each of its steps. It will have up to `remaining` further tokens, and each step gives it one
    /// and perhaps a guess that is right with this chance.
    pub(super) fn read_micros(&self, unread: usize, remaining: usize, chance: f64) -> f64 {
        CAUTION * self.read_micros * unread as f64 * (1.0 + chance) / remaining.max(1) as f64
    }

    /// The chance that a guess for a sequence with few guesses is right.
    pub(super) fn usual(&self) -> f64 {
        self.acceptance.share(EXPECTED)
    }

    /// Notes which guesses for a sequence were right.
    pub(super) fn note_drafts(&mut self, count: usize, right: usize) {
        self.acceptance.note_drafts(count, right);
    }

    /// Notes a step without guesses.
    pub(super) fn fade(&mut self) {
        self.acceptance.fade();
    }

    /// The time of a pass in microseconds; 0 if it is not known.
    pub(super) fn pass_micros(&self) -> f64 {
        self.pass_micros
    }

    /// Notes that so many passes took `micros` microseconds together.
    pub(super) fn note_passes(&mut self, passes: usize, micros: u64) {
        let micros = micros as f64 / passes as f64;
        match self.pass_micros {
            0.0 => self.pass_micros = micros,
            usual => self.pass_micros += NEW_WEIGHT * (micros.min(MAX_SURPRISE * usual) - usual),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_pass_follows_the_passes_and_an_accident_hardly_counts() {
        let mut drafts = ModelDrafts::default();
        drafts.note_passes(4, 4000);
        assert_eq!(drafts.pass_micros(), 1000.0);
        (0..100).for_each(|_| drafts.note_passes(2, 4000));
        assert!((1900.0..=2000.0).contains(&drafts.pass_micros()));
        drafts.note_passes(1, 1_000_000_000);
        assert!(drafts.pass_micros() < 2500.0);
        let started = ModelDrafts::new(70, 500);
        assert_eq!((started.pass_micros(), started.read_micros(64, 32, 0.5)), (70.0, 3.0));
    }
}
