//! A reader for one call in Python's syntax, character by character: a name and named arguments in
//! parentheses. It converts the arguments to JSON.
//!
//! Only literals are values: strings, numbers, `True`, `False`, `None`, lists and dictionaries, and
//! JSON's words for the same. Anything else is no call.

use serde_json::Value;

use super::json_call::CallProgress;

/// The maximum length of a name or a number in bytes.
const MAX_WORD_BYTES: usize = 256;
/// The maximum depth of nested lists and dictionaries. serde_json has the same limit.
const MAX_DEPTH: usize = 127;

/// Reads one call.
#[derive(Debug)]
pub(super) struct PythonCallReader {
    state: State,
    name: String,
    /// The key, word or escape that is being read.
    word: String,
    /// The brackets that are open in the current value.
    open: Vec<char>,
    /// Whether the call has had an argument.
    any: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Name,
    /// Before a key, or at the end of the call.
    Key,
    InKey,
    Value,
    /// In a number or a keyword.
    Word,
    String {
        quote: char,
    },
    /// In an escape of a string.
    Escape {
        quote: char,
    },
    /// After a value.
    Comma,
}

impl PythonCallReader {
    /// Creates a reader at the beginning of a call.
    pub(super) fn new() -> Self {
        let (name, word) = (String::new(), String::new());
        PythonCallReader { state: State::Name, name, word, open: Vec::new(), any: false }
    }

    /// Whether a name may begin with this character.
    pub(super) fn begins_name(c: char) -> bool {
        c.is_ascii_alphabetic() || c == '_'
    }

    /// Returns a literal of Python as JSON. Returns `None` for anything else, and for JSON itself,
    /// which is kept as it is.
    pub(super) fn literal(text: &str) -> Option<String> {
        if serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok() {
            return None;
        }
        let (mut reader, mut json) = (PythonCallReader { state: State::Value, ..Self::new() }, String::new());
        let mut text = text.chars();
        for c in text.by_ref() {
            match reader.push(c, &mut json) {
                CallProgress::Nothing if reader.state == State::Comma && reader.open.is_empty() => break,
                CallProgress::Nothing => {}
                _ => return None,
            }
        }
        (reader.state == State::Comma && text.next().is_none()).then_some(json)
    }

    /// Returns the function's name after it is complete.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Reads the next character and appends its part of the arguments to `arguments`.
    pub(super) fn push(&mut self, c: char, arguments: &mut String) -> CallProgress {
        let is_space = c.is_ascii_whitespace();
        match self.state {
            State::Name if c == '(' => {
                self.state = State::Key;
                CallProgress::Name
            }
            State::Name if is_name(c) && self.name.len() < MAX_WORD_BYTES => {
                self.name.push(c);
                CallProgress::Nothing
            }
            State::Key | State::Value | State::Comma if is_space => CallProgress::Nothing,
            State::Key if c == ')' => self.end(arguments),
            State::Key if Self::begins_name(c) => {
                self.word = c.to_string();
                self.go(State::InKey)
            }
            State::InKey if c == '=' => self.begin_argument(arguments),
            State::InKey if (is_name(c) || is_space) && self.word.len() < MAX_WORD_BYTES => {
                self.word.push(c);
                CallProgress::Nothing
            }
            State::Value => self.value(c, arguments),
            State::Word if is_word(c) && self.word.len() < MAX_WORD_BYTES => {
                self.word.push(c);
                CallProgress::Nothing
            }
            State::Word => match self.end_of_word(arguments) {
                CallProgress::Nothing => self.push(c, arguments),
                progress => progress,
            },
            State::String { quote } => self.string(c, quote, arguments),
            State::Escape { quote } => self.escape(c, quote, arguments),
            State::Comma => self.after_value(c, arguments),
            State::Name | State::Key | State::InKey => CallProgress::NotACall,
        }
    }

    fn go(&mut self, state: State) -> CallProgress {
        self.state = state;
        CallProgress::Nothing
    }

    fn begin_argument(&mut self, arguments: &mut String) -> CallProgress {
        arguments.push_str(if self.any { ", " } else { "{" });
        arguments.push_str(&Value::from(self.word.trim_end()).to_string());
        arguments.push_str(": ");
        self.any = true;
        self.go(State::Value)
    }

    fn end(&mut self, arguments: &mut String) -> CallProgress {
        arguments.push_str(if self.any { "}" } else { "{}" });
        CallProgress::End
    }

