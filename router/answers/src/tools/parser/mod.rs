//! Finds the calls in the text of an answer.
//!
//! A stream is parsed piece by piece and a whole answer as one piece, with the same result. Text
//! that may be the beginning of a call is held back until this is certain, and so is white space
//! that may precede a call. Text that turns out to be no call of a known tool is content. The time
//! is linear in the text.

use super::allowed::{AllowedTools, Tool};
use super::delta::{AnswerDelta, CallDelta};
use super::format::ToolFormat;
use super::gemma_call::{GemmaCallReader, HEAD};
use super::held_text::HeldText;
use super::json_call::{CallProgress, JsonCallReader};
use super::python_call::PythonCallReader;
use super::syntax::{BareCalls, CallSyntax, FormatSyntax};
use super::tagged_call::TaggedCallReader;

/// The number of bytes before the arguments of a call that begins with its name: the name, an
/// optional id, and markers.
const MAX_NAME_BYTES: usize = 384;

/// Parses one answer.
#[derive(Debug)]
pub struct ToolCallParser {
    syntax: FormatSyntax,
    tools: Vec<Tool>,
    /// The number of calls that the answer may have.
    max_calls: usize,
    calls: usize,
    state: ParserState,
    /// Text that may be part of a marker, or white space before one.
    held: HeldText,
    /// The white space before the marker of the current call, which is dropped if it is a call.
    space: String,
}

#[derive(Debug)]
enum ParserState {
    /// Only white space so far. A call without a marker may follow.
    Start,
    Text,
    /// A call is expected. The text since the marker is kept in case that it is no call.
    Before {
        raw: String,
        list: bool,
    },
    Call {
        raw: String,
        list: bool,
        reader: CallReader,
        /// The name of the tool, after it is complete.
        name: Option<String>,
        /// Whether the call has been released.
        started: bool,
        /// Whether arguments have been released.
        has_arguments: bool,
        /// Arguments that have not been released.
        arguments: String,
    },
    /// A call has ended. Its closing text is skipped.
    After {
        list: bool,
        seen: String,
    },
    /// The answer has as many calls as it may have.
    Done,
}

/// A reader for one call.
#[derive(Debug)]
enum CallReader {
    Json(JsonCallReader),
    Tags(Box<TaggedCallReader>),
    Python(PythonCallReader),
    Gemma(GemmaCallReader),
}

impl CallReader {
    fn push(&mut self, c: char, arguments: &mut String) -> CallProgress {
        match self {
            CallReader::Json(reader) => reader.push(c, arguments),
            CallReader::Tags(reader) => reader.push(c, arguments),
            CallReader::Python(reader) => reader.push(c, arguments),
            CallReader::Gemma(reader) => reader.push(c, arguments),
        }
    }

    /// Returns the tool's name after it is complete; `None` if it is not a string.
    fn name(&self) -> Option<String> {
        match self {
            CallReader::Json(reader) => reader.name(),
            CallReader::Tags(reader) => Some(reader.name().to_owned()),
            CallReader::Python(reader) => Some(reader.name().to_owned()),
            CallReader::Gemma(reader) => Some(reader.name().to_owned()),
        }
    }
}

impl ToolCallParser {
    /// Creates a parser for answers in this format.
    pub fn new(format: ToolFormat, tools: &AllowedTools) -> Self {
        ToolCallParser::with_syntax(format.syntax(), tools)
    }

    /// Creates a parser for calls with these elements.
    pub(super) fn with_syntax(syntax: FormatSyntax, tools: &AllowedTools) -> Self {
        ToolCallParser {
            syntax,
            tools: tools.callable().cloned().collect(),
            max_calls: if tools.parallel { usize::MAX } else { 1 },
            calls: 0,
            state: if syntax.bare.is_empty() { ParserState::Text } else { ParserState::Start },
            held: HeldText::new(syntax.open.unwrap_or_default()),
            space: String::new(),
        }
    }

    /// Returns the number of calls so far.
    pub fn calls(&self) -> usize {
        self.calls
    }

    /// Adds text and returns the content and the parts of calls in it.
    pub fn push(&mut self, text: &str) -> AnswerDelta {
        let mut delta = AnswerDelta::default();
        for c in text.chars() {
            self.character(c, &mut delta);
        }
        delta
    }

    /// Ends the text and returns what was held back.
    pub fn finish(&mut self) -> AnswerDelta {
        let mut delta = AnswerDelta::default();
        match std::mem::replace(&mut self.state, ParserState::Done) {
            ParserState::Before { raw, .. } | ParserState::Call { raw, started: false, .. } => {
                delta.content += &std::mem::take(&mut self.space);
                delta.content += &raw;
            }
            ParserState::Start | ParserState::Text => {
                let held = self.held.take();
                if self.calls == 0 || !held.trim().is_empty() {
                    delta.content += &held;
                }
            }
            // The client has got the name of the call, so it is one, although it has no end.
            ParserState::Call { started: true, .. } => self.calls += 1,
            _ => {}
        }
        delta
    }

