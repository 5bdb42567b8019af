//! A reader for one call in Gemma's notation, character by character: `call:NAME{KEY:VALUE,…}`. It
//! converts the arguments to JSON as they arrive.
//!
//! Keys have no quotes, and strings are between two marks of their own without any escape. Numbers,
//! `true`, `false`, `null`, lists and objects are as in JSON. The templates also write the `None`
//! of Python.

use serde_json::Value;

use super::json_call::CallProgress;
use super::syntax::GEMMA_QUOTE;

/// The text before the name.
pub(super) const HEAD: &str = "call:";
/// The maximum length of a name, a key or a number in bytes.
const MAX_WORD_BYTES: usize = 256;
/// The maximum depth of nested lists and objects. serde_json has the same limit.
const MAX_DEPTH: usize = 127;

/// Reads one call.
#[derive(Debug)]
pub(super) struct GemmaCallReader {
    state: State,
    name: String,
    /// The head, key, word or part of a string that has not been released.
    held: String,
    /// The brackets that are open. The arguments themselves are an object.
    open: Vec<char>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// In the text before the arguments.
    Name,
    /// Before or in a key, or at the end of an empty object.
    Key {
        is_first: bool,
    },
    /// Before a value, or at the end of an empty list.
    Value {
        is_first: bool,
    },
    /// In a number, a keyword or a quotation mark.
    Word,
    String,
    /// After a value.
    Comma,
}

impl GemmaCallReader {
    /// Creates a reader at the beginning of a call.
    pub(super) fn new() -> Self {
        GemmaCallReader { state: State::Name, name: String::new(), held: String::new(), open: Vec::new() }
    }

    /// Returns the function's name after it is complete.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Reads the next character and appends its part of the arguments to `arguments`.
    pub(super) fn push(&mut self, c: char, arguments: &mut String) -> CallProgress {
        match self.state {
            State::Name => self.head(c, arguments),
            State::Key { is_first } => self.key(c, is_first, arguments),
            State::Value { .. } | State::Comma if c.is_ascii_whitespace() => CallProgress::Nothing,
            State::Value { is_first: true } if c == ']' => self.after_value(c, arguments),
            State::Value { .. } => self.value(c, arguments),
            State::Word => self.word(c, arguments),
            State::String => self.string(c, arguments),
            State::Comma => self.after_value(c, arguments),
        }
    }

    fn go(&mut self, state: State) -> CallProgress {
        self.state = state;
        CallProgress::Nothing
    }

    fn head(&mut self, c: char, arguments: &mut String) -> CallProgress {
        if c == '{' {
            let Some(name) = self.held.strip_prefix(HEAD) else { return CallProgress::NotACall };
            self.name = name.trim().to_owned();
            self.held.clear();
            self.open.push('{');
            arguments.push('{');
            self.state = State::Key { is_first: true };
            return CallProgress::Name;
        }
        self.held.push(c);
        let fits = HEAD.starts_with(self.held.as_str()) || self.held.starts_with(HEAD);
        if fits && self.held.len() < MAX_WORD_BYTES { CallProgress::Nothing } else { CallProgress::NotACall }
    }

    /// Continues a key, which may be between marks, or ends an empty object.
    fn key(&mut self, c: char, is_first: bool, arguments: &mut String) -> CallProgress {
        match c {
            '}' if is_first && self.held.trim().is_empty() => {
                self.held.clear();
                self.after_value(c, arguments)
            }
            ':' => {
                let key = self.held.trim();
                let quoted = key.strip_prefix(GEMMA_QUOTE).and_then(|key| key.strip_suffix(GEMMA_QUOTE));
                arguments.push_str(&Value::from(quoted.unwrap_or(key)).to_string());
                arguments.push_str(": ");
                self.held.clear();
                self.go(State::Value { is_first: false })
            }
            '{' | '}' | '[' | ']' | ',' => CallProgress::NotACall,
            c if self.held.len() < MAX_WORD_BYTES => {
                self.held.push(c);
                CallProgress::Nothing
            }
            _ => CallProgress::NotACall,
        }
    }

