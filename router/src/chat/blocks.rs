//! An answer as a sequence of blocks, for the APIs that name each block and end it before the next
//! one begins.

use millrace_answers::tools::ToolFormat;

use super::answer::{AnswerEvent, AnswerFormat};
use crate::service::FinishReason;

/// A part of an answer, as far as it has been generated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AnswerBlock {
    /// Text with which the model reasons before it answers.
    Reasoning(String),
    /// Text for the user.
    Text(String),
    /// A tool call; `arguments` are JSON.
    Call { id: String, name: String, arguments: String },
}

/// A change of the sequence of blocks.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum BlockEvent {
    /// A block begins, still empty.
    Begin(AnswerBlock),
    /// The open block grows by this text, or by these characters of its arguments.
    Append(String),
    /// The open block is complete.
    End(AnswerBlock),
}

/// Cuts one answer into blocks. A whole answer is cut token by token, too, so that it has the same
/// blocks as its stream.
#[derive(Debug)]
pub(crate) struct BlockReader {
    tool_format: ToolFormat,
    open: Option<AnswerBlock>,
    /// A call of which no argument has come. A client would take it for a call without arguments if
    /// the answer was cut off here.
    bare_call: Option<AnswerBlock>,
    /// Whether there has been a block.
    begun: bool,
}

impl BlockReader {
    /// A reader for one answer.
    pub(crate) fn new(format: &AnswerFormat) -> Self {
        BlockReader { tool_format: format.tool_format(), open: None, bare_call: None, begun: false }
    }

    /// Returns the events of a token. Every answer has at least one block, if only an empty text,
    /// and its last token ends the open block.
    pub(crate) fn push(&mut self, event: AnswerEvent<'_>) -> Vec<BlockEvent> {
        let AnswerEvent { delta, generated, .. } = event;
        let mut events = Vec::new();
        if !delta.reasoning.is_empty() {
            if !matches!(self.open, Some(AnswerBlock::Reasoning(_))) {
                self.begin(AnswerBlock::Reasoning(String::new()), &mut events);
            }
            self.append(delta.reasoning, &mut events);
        }
        if !delta.content.is_empty() {
            if !matches!(self.open, Some(AnswerBlock::Text(_))) {
                self.begin(AnswerBlock::Text(String::new()), &mut events);
            }
            self.append(delta.content, &mut events);
        }
        for call in delta.calls {
            if let Some(name) = call.name {
                let id = self.tool_format.call_id();
                self.begin_bare_call(&mut events);
                self.bare_call = Some(AnswerBlock::Call { id, name, arguments: String::new() });
            }
            if !call.arguments.is_empty() {
                self.begin_bare_call(&mut events);
            }
            self.append(call.arguments, &mut events);
        }
        if let Some(finished) = &generated.finished {
            if finished.reason != FinishReason::Length {
                self.begin_bare_call(&mut events);
            }
            if !self.begun {
                self.begin(AnswerBlock::Text(String::new()), &mut events);
            }
            events.extend(self.open.take().map(BlockEvent::End));
        }
        events
    }

    /// Returns the blocks of a whole answer.
    pub(crate) fn read_all<'a>(&mut self, events: impl Iterator<Item = AnswerEvent<'a>>) -> Vec<AnswerBlock> {
        events
            .flat_map(|event| self.push(event))
            .filter_map(|event| if let BlockEvent::End(block) = event { Some(block) } else { None })
            .collect()
    }

    fn begin_bare_call(&mut self, events: &mut Vec<BlockEvent>) {
        if let Some(call) = self.bare_call.take() {
            self.begin(call, events);
        }
    }

    fn begin(&mut self, block: AnswerBlock, events: &mut Vec<BlockEvent>) {
        events.extend(self.open.replace(block.clone()).map(BlockEvent::End));
        events.push(BlockEvent::Begin(block));
        self.begun = true;
    }

    fn append(&mut self, more: String, events: &mut Vec<BlockEvent>) {
        let Some(
            AnswerBlock::Reasoning(text)
            | AnswerBlock::Text(text)
            | AnswerBlock::Call { arguments: text, .. },
        ) = &mut self.open
        else {
            return;
        };
        if !more.is_empty() {
            *text += &more;
            events.push(BlockEvent::Append(more));
        }
    }
}
