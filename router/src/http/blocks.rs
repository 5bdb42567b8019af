//! An answer as a row of blocks, texts and calls, for the APIs that name each and end one before the next begins.

use super::openai::{Calling, Reader};
use crate::service::{Answer, FinishReason, TextEvent};

/// A part of an answer, as far as it has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Block {
    Text(String),
    Call { id: String, name: String, arguments: String },
}

/// What happens to the row.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// A block of this kind begins.
    Begin(Block),
    /// The open block has so much more text, or arguments.
    More(String),
    /// The open block is complete.
    End(Block),
}

/// Cuts one answer into blocks. A whole answer is cut token by token as well, so that it has the blocks of its stream.
#[derive(Debug)]
pub(super) struct Blocks {
    /// If tools may be called.
    reader: Option<Reader>,
    open: Option<Block>,
    begun: bool,
}

impl Blocks {
    pub(super) fn new(calling: Option<&Calling>) -> Self {
        Blocks { reader: calling.map(Calling::reader), open: None, begun: false }
    }

    /// What a token brings. There is always a block, be it an empty text, and the last token ends it.
    pub(super) fn push(&mut self, event: &TextEvent) -> Vec<Step> {
        let delta = match &mut self.reader {
            Some(reader) => reader.delta(event),
            None => crate::tools::Delta { content: event.text.clone(), calls: Vec::new() },
        };
        let mut steps = Vec::new();
        if !delta.content.is_empty() {
            if !matches!(self.open, Some(Block::Text(_))) {
                self.begin(Block::Text(String::new()), &mut steps);
            }
            self.more(delta.content, &mut steps);
        }
        for call in delta.calls {
            if let (Some(name), Some(reader)) = (call.name, &self.reader) {
                let id = reader.call_id();
                self.begin(Block::Call { id, name, arguments: String::new() }, &mut steps);
            }
            self.more(call.arguments, &mut steps);
        }
        if event.finished.is_some() {
            if !self.begun {
                self.begin(Block::Text(String::new()), &mut steps);
            }
            steps.extend(self.open.take().map(Step::End));
        }
        steps
    }

    /// The blocks of a whole answer.
    pub(super) fn whole(&mut self, answer: &Answer) -> Vec<Block> {
        let steps = answer.tokens.iter().flat_map(|event| self.push(event));
        steps.filter_map(|step| if let Step::End(block) = step { Some(block) } else { None }).collect()
    }

    /// Whether the answer ended with its calls, and was not cut off.
    pub(super) fn called(&self, reason: FinishReason) -> bool {
        self.reader.as_ref().is_some_and(|reader| reader.called(reason))
    }

    fn begin(&mut self, block: Block, steps: &mut Vec<Step>) {
        steps.extend(self.open.replace(block.clone()).map(Step::End));
        steps.push(Step::Begin(block));
        self.begun = true;
    }

    fn more(&mut self, more: String, steps: &mut Vec<Step>) {
        let Some(Block::Text(text) | Block::Call { arguments: text, .. }) = &mut self.open else { return };
        if !more.is_empty() {
            *text += &more;
            steps.push(Step::More(more));
        }
    }
}