    fn character(&mut self, c: char, delta: &mut AnswerDelta) {
        match &mut self.state {
            ParserState::Done => {}
            ParserState::Start if c.is_whitespace() => self.held.keep(c),
            ParserState::Start if self.syntax.bare.may_begin(c) => {
                let raw = self.held.take();
                self.state = ParserState::Before { raw, list: false };
                self.character(c, delta);
            }
            ParserState::Start => {
                self.state = ParserState::Text;
                self.character(c, delta);
            }
            ParserState::Text => self.text(c, delta),
            ParserState::Before { .. } => self.before(c, delta),
            ParserState::Call { .. } => self.call(c, delta),
            ParserState::After { .. } => self.after(c, delta),
        }
    }

    /// Releases text that cannot be part of a marker.
    fn text(&mut self, c: char, delta: &mut AnswerDelta) {
        if self.held.push(c, &mut delta.content) {
            let open = self.syntax.open.unwrap_or_default();
            self.space = self.held.take_space();
            self.state = ParserState::Before { raw: open.to_owned(), list: false };
        }
    }

    /// Waits for the beginning of a call.
    fn before(&mut self, c: char, delta: &mut AnswerDelta) {
        let FormatSyntax { open, list: is_list, call, bare, .. } = self.syntax;
        let ParserState::Before { raw, list } = &mut self.state else { return };
        let list = *list;
        let may_be_list = matches!(call, CallSyntax::Object { .. }) && open.is_none() || is_list;
        let reader = match (call, c) {
            (_, '[') if !list && may_be_list => {
                raw.push(c);
                self.state = ParserState::Before { raw: std::mem::take(raw), list: true };
                return;
            }
            (CallSyntax::Object { name, arguments }, '{') if list || !is_list => {
                CallReader::Json(JsonCallReader::call(name, arguments))
            }
            (CallSyntax::Keyed, '{') if list => CallReader::Json(JsonCallReader::keyed()),
            (CallSyntax::Gemma, c) if HEAD.starts_with(c) => CallReader::Gemma(GemmaCallReader::new()),
            (CallSyntax::Python, c) if list && PythonCallReader::begins_name(c) => {
                CallReader::Python(PythonCallReader::new())
            }
            (CallSyntax::Named { .. }, '{') => return self.named(delta),
            (CallSyntax::Named { .. }, _) if raw.len() < MAX_NAME_BYTES => {
                raw.push(c);
                if bare == BareCalls::Name && !self.may_become_name() {
                    self.give_up(delta);
                }
                return;
            }
            (_, c) if c.is_whitespace() => return raw.push(c),
            (CallSyntax::Tags(tags), c) if tags.begins_with(c) => {
                CallReader::Tags(Box::new(TaggedCallReader::new(tags)))
            }
            _ => {
                raw.push(c);
                return self.give_up(delta);
            }
        };
        let raw = std::mem::take(raw);
        self.state = ParserState::Call {
            raw,
            list,
            reader,
            name: None,
            started: false,
            has_arguments: false,
            arguments: String::new(),
        };
        self.call(c, delta);
    }

    /// Whether the held text is the beginning of a tool's name on a line of its own.
    fn may_become_name(&self) -> bool {
        let ParserState::Before { raw, .. } = &self.state else { return false };
        let head = raw.trim_start();
        let is_begun = |tool: &Tool| match head.strip_prefix(tool.name.as_str()) {
            Some(rest) => rest.is_empty() || rest == "\n",
            None => tool.name.starts_with(head),
        };
        self.tools.iter().any(is_begun)
    }

    /// Begins the arguments of a call whose name precedes them.
    fn named(&mut self, delta: &mut AnswerDelta) {
        let (
            FormatSyntax { call: CallSyntax::Named { find, .. }, open, .. },
            ParserState::Before { raw, .. },
        ) = (self.syntax, &mut self.state)
        else {
            return;
        };
        let head = raw.strip_prefix(open.unwrap_or_default()).unwrap_or(raw);
        let name = find(head).trim();
        if !self.tools.iter().any(|tool| tool.name == name) {
            raw.push('{');
            return self.give_up(delta);
        }
        delta.calls.push(CallDelta {
            index: self.calls,
            name: Some(name.to_owned()),
            arguments: String::new(),
        });
        self.state = ParserState::Call {
            raw: String::new(),
            list: false,
            reader: CallReader::Json(JsonCallReader::arguments()),
            name: None,
            started: true,
            has_arguments: false,
            arguments: String::new(),
        };
        self.call('{', delta);
    }

    fn call(&mut self, c: char, delta: &mut AnswerDelta) {
        let ParserState::Call { raw, reader, name, started, arguments, .. } = &mut self.state else { return };
        if !*started {
            raw.push(c);
        }
        let found = reader.push(c, arguments);
        if found == CallProgress::Name {
            let found = reader.name();
            let Some(tool) = self.tools.iter().find(|tool| Some(&tool.name) == found.as_ref()) else {
                return self.give_up(delta);
            };
            if let CallReader::Tags(reader) = reader {
                reader.set_tool(tool);
            }
            *name = found;
        }
        self.pass_on(delta);
        match found {
            CallProgress::Nothing | CallProgress::Name => {}
            CallProgress::End => self.end(delta),
            CallProgress::NotACall => self.broken(delta),
        }
    }

