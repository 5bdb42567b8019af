//! Divides an answer into messages.
//!
//! A stream is parsed piece by piece and a whole answer as one piece, with the same result. A
//! header, and the end of a text that may end its message, are held back until they are certain.
//! Both have a bounded length, so the time is linear in the text.

use super::super::allowed::AllowedTools;
use super::super::delta::{AnswerDelta, CallDelta};
use super::super::parser::ToolCallParser;
use super::definition::{ChannelFormat, Channels, End, Header, Message, MessageKind};
use crate::tools::ToolChoice;

/// The maximum length of a header in bytes.
const MAX_HEADER_BYTES: usize = 512;

/// Parses one answer.
#[derive(Debug)]
pub struct ChannelParser {
    format: &'static dyn ChannelFormat,
    tools: AllowedTools,
    calls: usize,
    state: ChannelState,
    /// The header so far, or the end of a text that may end its message.
    held: String,
    has_reasoning: bool,
    has_content: bool,
}

#[derive(Debug)]
enum ChannelState {
    /// In a header, of the first message or of a later one.
    Header { is_first: bool },
    /// In the text of a message.
    Body(Body),
    /// The answer has as many calls as it may have.
    Done,
}

/// The text of a message.
#[derive(Debug)]
struct Body {
    kind: MessageKind,
    /// Whether no text of the message has been released.
    is_empty: bool,
    /// Reads the calls of [`MessageKind::Calls`].
    calls: Option<Box<ToolCallParser>>,
}

impl ChannelParser {
    /// Creates a parser for an answer that may call these tools.
    pub fn new(channels: Channels, tools: Option<&AllowedTools>) -> Self {
        let none = || AllowedTools { tools: Vec::new(), choice: ToolChoice::Auto, parallel: true };
        let tools = tools.map_or_else(none, |allowed| AllowedTools {
            tools: allowed.callable().cloned().collect(),
            choice: ToolChoice::Auto,
            parallel: allowed.parallel,
        });
        ChannelParser {
            format: channels.0,
            tools,
            calls: 0,
            state: ChannelState::Header { is_first: true },
            held: String::new(),
            has_reasoning: false,
            has_content: false,
        }
    }

    /// Reads the part of the prompt that belongs to the answer: a header or a text that the answer
    /// continues.
    pub fn continue_from(&mut self, begun: &str) {
        self.push(begun);
        (self.has_reasoning, self.has_content) = (false, false);
    }

    /// Returns the number of calls so far.
    pub fn calls(&self) -> usize {
        match &self.state {
            ChannelState::Body(Body { calls: Some(parser), .. }) => self.calls + parser.calls(),
            _ => self.calls,
        }
    }

    /// Whether the text so far ends within the reasoning.
    pub fn is_reasoning(&self) -> bool {
        matches!(&self.state, ChannelState::Body(Body { kind: MessageKind::Reasoning, .. }))
    }

    /// Whether the name of a channel comes next.
    pub fn names_channel(&self) -> bool {
        matches!(self.state, ChannelState::Header { .. })
            && self.format.reasoning_channel().is_some_and(|(before, _)| self.held.ends_with(before))
    }

    /// Adds text and returns the reasoning, the content and the parts of calls in it.
    pub fn push(&mut self, text: &str) -> AnswerDelta {
        let mut delta = AnswerDelta::default();
        text.chars().for_each(|c| self.character(c, &mut delta));
        delta
    }

    /// Ends the text and returns what was held back.
    pub fn finish(&mut self) -> AnswerDelta {
        let mut delta = AnswerDelta::default();
        if let ChannelState::Body(_) = self.state {
            let held = std::mem::take(&mut self.held);
            self.release(&held, &mut delta);
            self.end_body(&mut delta);
        }
        self.state = ChannelState::Done;
        delta
    }

    fn character(&mut self, c: char, delta: &mut AnswerDelta) {
        match self.state {
            ChannelState::Done => {}
            ChannelState::Header { is_first } => {
                self.held.push(c);
                self.header(is_first, delta);
            }
            ChannelState::Body(_) => {
                self.held.push(c);
                self.body(delta);
            }
        }
    }