    /// Begins a value, or ends an empty list or dictionary.
    fn value(&mut self, c: char, arguments: &mut String) -> CallProgress {
        match c {
            '"' | '\'' => {
                arguments.push('"');
                self.go(State::String { quote: c })
            }
            '[' | '{' if self.open.len() < MAX_DEPTH => {
                self.open.push(c);
                arguments.push(c);
                CallProgress::Nothing
            }
            ']' | '}' if arguments.ends_with(['[', '{']) => self.after_value(c, arguments),
            c if is_word(c) => {
                self.word = c.to_string();
                self.go(State::Word)
            }
            _ => CallProgress::NotACall,
        }
    }

    /// Reads a separator or a closing bracket.
    fn after_value(&mut self, c: char, arguments: &mut String) -> CallProgress {
        match (c, self.open.last()) {
            (')', None) => return self.end(arguments),
            (',', None) => return self.go(State::Key),
            (',', Some(_)) => {
                arguments.push_str(", ");
                return self.go(State::Value);
            }
            (':', Some('{')) => {
                arguments.push_str(": ");
                return self.go(State::Value);
            }
            (']', Some('[')) | ('}', Some('{')) => {}
            _ => return CallProgress::NotACall,
        }
        self.open.pop();
        arguments.push(c);
        self.go(State::Comma)
    }

    fn end_of_word(&mut self, arguments: &mut String) -> CallProgress {
        let word = match self.word.as_str() {
            "True" => "true",
            "False" => "false",
            "None" => "null",
            word => word,
        };
        if serde_json::from_str::<Value>(word).is_err() {
            return CallProgress::NotACall;
        }
        arguments.push_str(word);
        self.go(State::Comma)
    }

    fn string(&mut self, c: char, quote: char, arguments: &mut String) -> CallProgress {
        match c {
            c if c == quote => {
                arguments.push('"');
                return self.go(State::Comma);
            }
            '\\' => {
                self.word.clear();
                return self.go(State::Escape { quote });
            }
            c => push_escaped(c, arguments),
        }
        CallProgress::Nothing
    }

    /// Reads a character of an escape. Unknown escapes stand for themselves, as in Python.
    fn escape(&mut self, c: char, quote: char, arguments: &mut String) -> CallProgress {
        self.word.push(c);
        match self.word.chars().next() {
            Some('u') if self.word.len() < 5 && (c == 'u' || c.is_ascii_hexdigit()) => {
                return CallProgress::Nothing;
            }
            Some('u') if self.word.len() == 5 && c.is_ascii_hexdigit() => {
                arguments.push('\\');
                arguments.push_str(&self.word);
            }
            Some('u') => return CallProgress::NotACall,
            _ => match c {
                'n' | 't' | 'r' | 'b' | 'f' | '"' | '\\' => arguments.extend(['\\', c]),
                '\'' | '/' => arguments.push(c),
                c => {
                    arguments.push_str("\\\\");
                    push_escaped(c, arguments);
                }
            },
        }
        self.go(State::String { quote })
    }
}

/// Appends a character in the form that it has in a string of JSON.
fn push_escaped(c: char, to: &mut String) {
    if c == '"' || c == '\\' || c.is_control() {
        let quoted = Value::from(c.to_string()).to_string();
        to.push_str(&quoted[1..quoted.len() - 1]);
    } else {
        to.push(c);
    }
}

/// Whether a name may contain this character.
fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.')
}

/// Whether a number or a keyword may contain this character.
fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '+' | '.')
}

/// Writes a list with one call. `arguments` is an object.
pub(super) fn write(name: &str, arguments: &Value) -> String {
    let arguments = arguments.as_object().into_iter().flatten();
    let arguments: Vec<String> = arguments.map(|(key, value)| format!("{key}={}", literal(value))).collect();
    format!("[{name}({})]", arguments.join(", "))
}

/// Returns a value as a literal of Python.
fn literal(value: &Value) -> String {
    match value {
        Value::Null => "None".into(),
        Value::Bool(true) => "True".into(),
        Value::Bool(false) => "False".into(),
        Value::Array(items) => format!("[{}]", items.iter().map(literal).collect::<Vec<_>>().join(", ")),
        Value::Object(fields) => {
            let field = |(key, value): (&String, &Value)| {
                format!("{}: {}", Value::from(key.as_str()), literal(value))
            };
            format!("{{{}}}", fields.iter().map(field).collect::<Vec<_>>().join(", "))
        }
        Value::Number(_) | Value::String(_) => value.to_string(),
    }
}
