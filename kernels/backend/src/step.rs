//! The input of a step, the states that a step passes through, and the tokens that come out of it.

use std::ops::Range;

use crate::recurrent::StateCopy;
use crate::sampling::{SampleRow, Sampled};

/// The purpose of a row's tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowKind {
    /// Tokens that are known: a prompt or a chunk of it.
    Prefill,
    /// One token that was sampled, after which the next one is sampled. Such rows come first in a
    /// step. A device may have a separate attention kernel for them, and may record steps that have
    /// no other rows as a graph.
    Decode,
}

/// The first tokens of a sequence, if they attend to each other in both directions (BERT,
/// ChatGLM-6B).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SequencePrefix {
    /// Number of tokens. The row that computes the first of them computes all of them.
    pub len: usize,
    /// Position in the prefix that stands for all later tokens on the first axis of a rotation with
    /// two axes.
    pub anchor: usize,
}

impl SequencePrefix {
    /// Returns the positions of a token on the two axes of a rotation (ChatGLM-6B): the tokens of
    /// the prefix are counted on the first axis, and those after it on the second one, from 1.
    pub const fn axes(self, position: usize) -> [usize; 2] {
        if position < self.len { [position, 0] } else { [self.anchor, position - self.len + 1] }
    }
}

/// One sequence's share of a step, in consecutive tokens of the step.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct SeqRow<'a> {
    /// The sequence's slot.
    pub slot: usize,
    /// Position of the first token.
    pub start: usize,
    /// Number of tokens; at least 1.
    pub count: usize,
    /// Purpose of the tokens.
    pub kind: RowKind,
    /// Blocks that hold positions `[0, start + count)`, in order. Block b of a table holds
    /// positions `[b * block_size, (b + 1) * block_size)`.
    pub blocks: &'a [u32],
    /// The sequence's prefix. Only attention in both directions and rotations with two axes read
    /// it.
    pub prefix: SequencePrefix,
    /// The adapter that changes the layers for the sequence, by its place in the pools of
    /// [`ModelLoading::adapters`](crate::ModelLoading::adapters).
    pub adapter: Option<usize>,
    /// Position from which on the sequence's tokens have the second token type. `None` if all have
    /// the first one.
    pub second_type_start: Option<usize>,
}

impl<'a> SeqRow<'a> {
    /// Creates a row of prompt tokens at `positions` of the sequence in `slot`.
    pub fn prefill(slot: usize, positions: Range<usize>, blocks: &'a [u32]) -> Self {
        let Range { start, end } = positions;
        SeqRow {
            slot,
            start,
            count: end - start,
            kind: RowKind::Prefill,
            blocks,
            prefix: SequencePrefix::default(),
            adapter: None,
            second_type_start: None,
        }
    }

    /// Creates a row of the one sampled token at `position` of the sequence in `slot`.
    pub fn decode(slot: usize, position: usize, blocks: &'a [u32]) -> Self {
        let (start, count, kind) = (position, 1, RowKind::Decode);
        let prefix = SequencePrefix::default();
        SeqRow { slot, start, count, kind, blocks, prefix, adapter: None, second_type_start: None }
    }

    /// Sets the sequence's prefix.
    #[must_use]
    pub fn with_prefix(self, prefix: SequencePrefix) -> Self {
        SeqRow { prefix, ..self }
    }

    /// Sets the sequence's adapter.
    #[must_use]
    pub fn with_adapter(self, adapter: Option<usize>) -> Self {
        SeqRow { adapter, ..self }
    }

    /// Sets the position from which on tokens have the second token type.
    #[must_use]
    pub fn with_second_type_start(self, second_type_start: Option<usize>) -> Self {
        SeqRow { second_type_start, ..self }
    }

    /// Returns the tokens of the second type, as indices into the tokens of the row.
    pub fn second_type(&self) -> Range<usize> {
        let start = self.second_type_start.map_or(self.count, |start| start.saturating_sub(self.start));
        start.min(self.count)..self.count
    }

    /// Tells whether the row is one of [`RowKind::Decode`].
    pub fn decodes(&self) -> bool {
        self.kind == RowKind::Decode
    }
}

/// The rows and tokens of a step.
#[derive(Debug, Clone, Copy)]
pub struct StepInput<'a> {
    /// Token ids, `[n]`, row after row. A device that keeps the tokens itself does not read them:
    /// they may not be known yet.
    pub tokens: &'a [u32],
    /// The sequences, in the order of their tokens.
    pub rows: &'a [SeqRow<'a>],
    /// Indices into `tokens` whose logits are wanted, ascending.
    pub outputs: &'a [u32],
    /// How tokens are sampled after each of `outputs`, which are then the last tokens of rows.
    /// Empty if nothing is sampled.
    pub samples: &'a [SampleRow<'a>],
    /// Copies of states to the slots of sequences before the step. The sequences begin with these
    /// states, or go back to them.
    pub restored_states: &'a [StateCopy],
    /// The states of sequences to be kept, copied from their slots before the step, after those
    /// that are restored.
    pub kept_states: &'a [StateCopy],
    /// The states of sequences to be kept, copied from their slots after the step.
    pub saved_states: &'a [StateCopy],
}

