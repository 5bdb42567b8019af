//! From the text of an answer to its calls, as it comes.
//!
//! A stream is read piece by piece, a whole answer as one piece; both give the same. What may be the beginning of a call is
//! held back until it is certain, and so is white space that may be the last before one. A text that turns out to be no
//! call of a known tool is content. The time is linear in the text, whatever the text is.

use super::format::{ARGS, CALL_ID, Call, Shape};
use super::held::Held;
use super::scan::{Found, Scan};
use super::tags::Tags;
use super::{CallDelta, Delta, Format, Tool, Tools};

/// Bytes before the arguments of a call that begins with its name: the name, perhaps an id, and marks.
const LONGEST_HEAD: usize = 256;

/// Reads one answer.
#[derive(Debug)]
pub struct Parser {
    shape: Shape,
    tools: Vec<Tool>,
    /// Calls at most.
    most: usize,
    calls: usize,
    state: State,
    /// Text that may be part of a mark, or white space before one.
    held: Held,
}

#[derive(Debug)]
enum State {
    /// Nothing but white space so far; it may become a call without a mark.
    Start,
    Text,
    /// A call is expected. The text since its mark is kept in case that it is none.
    Before {
        raw: String,
        list: bool,
    },
    Call {
        raw: String,
        list: bool,
        reader: Reader,
        /// The tool, once its name is complete.
        name: Option<String>,
        /// Whether the call has been passed on.
        started: bool,
        /// Whether arguments have been passed on.
        has_arguments: bool,
        /// Arguments that have not been passed on.
        arguments: String,
    },
    /// A call has ended; what may follow it is skipped.
    After {
        list: bool,
        seen: String,
    },
    /// There are as many calls as there may be.
    Done,
}

/// Reads one call.
#[derive(Debug)]
enum Reader {
    Json(Scan),
    Tags(Tags),
}

impl Parser {
    /// A parser for answers in this format.
    pub fn new(format: Format, tools: &Tools) -> Self {
        let shape = format.shape();
        Parser {
            shape,
            tools: tools.callable().cloned().collect(),
            most: if tools.parallel { usize::MAX } else { 1 },
            calls: 0,
            state: if shape.bare { State::Start } else { State::Text },
            held: Held::new(shape.open.unwrap_or_default()),
        }
    }

    /// Calls so far.
    pub fn calls(&self) -> usize {
        self.calls
    }

    /// Takes in more text.
    pub fn push(&mut self, text: &str) -> Delta {
        let mut delta = Delta::default();
        for c in text.chars() {
            self.character(c, &mut delta);
        }
        delta
    }

    /// No more text comes.
    pub fn finish(&mut self) -> Delta {
        let mut delta = Delta::default();
        match std::mem::replace(&mut self.state, State::Done) {
            State::Before { raw, .. } | State::Call { raw, started: false, .. } => delta.content += &raw,
            State::Start | State::Text => {
                let held = self.held.take();
                if self.calls == 0 || !held.trim().is_empty() {
                    delta.content += &held;
                }
            }
            _ => {}
        }
        delta
    }

    fn character(&mut self, c: char, delta: &mut Delta) {
        match &mut self.state {
            State::Done => {}
            State::Start if c.is_whitespace() => self.held.keep(c),
            State::Start if c == '{' || c == '[' && self.shape.open.is_none() => {
                let raw = self.held.take();
                self.state = State::Before { raw, list: false };
                self.character(c, delta);
            }
            State::Start => {
                self.state = State::Text;
                self.character(c, delta);
            }
            State::Text => self.text(c, delta),
            State::Before { .. } => self.before(c, delta),
            State::Call { .. } => self.call(c, delta),
            State::After { .. } => self.after(c, delta),
        }
    }

    /// Text is passed on as soon as it can be no part of a mark.
    fn text(&mut self, c: char, delta: &mut Delta) {
        if self.held.push(c, &mut delta.content) {
            let open = self.shape.open.unwrap_or_default();
            self.state = State::Before { raw: open.to_owned(), list: false };
        }
    }

