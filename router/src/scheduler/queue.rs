//! The sequences that wait, in the order in which they are due.

use std::collections::BTreeMap;

use super::sequence::{SeqId, Sequence};

#[derive(Debug, Default)]
pub(super) struct Queue {
    /// A preempted sequence keeps its id, and so its place.
    sequences: BTreeMap<SeqId, Sequence>,
    tokens: usize,
}

impl Queue {
    pub(super) fn insert(&mut self, sequence: Sequence) {
        self.tokens += sequence.len();
        self.sequences.insert(sequence.id, sequence);
    }

    pub(super) fn remove(&mut self, id: SeqId) -> Option<Sequence> {
        let sequence = self.sequences.remove(&id)?;
        self.tokens -= sequence.len();
        Some(sequence)
    }

    pub(super) fn get(&self, id: SeqId) -> Option<&Sequence> {
        self.sequences.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: SeqId) -> Option<&mut Sequence> {
        self.sequences.get_mut(&id)
    }

    /// The sequences, the first first.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Sequence> {
        self.sequences.values()
    }

    /// Takes a sequence out that goes past all before it.
    pub(super) fn admit(&mut self, id: SeqId) -> Option<Sequence> {
        let mut admitted = self.remove(id)?;
        for passed in self.sequences.range_mut(..id) {
            passed.1.overtaken += admitted.max_positions();
        }
        admitted.overtaken = 0;
        Some(admitted)
    }

    /// Takes all sequences out.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Sequence> + use<> {
        std::mem::take(self).sequences.into_values()
    }

    pub(super) fn len(&self) -> usize {
        self.sequences.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sequences.is_empty()
    }

    /// Tokens of all sequences: what must be run before each of them has its next token, if nothing is cached.
    pub(super) fn tokens(&self) -> usize {
        self.tokens
    }
}