impl StepInput<'_> {
    /// A step without rows, as the starting point of one that is recorded.
    pub const EMPTY: StepInput<'static> = StepInput {
        tokens: &[],
        rows: &[],
        outputs: &[],
        samples: &[],
        restored_states: &[],
        kept_states: &[],
        saved_states: &[],
    };
}

/// The tokens that a step has sampled: one list for each of [`StepInput::samples`], in their order.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SampledRows {
    tokens: Vec<Sampled>,
    /// For each row the index one past its last token.
    ends: Vec<usize>,
}

impl SampledRows {
    /// Creates an empty list with room for `rows` rows of one token.
    pub fn with_capacity(rows: usize) -> Self {
        SampledRows { tokens: Vec::with_capacity(rows), ends: Vec::with_capacity(rows) }
    }

    /// Appends a row with the tokens that were sampled for it.
    pub fn push_row(&mut self, tokens: impl IntoIterator<Item = Sampled>) {
        self.tokens.extend(tokens);
        self.ends.push(self.tokens.len());
    }

    /// Returns the number of rows.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Tells whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Returns the tokens of each row.
    pub fn rows(&self) -> impl Iterator<Item = &[Sampled]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, &end)| &self.tokens[start..end])
    }

    /// Returns the tokens of all rows, one row after the other.
    pub fn tokens(&self) -> &[Sampled] {
        &self.tokens
    }

    /// Removes all rows and passes the tokens of each to `each`. Keeps the allocation.
    pub fn drain_rows(&mut self, mut each: impl FnMut(&mut dyn Iterator<Item = Sampled>)) {
        let (mut tokens, mut start) = (self.tokens.drain(..), 0);
        for end in self.ends.drain(..) {
            let mut row = tokens.by_ref().take(end - start);
            each(&mut row);
            row.for_each(drop);
            start = end;
        }
    }
}

/// The numbers of a step that are the same in all its states.
#[derive(Debug, Clone, Copy)]
struct StepRows {
    /// Number of tokens.
    tokens: usize,
    /// Number of rows of logits.
    outputs: usize,
    /// Whether a recorded graph computes the step.
    is_replayed: bool,
}

/// A step whose input the device has. It is either prepared, so that its operations are called one
/// by one, or padded, so that a recorded graph can take their place.
#[derive(Debug)]
#[must_use = "a step that has begun is prepared or padded"]
pub struct BegunStep<'q, Q> {
    queue: &'q mut Q,
    rows: StepRows,
}

/// A step that was padded to a number of decode rows for which a graph exists or will be recorded.
#[derive(Debug)]
#[must_use = "a padded step is replayed or recorded"]
pub struct PaddedStep<'q, Q> {
    queue: &'q mut Q,
    rows: StepRows,
}

/// A step whose forward pass is under way: the operations of [`ForwardOps`](super::ForwardOps) read
/// it.
#[derive(Debug)]
#[must_use = "an open step is sampled from and finished, unless only its activations are wanted"]
pub struct OpenStep<'q, Q> {
    queue: &'q mut Q,
    rows: StepRows,
}

/// A step whose forward pass the device has been asked for, and whose rows cannot be sampled yet
/// because their masks are late. It does not borrow its queue, so that earlier steps are collected
/// meanwhile. The queue itself holds everything else of the step.
#[derive(Debug)]
#[must_use = "a step without masks waits for them"]
pub struct UnmaskedStep {
    rows: StepRows,
}

/// A step whose forward pass, and whose sampling if there is any, the device has been asked for.
#[derive(Debug)]
#[must_use = "a computed step is finished, unless only its activations are wanted"]
pub struct ComputedStep<'q, Q> {
    queue: &'q mut Q,
}

impl<'q, Q> BegunStep<'q, Q> {
    /// Begins the step of `input` in `queue`. Only [`StepQueue::begin`](crate::StepQueue::begin) of
    /// a device calls this; the same holds for the other functions that turn one state of a step
    /// into the next.
    pub fn new(queue: &'q mut Q, input: &StepInput<'_>) -> Self {
        let (tokens, outputs) = (input.tokens.len(), input.outputs.len());
        BegunStep { queue, rows: StepRows { tokens, outputs, is_replayed: false } }
    }

    /// Returns the queue that the step is in.
    pub fn queue(&mut self) -> &mut Q {
        self.queue
    }