    fn value(&mut self, c: char, arguments: &mut String) -> CallProgress {
        match c {
            '{' | '[' if self.open.len() < MAX_DEPTH => {
                self.open.push(c);
                arguments.push(c);
                self.go(if c == '{' {
                    State::Key { is_first: true }
                } else {
                    State::Value { is_first: true }
                })
            }
            c if c == '<' || is_word(c) => {
                self.held.push(c);
                self.go(State::Word)
            }
            _ => CallProgress::NotACall,
        }
    }

    fn word(&mut self, c: char, arguments: &mut String) -> CallProgress {
        if self.held.starts_with('<') {
            self.held.push(c);
            if self.held == GEMMA_QUOTE {
                self.held.clear();
                arguments.push('"');
                return self.go(State::String);
            }
            return match GEMMA_QUOTE.starts_with(self.held.as_str()) {
                true => CallProgress::Nothing,
                false => CallProgress::NotACall,
            };
        }
        if is_word(c) && self.held.len() < MAX_WORD_BYTES {
            self.held.push(c);
            return CallProgress::Nothing;
        }
        let word = match self.held.as_str() {
            "True" => "true",
            "False" => "false",
            "None" => "null",
            word => word,
        };
        if serde_json::from_str::<serde::de::IgnoredAny>(word).is_err() {
            return CallProgress::NotACall;
        }
        arguments.push_str(word);
        self.held.clear();
        self.state = State::Comma;
        self.push(c, arguments)
    }

    /// Releases the text that cannot be part of the closing mark. The mark's first character is
    /// nowhere else in it.
    fn string(&mut self, c: char, arguments: &mut String) -> CallProgress {
        self.held.push(c);
        if self.held == GEMMA_QUOTE {
            self.held.clear();
            arguments.push('"');
            return self.go(State::Comma);
        }
        if !GEMMA_QUOTE.starts_with(self.held.as_str()) {
            let mut text = std::mem::take(&mut self.held);
            if c == '<' {
                text.pop();
                self.held.push(c);
            }
            let quoted = Value::from(text).to_string();
            arguments.push_str(&quoted[1..quoted.len() - 1]);
        }
        CallProgress::Nothing
    }

    /// Reads a separator or a closing bracket.
    fn after_value(&mut self, c: char, arguments: &mut String) -> CallProgress {
        match (c, self.open.last()) {
            (',', Some(open)) => {
                arguments.push_str(", ");
                let is_object = *open == '{';
                let is_first = false;
                return self.go(if is_object { State::Key { is_first } } else { State::Value { is_first } });
            }
            (']', Some('[')) | ('}', Some('{')) => {}
            _ => return CallProgress::NotACall,
        }
        self.open.pop();
        arguments.push(c);
        self.state = State::Comma;
        if self.open.is_empty() { CallProgress::End } else { CallProgress::Nothing }
    }
}

/// Whether a number or a keyword may contain this character.
fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '+' | '.')
}

/// Writes the arguments of a call. `arguments` is an object.
pub(super) fn write(name: &str, arguments: &Value) -> String {
    format!("{HEAD}{name}{}", literal(arguments))
}

/// Returns a value in Gemma's notation.
pub(super) fn literal(value: &Value) -> String {
    match value {
        Value::String(text) => format!("{GEMMA_QUOTE}{text}{GEMMA_QUOTE}"),
        Value::Array(items) => format!("[{}]", items.iter().map(literal).collect::<Vec<_>>().join(",")),
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.iter().collect();
            fields.sort_by_key(|(key, _)| *key);
            let field = |(key, value): (&String, &Value)| format!("{key}:{}", literal(value));
            format!("{{{}}}", fields.into_iter().map(field).collect::<Vec<_>>().join(","))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => value.to_string(),
    }
}
