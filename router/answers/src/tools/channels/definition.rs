//! The parts of a format of answers in messages.

use std::fmt::Debug;

use serde_json::Value;

use super::super::allowed::{AllowedTools, Tool};
use super::super::syntax::FormatSyntax;
use crate::grammar::{Grammar, MarkTokens};
use crate::reasoning::{ReasoningMarks, ReasoningStart};

/// A format of answers that consist of messages.
#[derive(Debug, Clone, Copy)]
pub struct Channels(pub(super) &'static dyn ChannelFormat);

/// The parts of such a format that differ from the others.
pub(super) trait ChannelFormat: Debug + Sync {
    /// Returns the part of a prompt that belongs to the answer.
    fn begun_answer<'a>(&self, prompt: &'a str) -> &'a str;

    /// Reads a text that may be a header. `is_first` says whether the text begins the answer.
    fn header(&self, text: &str, is_first: bool, tools: &[Tool]) -> Header;

    /// Compares a text with the texts that end a message of this kind.
    fn end(&self, text: &str, kind: MessageKind, tools: &[Tool]) -> End;

    /// Returns the elements of a call, and the special tokens of the format.
    fn syntax(&self) -> FormatSyntax;

    /// Returns the texts between which an answer has no text that a stop string may end.
    fn marks(&self) -> ReasoningMarks;

    /// Returns the text that ends the reasoning. If `calls`, the model chooses what follows.
    fn forced_close(&self, _calls: bool) -> &'static str {
        ""
    }

    /// Returns the text before the name of a channel, and the name of the channel of the reasoning.
    fn reasoning_channel(&self) -> Option<(&'static str, &'static str)> {
        None
    }

    /// Whether the grammar of calls describes the reasoning too.
    fn call_grammar_has_reasoning(&self) -> bool {
        true
    }

    /// Returns the grammar of an answer that calls tools, or has a text or the JSON of a schema.
    fn call_grammar(&self, tools: &AllowedTools, answer: Option<&Value>, tokens: MarkTokens) -> Grammar;

    /// Returns the rules for an answer whose text follows another grammar, `@answer`. `has_calls`
    /// says whether that grammar describes calls.
    fn answer_rules(&self, start: ReasoningStart, has_calls: bool, tokens: MarkTokens) -> String;
}

/// The part of the answer to which a message belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MessageKind {
    Reasoning,
    Content,
    /// The text is the arguments of one call.
    Arguments,
    /// The text has calls in the format's syntax.
    Calls,
}

/// A text that may be a header.
#[derive(Debug)]
pub(super) enum Header {
    /// The text may become a header.
    Undecided,
    /// The text is no header.
    Absent,
    /// The text is complete, and another header follows.
    Skip,
    /// The text of a message follows.
    Message(Message),
}

/// The beginning of a message.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) kind: MessageKind,
    /// The name of the tool, for [`MessageKind::Arguments`].
    pub(super) name: String,
    /// The beginning of the message's text that its header contains.
    pub(super) text: String,
}

impl Message {
    pub(super) fn new(kind: MessageKind) -> Self {
        Message { kind, name: String::new(), text: String::new() }
    }

    pub(super) fn call(name: &str) -> Self {
        Message { name: name.to_owned(), ..Message::new(MessageKind::Arguments) }
    }

    /// A message whose text begins with its header.
    pub(super) fn with_text(kind: MessageKind, text: &str) -> Self {
        Message { text: text.to_owned(), ..Message::new(kind) }
    }
}

/// A text that may end a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// The text belongs to the message.
    Absent,
    /// The text may become the end of the message.
    Undecided,
    /// The text ends the message, and may begin the next header.
    Complete { begins_header: bool },
}

/// Compares a text with the texts that end a message. Those that begin with `opening` begin the
/// next header.
pub(super) fn end_of(text: &str, ends: &[&str], opening: &str) -> End {
    if ends.contains(&text) {
        End::Complete { begins_header: text.starts_with(opening) }
    } else if ends.iter().any(|end| end.starts_with(text)) {
        End::Undecided
    } else {
        End::Absent
    }
}

impl Channels {
    /// Returns the part of a prompt that belongs to the answer.
    pub fn begun_answer(self, prompt: &str) -> &str {
        self.0.begun_answer(prompt)
    }

    /// Returns the texts between which an answer has no text that a stop string may end.
    pub fn marks(self) -> ReasoningMarks {
        self.0.marks()
    }

    /// Whether the grammar of calls describes the reasoning too.
    pub fn call_grammar_has_reasoning(self) -> bool {
        self.0.call_grammar_has_reasoning()
    }

    /// Returns a grammar of answers whose text follows `answer`, in the messages of this format.
    /// The reasoning may contain everything, and the answer may end within it.
    pub fn around(self, answer: Grammar, start: ReasoningStart, tokens: MarkTokens) -> Grammar {
        let has_calls = matches!(answer, Grammar::Calls { .. });
        let rules = self.0.answer_rules(start, has_calls, tokens);
        Grammar::AfterReasoning { rules, answer: Box::new(answer) }
    }

    /// Returns the grammar of an answer that calls tools, or has a text or the JSON of a schema.
    pub(in crate::tools) fn call_grammar(
        self,
        tools: &AllowedTools,
        answer: Option<&Value>,
        tokens: MarkTokens,
    ) -> Grammar {
        self.0.call_grammar(tools, answer, tokens)
    }

    pub(in crate::tools) fn syntax(self) -> FormatSyntax {
        self.0.syntax()
    }

    pub(crate) fn forced_close(self, calls: bool) -> &'static str {
        self.0.forced_close(calls)
    }

    pub(crate) fn reasoning_channel(self) -> Option<(&'static str, &'static str)> {
        self.0.reasoning_channel()
    }
}