    /// Goes on with the step once the device has widened it to `rows` decode rows.
    pub fn padded(self, rows: usize) -> PaddedStep<'q, Q> {
        PaddedStep { queue: self.queue, rows: StepRows { tokens: rows, outputs: rows, ..self.rows } }
    }

    /// Goes on with the step once the device has prepared it.
    pub fn opened(self) -> OpenStep<'q, Q> {
        OpenStep { queue: self.queue, rows: self.rows }
    }
}

impl<'q, Q> PaddedStep<'q, Q> {
    /// Goes on with the step once the device has been asked to replay its forward pass.
    pub fn replayed(self) -> OpenStep<'q, Q> {
        OpenStep { queue: self.queue, rows: StepRows { is_replayed: true, ..self.rows } }
    }
}

impl<'q, Q> From<PaddedStep<'q, Q>> for BegunStep<'q, Q> {
    fn from(step: PaddedStep<'q, Q>) -> Self {
        BegunStep { queue: step.queue, rows: step.rows }
    }
}

impl<'q, Q> OpenStep<'q, Q> {
    /// Returns the queue that the step is in.
    pub fn queue(&self) -> &Q {
        self.queue
    }

    /// Returns the queue that the step is in, for writing.
    pub fn queue_mut(&mut self) -> &mut Q {
        self.queue
    }

    /// Returns the number of tokens, which include those of padding rows.
    pub fn tokens(&self) -> usize {
        self.rows.tokens
    }

    /// Returns the number of rows of logits, which include those of padding rows.
    pub fn outputs(&self) -> usize {
        self.rows.outputs
    }

    /// Tells whether a recorded graph computes the step.
    pub fn is_replayed(&self) -> bool {
        self.rows.is_replayed
    }

    /// Goes on with the step once its sampled tokens belong to their sequences.
    pub fn appended(self) -> ComputedStep<'q, Q> {
        ComputedStep { queue: self.queue }
    }

    /// Sets the step aside until its masks are there.
    pub fn unmasked(self) -> UnmaskedStep {
        UnmaskedStep { rows: self.rows }
    }

    /// Ends the forward pass of a step from which no token is sampled.
    pub fn without_sampling(self) -> ComputedStep<'q, Q> {
        ComputedStep { queue: self.queue }
    }
}

impl UnmaskedStep {
    /// Goes on with the step in its `queue`, in which no other step has begun since, once the
    /// device has the masks.
    pub fn masked<Q>(self, queue: &mut Q) -> OpenStep<'_, Q> {
        OpenStep { queue, rows: self.rows }
    }
}

impl<Q> ComputedStep<'_, Q> {
    /// Returns the queue that the step is in.
    pub fn queue(&mut self) -> &mut Q {
        self.queue
    }
}

/// The finished step of a device that computes during the calls: its results are there already.
#[derive(Debug)]
#[must_use = "a finished step is collected"]
pub struct SynchronousStep(());

impl SynchronousStep {
    /// Ends `step`, whose results are there.
    pub fn new<Q>(_step: ComputedStep<'_, Q>) -> Self {
        SynchronousStep(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_keeps_its_numbers_while_it_waits_for_its_masks() {
        let input = StepInput { tokens: &[7, 8, 9], outputs: &[2], ..StepInput::EMPTY };
        let mut queue = ();
        let step = BegunStep::new(&mut queue, &input).opened();
        assert_eq!((step.tokens(), step.outputs(), step.is_replayed()), (3, 1, false));
        let waiting = BegunStep::new(&mut queue, &input).padded(4).replayed().unmasked();
        let step = waiting.masked(&mut queue);
        assert_eq!((step.tokens(), step.outputs(), step.is_replayed()), (4, 4, true));
    }

    #[test]
    fn rows_of_several_tokens_keep_their_borders() {
        let sampled = |token| Sampled { token, logprob: 0.0, top: Vec::new() };
        let mut rows = SampledRows::with_capacity(3);
        for tokens in [&[1][..], &[], &[2, 3]] {
            rows.push_row(tokens.iter().map(|&token| sampled(token)));
        }
        let ids: Vec<Vec<u32>> = rows.rows().map(|row| row.iter().map(|of| of.token).collect()).collect();
        assert_eq!(ids, [vec![1], vec![], vec![2, 3]]);
        assert_eq!((rows.len(), rows.tokens().len()), (3, 3));

        // A row that is not read to its end does not spill into the next one.
        let mut firsts = Vec::new();
        rows.push_row([sampled(4)]);
        rows.drain_rows(|row| firsts.push(row.next().map(|of| of.token)));
        assert_eq!(firsts, [Some(1), None, Some(2), Some(4)]);
        assert!(rows.is_empty() && rows.tokens().is_empty());
    }
}
