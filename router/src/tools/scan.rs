//! The JSON of one call, character by character: its name, and its arguments as they are written. Nothing is parsed and
//! written again, so what has been passed on is never different from the whole.

/// What a character brought, beside a part of the arguments.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Nothing yet.
    Nothing,
    /// The name is complete.
    Name,
    /// The call is complete; the character belongs to it.
    End,
    /// It is not a call.
    Broken,
}

/// Reads one object.
#[derive(Debug)]
pub(super) struct Scan {
    /// What the arguments are called. Without a name the object is the arguments.
    arguments: Option<&'static str>,
    state: State,
    key: String,
    /// The name as it is written, with its quotes.
    name: String,
    /// Whether there is a key that calls do not have.
    other_key: bool,
}

/// Keys of a call that have no effect.
const HARMLESS: [&str; 3] = ["name", "type", "id"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Begin,
    /// Before a key, or at the end.
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

impl Scan {
    /// At the beginning of an object with a name and, under this key, arguments.
    pub(super) fn call(arguments: &'static str) -> Self {
        Scan { arguments: Some(arguments), state: State::Begin, ..Scan::arguments() }
    }

    /// At the beginning of the arguments themselves.
    pub(super) fn arguments() -> Self {
        Scan {
            arguments: None,
            state: State::Value,
            key: String::new(),
            name: String::new(),
            other_key: false,
        }
    }

    /// The name, when it is complete. Nothing if it is no text.
    pub(super) fn name(&self) -> Option<String> {
        serde_json::from_str(&self.name).ok()
    }

    /// Whether the object has a key that calls do not have, so far.
    pub(super) fn has_other_key(&self) -> bool {
        self.other_key
    }

    /// Takes in the next character; what it adds to the arguments is put there.
    pub(super) fn push(&mut self, c: char, arguments: &mut String) -> Found {
        let space = c.is_ascii_whitespace();
        match self.state {
            State::Begin if c == '{' => self.go(State::Key),
            State::Key if c == '"' => {
                self.key.clear();
                self.go(State::InKey { escaped: false })
            }
            State::Key | State::Comma if c == '}' => Found::End,
            State::Comma if c == ',' => self.go(State::Key),
            State::Colon if c == ':' => self.go(State::Value),
            State::Begin | State::Key | State::Colon | State::Value | State::Comma if space => Found::Nothing,
            State::InKey { escaped: false } if c == '"' => {
                self.other_key |= self.arguments != Some(&self.key) && !HARMLESS.contains(&self.key.as_str());
                self.go(State::Colon)
            }
            State::InKey { escaped } => {
                self.key.push(c);
                self.go(State::InKey { escaped: !escaped && c == '\\' })
            }
            State::Value => self.value(c, 0, false, false, arguments),
            State::InValue { depth, quoted, escaped } => self.value(c, depth, quoted, escaped, arguments),
            State::Begin | State::Key | State::Colon | State::Comma => Found::Broken,
        }
    }

    fn go(&mut self, state: State) -> Found {
        self.state = state;
        Found::Nothing
    }

    fn value(&mut self, c: char, depth: usize, quoted: bool, escaped: bool, arguments: &mut String) -> Found {
        let first = self.state == State::Value;
        if !quoted && depth == 0 && !first {
            // A number or a word ends where something else begins.
            if c == ',' {
                return self.go(State::Key);
            }
            if c == '}' {
                return Found::End;
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
                None => return Found::Broken,
            },
            ',' | ':' if first => return Found::Broken,
            _ => {}
        }
        let escaped = quoted && !escaped && c == '\\';
        let complete = !quote && depth == 0 && matches!(c, '"' | '}' | ']');
        self.state = if complete { State::Comma } else { State::InValue { depth, quoted: quote, escaped } };
        let Some(key) = self.arguments else {
            arguments.push(c);
            return if complete { Found::End } else { Found::Nothing };
        };
        if self.key == key {
            arguments.push(c);
        } else if self.key == "name" {
            self.name.push(c);
            if complete {
                return Found::Name;
            }
        }
        Found::Nothing
    }
}