    /// Releases a call as soon as it is certain, and its arguments so far. Without a marker, an
    /// object is a call if it has the name of a tool and an object as the arguments. Other JSON is
    /// text. A call in Python's syntax is released as a whole, because a text may begin like it.
    fn pass_on(&mut self, delta: &mut AnswerDelta) {
        let (index, bare) = (self.calls, !self.syntax.bare.is_empty());
        let ParserState::Call { reader, name, started, has_arguments, arguments, .. } = &mut self.state
        else {
            return;
        };
        let is_call = match reader {
            CallReader::Python(_) => false,
            _ => !bare || arguments.starts_with('{'),
        };
        if !*started
            && is_call
            && let Some(name) = name.take()
        {
            *started = true;
            *has_arguments = !arguments.is_empty();
            delta.calls.push(CallDelta { index, name: Some(name), arguments: std::mem::take(arguments) });
        } else if *started && !arguments.is_empty() {
            *has_arguments = true;
            delta.call(index, None, arguments);
            arguments.clear();
        }
    }

    /// Ends a call: its object or its tags are complete.
    fn end(&mut self, delta: &mut AnswerDelta) {
        let index = self.calls;
        let ParserState::Call { list, reader, name, started, has_arguments, arguments, .. } = &mut self.state
        else {
            return;
        };
        let is_complete = match reader {
            CallReader::Python(_) => serde_json::from_str::<serde::de::IgnoredAny>(arguments).is_ok(),
            // A name alone calls a tool without arguments.
            CallReader::Json(reader) => arguments.is_empty() && !reader.has_other_key(),
            CallReader::Tags(_) | CallReader::Gemma(_) => arguments.is_empty(),
        };
        if !*started {
            let name = name.take().filter(|_| is_complete);
            let Some(name) = name else { return self.give_up(delta) };
            let arguments = if arguments.is_empty() { "{}".into() } else { std::mem::take(arguments) };
            delta.calls.push(CallDelta { index, name: Some(name), arguments });
        } else if !*has_arguments {
            delta.call(index, None, "{}");
        }
        let list = *list;
        self.space.clear();
        self.calls += 1;
        self.state = match self.calls < self.max_calls {
            true => ParserState::After { list, seen: String::new() },
            false => ParserState::Done,
        };
    }

    /// Ends a call whose text has become invalid. Parts that were released cannot be withdrawn.
    fn broken(&mut self, delta: &mut AnswerDelta) {
        if matches!(self.state, ParserState::Call { started: true, .. }) {
            self.calls += 1;
            self.state = ParserState::Done;
        } else {
            self.give_up(delta);
        }
    }

    /// Treats the held text and the text that follows as content.
    fn give_up(&mut self, delta: &mut AnswerDelta) {
        if let ParserState::Before { raw, .. } | ParserState::Call { raw, .. } =
            std::mem::replace(&mut self.state, ParserState::Text)
        {
            delta.content += &std::mem::take(&mut self.space);
            delta.content += &raw;
        }
    }

    /// Skips the text that closes a call, or begins the next call.
    fn after(&mut self, c: char, delta: &mut AnswerDelta) {
        let FormatSyntax { closing, again, call, .. } = self.syntax;
        let ParserState::After { list, seen } = &mut self.state else { return };
        let list = *list;
        if c.is_whitespace() && seen.is_empty() {
            return;
        }
        seen.push(c);
        let tag = match call {
            CallSyntax::Tags(tags) => tags.function.0,
            _ => "",
        };
        let following: &[&str] = if list { &[",", "]"] } else { &[tag, again.unwrap_or_default()] };
        let closing = if list { &[][..] } else { closing };
        let mut expected = following.iter().chain(closing).map(|text| text.trim_start());
        if !expected.any(|text| !text.is_empty() && text.starts_with(seen.as_str())) {
            let rest = std::mem::take(seen);
            self.state = ParserState::Text;
            rest.chars().for_each(|c| self.character(c, delta));
        } else if let Some(at) = closing.iter().position(|text| text.trim_start() == seen) {
            seen.clear();
            if at + 1 == closing.len() && tag.is_empty() {
                self.state = ParserState::Text;
            }
        } else if seen == "]" && list {
            self.state = match self.syntax.closing {
                [] => ParserState::Text,
                _ => ParserState::After { list: false, seen: String::new() },
            };
        } else if seen == "," && list || again == Some(seen) {
            self.state = ParserState::Before { raw: String::new(), list };
        } else if !tag.is_empty() && tag == seen {
            let rest = std::mem::take(seen);
            self.state = ParserState::Before { raw: String::new(), list };
            rest.chars().for_each(|c| self.character(c, delta));
        }
    }
}

#[cfg(test)]
mod tests;