    fn header(&mut self, is_first: bool, delta: &mut AnswerDelta) {
        match self.format.header(&self.held, is_first, &self.tools.tools) {
            Header::Undecided if self.held.len() <= MAX_HEADER_BYTES => {}
            Header::Skip => self.held.clear(),
            Header::Message(message) => {
                self.held.clear();
                self.begin_body(message, delta);
            }
            // A model that does not use the format, and a header without an end.
            Header::Undecided | Header::Absent => {
                let mut text = std::mem::take(&mut self.held);
                // Only the last character may begin the end of the message.
                let last = text.pop();
                self.begin_body(Message::with_text(MessageKind::Content, &text), delta);
                last.into_iter().for_each(|c| self.character(c, delta));
            }
        }
    }

    fn begin_body(&mut self, message: Message, delta: &mut AnswerDelta) {
        let Message { kind, name, text } = message;
        if kind == MessageKind::Arguments {
            delta.calls.push(CallDelta { index: self.calls, name: Some(name), arguments: String::new() });
        }
        let parser = || Box::new(ToolCallParser::with_syntax(self.format.syntax(), &self.tools));
        let calls = (kind == MessageKind::Calls).then(parser);
        self.state = ChannelState::Body(Body { kind, is_empty: true, calls });
        self.release(&text, delta);
    }

    fn body(&mut self, delta: &mut AnswerDelta) {
        let ChannelState::Body(Body { kind, .. }) = self.state else { return };
        let end = |text: &str| self.format.end(text, kind, &self.tools.tools);
        match end(&self.held) {
            End::Undecided => {}
            End::Complete { begins_header } => {
                let end = std::mem::take(&mut self.held);
                self.end_body(delta);
                if !matches!(self.state, ChannelState::Done) {
                    self.state = ChannelState::Header { is_first: false };
                    if begins_header {
                        self.held = end;
                        self.header(false, delta);
                    }
                }
            }
            // A later part of the text may begin the end of the message.
            End::Absent => {
                let starts = self.held.char_indices().map(|(at, _)| at).skip(1);
                let certain = starts.into_iter().find(|&at| end(&self.held[at..]) != End::Absent);
                let rest = self.held.split_off(certain.unwrap_or(self.held.len()));
                let text = std::mem::replace(&mut self.held, rest);
                self.release(&text, delta);
            }
        }
    }

    /// Adds text to the part of the answer to which the current message belongs. Messages of one
    /// part are on lines of their own.
    fn release(&mut self, text: &str, delta: &mut AnswerDelta) {
        let ChannelState::Body(body) = &mut self.state else { return };
        if let Some(parser) = &mut body.calls {
            let read = parser.push(text);
            return self.add_calls(read, delta);
        }
        let is_call = body.kind == MessageKind::Arguments;
        let text = if body.is_empty && is_call { text.trim_start() } else { text };
        if text.is_empty() {
            return;
        }
        let begins = std::mem::take(&mut body.is_empty);
        match body.kind {
            MessageKind::Arguments => delta.call(self.calls, None, text),
            MessageKind::Reasoning => {
                add_text(text, begins, &mut delta.reasoning, &mut self.has_reasoning);
            }
            MessageKind::Content | MessageKind::Calls => {
                add_text(text, begins, &mut delta.content, &mut self.has_content);
            }
        }
    }

    /// Adds what a message with calls has brought: calls, and text that is no call of a known tool.
    fn add_calls(&mut self, read: AnswerDelta, delta: &mut AnswerDelta) {
        for call in read.calls {
            delta.call(self.calls + call.index, call.name, &call.arguments);
        }
        if let ChannelState::Body(body) = &mut self.state
            && !read.content.is_empty()
        {
            let begins = std::mem::take(&mut body.is_empty);
            add_text(&read.content, begins, &mut delta.content, &mut self.has_content);
        }
    }

    fn end_body(&mut self, delta: &mut AnswerDelta) {
        let ChannelState::Body(body) = &mut self.state else { return };
        match body.kind {
            MessageKind::Reasoning | MessageKind::Content => return,
            MessageKind::Arguments => {
                if body.is_empty {
                    delta.call(self.calls, None, "{}");
                }
                self.calls += 1;
            }
            MessageKind::Calls => {
                let Some(mut parser) = body.calls.take() else { return };
                let rest = parser.finish();
                self.add_calls(rest, delta);
                self.calls += parser.calls();
            }
        }
        if self.calls > 0 && !self.tools.parallel {
            self.state = ChannelState::Done;
        }
    }
}

/// Adds text to a part of the answer, on a line of its own if it begins a further message.
fn add_text(text: &str, begins: bool, part: &mut String, has_text: &mut bool) {
    if begins && *has_text {
        part.push('\n');
    }
    *has_text = true;
    part.push_str(text);
}
