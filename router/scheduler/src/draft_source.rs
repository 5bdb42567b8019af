//! Where the drafts of a sequence come from, and the drafts of a row.

use super::acceptance::Acceptance;
use super::drafter::{Drafter, Earlier};

/// Where the drafts of a sequence come from.
#[derive(Debug)]
pub(super) enum DraftSource {
    /// Repetitions in the sequence and in others.
    Repetitions(Box<Drafter>),
    /// The draft model of the shards, whose guesses have been right so often.
    Model(Acceptance),
}

impl DraftSource {
    /// Reads up to `most` further tokens of the sequence, and returns how many it has read.
    pub(super) fn read(
        &mut self,
        tokens: &[u32],
        generated: usize,
        most: usize,
        earlier: Earlier<'_>,
    ) -> usize {
        match self {
            DraftSource::Repetitions(drafter) => drafter.read(tokens, generated, most, earlier),
            DraftSource::Model(_) => 0,
        }
    }

    /// The chance that the next guess is right, if there is one. `usual` is the share of right
    /// guesses of the draft model in all sequences.
    pub(super) fn confidence(&self, tokens: &[u32], usual: f64) -> Option<f64> {
        match self {
            DraftSource::Repetitions(drafter) => drafter.is_ready(tokens).then(|| drafter.confidence()),
            DraftSource::Model(acceptance) => Some(acceptance.share(usual)),
        }
    }

    /// Number of guesses that can be made.
    pub(super) fn most_guesses(&self) -> usize {
        match self {
            DraftSource::Repetitions(drafter) => drafter.most_guesses(),
            DraftSource::Model(_) => usize::MAX,
        }
    }

    /// Guesses up to `count` of the next tokens.
    pub(super) fn drafts(&self, tokens: &[u32], count: usize) -> RowDrafts {
        match self {
            DraftSource::Repetitions(drafter) => {
                RowDrafts::Tokens(drafter.guesses(tokens).take(count).collect())
            }
            DraftSource::Model(_) => RowDrafts::Model(count),
        }
    }

    /// Notes that the first `right` of so many drafts were right. A drafter of repetitions sees
    /// that by itself.
    pub(super) fn note_drafts(&mut self, count: usize, right: usize) {
        let DraftSource::Model(acceptance) = self else { return };
        match count {
            0 => acceptance.fade(),
            _ => acceptance.note_drafts(count, right),
        }
    }
}

/// The drafts of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RowDrafts {
    /// These tokens.
    Tokens(Vec<u32>),
    /// So many guesses of the draft model, which only the shards know.
    Model(usize),
}

impl Default for RowDrafts {
    /// No drafts.
    fn default() -> Self {
        RowDrafts::Tokens(Vec::new())
    }
}

impl RowDrafts {
    /// Number of the drafts.
    pub(super) fn len(&self) -> usize {
        match self {
            RowDrafts::Tokens(tokens) => tokens.len(),
            RowDrafts::Model(count) => *count,
        }
    }

    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of the drafts that the draft model guesses.
    pub(super) fn of_model(&self) -> usize {
        match self {
            RowDrafts::Tokens(_) => 0,
            RowDrafts::Model(count) => *count,
        }
    }

    /// The drafts that are known here.
    pub(super) fn tokens(&self) -> &[u32] {
        match self {
            RowDrafts::Tokens(tokens) => tokens,
            RowDrafts::Model(_) => &[],
        }
    }
}