    /// Waits for the beginning of a call.
    fn before(&mut self, c: char, delta: &mut Delta) {
        let Shape { open, list: is_list, call, .. } = self.shape;
        let State::Before { raw, list } = &mut self.state else { return };
        let list = *list;
        let reader = match (call, c) {
            (Call::Object(_), '[') if !list && (is_list || open.is_none()) => {
                raw.push(c);
                self.state = State::Before { raw: std::mem::take(raw), list: true };
                return;
            }
            (Call::Object(arguments), '{') if list || !is_list => Reader::Json(Scan::call(arguments)),
            (Call::Tags, '<') => Reader::Tags(Tags::new()),
            (Call::Named, '{') => return self.named(delta),
            (Call::Named, _) if raw.len() < LONGEST_HEAD => return raw.push(c),
            (_, c) if c.is_whitespace() => return raw.push(c),
            _ => {
                raw.push(c);
                return self.give_up(delta);
            }
        };
        let raw = std::mem::take(raw);
        self.state = State::Call {
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

    /// The arguments of a call begin whose name has come before them.
    fn named(&mut self, delta: &mut Delta) {
        let State::Before { raw, .. } = &mut self.state else { return };
        let head = raw.strip_prefix(self.shape.open.unwrap_or_default()).unwrap_or(raw);
        let head = head.trim_end().strip_suffix(ARGS).unwrap_or(head);
        let name = head.split(CALL_ID).next().unwrap_or_default().trim();
        if !self.tools.iter().any(|tool| tool.name == name) {
            raw.push('{');
            return self.give_up(delta);
        }
        delta.calls.push(CallDelta {
            index: self.calls,
            name: Some(name.to_owned()),
            arguments: String::new(),
        });
        self.state = State::Call {
            raw: String::new(),
            list: false,
            reader: Reader::Json(Scan::arguments()),
            name: None,
            started: true,
            has_arguments: false,
            arguments: String::new(),
        };
        self.call('{', delta);
    }

    fn call(&mut self, c: char, delta: &mut Delta) {
        let State::Call { raw, reader, name, started, arguments, .. } = &mut self.state else { return };
        if !*started {
            raw.push(c);
        }
        let found = match reader {
            Reader::Json(scan) => scan.push(c, arguments),
            Reader::Tags(tags) => tags.push(c, arguments),
        };
        if found == Found::Name {
            let found = match &*reader {
                Reader::Json(scan) => scan.name(),
                Reader::Tags(tags) => Some(tags.name().to_owned()),
            };
            let Some(tool) = self.tools.iter().find(|tool| Some(&tool.name) == found.as_ref()) else {
                return self.give_up(delta);
            };
            if let Reader::Tags(tags) = reader {
                tags.is(tool);
            }
            *name = found;
        }
        self.pass_on(delta);
        match found {
            Found::Nothing | Found::Name => {}
            Found::End => self.end(delta),
            Found::Broken => self.broken(delta),
        }
    }

    /// Passes on a call as soon as it is certain to be one, and what has come of its arguments. Without a mark an object is
    /// a call if it has the name of a tool and an object as the arguments; other JSON is text.
    fn pass_on(&mut self, delta: &mut Delta) {
        let (index, bare) = (self.calls, self.shape.bare);
        let State::Call { name, started, has_arguments, arguments, .. } = &mut self.state else { return };
        let is_call = !bare || arguments.starts_with('{');
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

    /// The object or the tags are complete.
    fn end(&mut self, delta: &mut Delta) {
        let index = self.calls;
        let State::Call { list, reader, name, started, has_arguments, arguments, .. } = &mut self.state
        else {
            return;
        };
        let has_other_key = matches!(reader, Reader::Json(scan) if scan.has_other_key());
        if !*started {
            // A name alone calls a tool without arguments.
            let name = name.take().filter(|_| arguments.is_empty() && !has_other_key);
            let Some(name) = name else { return self.give_up(delta) };
            delta.calls.push(CallDelta { index, name: Some(name), arguments: "{}".into() });
        } else if !*has_arguments {
            delta.call(index, None, "{}");
        }
        let list = *list;
        self.calls += 1;
        self.state = match self.calls < self.most {
            true => State::After { list, seen: String::new() },
            false => State::Done,
        };
    }

    /// The text is no call any more. What has been passed on cannot be taken back.
    fn broken(&mut self, delta: &mut Delta) {
        if matches!(self.state, State::Call { started: true, .. }) {
            self.calls += 1;
            self.state = State::Done;
        } else {
            self.give_up(delta);
        }
    }

    /// It is no call: it is text, and what follows is.
    fn give_up(&mut self, delta: &mut Delta) {
        if let State::Before { raw, .. } | State::Call { raw, .. } =
            std::mem::replace(&mut self.state, State::Text)
        {
            delta.content += &raw;
        }
    }

    /// Skips the mark that ends a call, or goes on with the next.
    fn after(&mut self, c: char, delta: &mut Delta) {
        let State::After { list, seen } = &mut self.state else { return };
        let list = *list;
        if c.is_whitespace() && seen.is_empty() {
            return;
        }
        seen.push(c);
        let again = if list { Some(",") } else { self.shape.between };
        let end = if list { "]" } else { self.shape.close };
        if Some(seen.as_str()) == again {
            self.state = State::Before { raw: String::new(), list };
        } else if !end.is_empty() && seen == end {
            self.state = State::Text;
        } else if !end.starts_with(seen.as_str()) || end.is_empty() {
            let rest = std::mem::take(seen);
            self.state = State::Text;
            rest.chars().for_each(|c| self.character(c, delta));
        }
    }
}

#[cfg(test)]
mod tests;
