//! A reader for one call in JSON, character by character. It returns the arguments exactly as they
//! are written. Nothing is parsed and serialized again, so that streamed arguments never differ
//! from the whole.

/// The progress of a call after a character.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum CallProgress {
    /// The call continues.
    Nothing,
    /// The name is complete.
    Name,
    /// The call is complete. The character belongs to it.
    End,
    /// The text is not a call.
    NotACall,
}

/// Reads one object.
#[derive(Debug)]
pub(super) struct JsonCallReader {
    /// The key of the name.
    name_key: &'static str,
    /// The key of the arguments. Without a key, the whole object is the arguments.
    arguments: Option<&'static str>,
    state: State,
    key: String,
    /// The JSON text of the name, with its quotes.
    name: String,
    /// Whether the object has a key that calls do not have.
    other_key: bool,
    /// Whether the only key is the name, and its value the arguments.
    keyed: bool,
}

/// Keys of a call that have no effect.
const IGNORED_KEYS: [&str; 3] = ["type", "id", "tool_call_id"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Begin,
    /// Before a key, or at the end of the object.
    Key,
    InKey {
        escaped: bool,
    },
    Colon,
    Value,
    InValue {
        depth: usize,
        quoted: bool,
        escaped: bool,
    },
    /// After a value.
    Comma,
}

impl JsonCallReader {
    /// Creates a reader for an object with a name and arguments under these keys.
    pub(super) fn call(name_key: &'static str, arguments: &'static str) -> Self {
        JsonCallReader {
            name_key,
            arguments: Some(arguments),
            state: State::Begin,
            ..JsonCallReader::arguments()
        }
    }

    /// Creates a reader for an object whose only key is the name, with the arguments as its value.
    pub(super) fn keyed() -> Self {
        JsonCallReader { state: State::Begin, keyed: true, ..JsonCallReader::arguments() }
    }

    /// Creates a reader for an object that is the arguments.
    pub(super) fn arguments() -> Self {
        JsonCallReader {
            name_key: "name",
            arguments: None,
            state: State::Value,
            key: String::new(),
            name: String::new(),
            other_key: false,
            keyed: false,
        }
    }

    /// Returns the name after it is complete; `None` if it is not a string.
    pub(super) fn name(&self) -> Option<String> {
        serde_json::from_str(&self.name).ok()
    }

    /// Whether the object has had a key so far that calls do not have.
    pub(super) fn has_other_key(&self) -> bool {
        self.other_key
    }

    /// Reads the next character and appends its part of the arguments to `arguments`.
    pub(super) fn push(&mut self, c: char, arguments: &mut String) -> CallProgress {
        let space = c.is_ascii_whitespace();
        match self.state {
            State::Begin if c == '{' => self.go(State::Key),
            State::Key if c == '"' => {
                self.key.clear();
                self.go(State::InKey { escaped: false })
            }
            State::Key | State::Comma if c == '}' => CallProgress::End,
            State::Comma if c == ',' => self.go(State::Key),
            State::Colon if c == ':' => self.go(State::Value),
            State::Begin | State::Key | State::Colon | State::Value | State::Comma if space => {
                CallProgress::Nothing
            }
            State::InKey { escaped: false } if c == '"' && self.keyed => {
                if !self.name.is_empty() {
                    return CallProgress::NotACall;
                }
                self.name = format!("\"{}\"", self.key);
                self.state = State::Colon;
                CallProgress::Name
            }
            State::InKey { escaped: false } if c == '"' => {
                self.other_key |= self.key != self.name_key
                    && self.arguments != Some(&self.key)
                    && !IGNORED_KEYS.contains(&self.key.as_str());
                self.go(State::Colon)
            }
            State::InKey { escaped } => {
                self.key.push(c);
                self.go(State::InKey { escaped: !escaped && c == '\\' })
            }
            State::Value => self.value(c, 0, false, false, arguments),
            State::InValue { depth, quoted, escaped } => self.value(c, depth, quoted, escaped, arguments),
            State::Begin | State::Key | State::Colon | State::Comma => CallProgress::NotACall,
        }
    }

    fn go(&mut self, state: State) -> CallProgress {
        self.state = state;
        CallProgress::Nothing
    }

    fn value(
        &mut self,
        c: char,
        depth: usize,
        quoted: bool,
        escaped: bool,
        arguments: &mut String,
    ) -> CallProgress {
        let first = self.state == State::Value;
        if !quoted && depth == 0 && !first {
            // A number or a keyword ends at a comma, a brace or white space.
            if c == ',' {
                return self.go(State::Key);
            }
            if c == '}' {
                return CallProgress::End;
            }
            if c.is_ascii_whitespace() {
                return self.go(State::Comma);
            }
        }
        let (mut depth, mut quote) = (depth, quoted);
        match c {
            '"' if !escaped => quote = !quoted,
            '{' | '[' if !quoted => depth += 1,
            '}' | ']' if !quoted => match depth.checked_sub(1) {
                Some(outer) => depth = outer,
                None => return CallProgress::NotACall,
            },
            ',' | ':' if first => return CallProgress::NotACall,
            _ => {}
        }
        let escaped = quoted && !escaped && c == '\\';
        let complete = !quote && depth == 0 && matches!(c, '"' | '}' | ']');
        self.state = if complete { State::Comma } else { State::InValue { depth, quoted: quote, escaped } };
        let Some(key) = self.arguments else {
            arguments.push(c);
            // The object around the arguments goes on.
            return if complete && !self.keyed { CallProgress::End } else { CallProgress::Nothing };
        };
        if self.key == key {
            arguments.push(c);
        } else if self.key == self.name_key {
            self.name.push(c);
            if complete {
                return CallProgress::Name;
            }
        }
        CallProgress::Nothing
    }
}
