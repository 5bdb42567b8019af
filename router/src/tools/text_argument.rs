//! The text in a call of a custom tool. Such a tool takes a text, and the model calls a function with one string for it.

use super::scan::Scan;

/// Reads the text out of the arguments of a call, as they come. The time is linear in the arguments.
#[derive(Debug)]
pub struct TextArgument {
    scan: Scan,
    state: State,
    /// The arguments, as long as they may turn out to have no text.
    arguments: String,
}

#[derive(Debug)]
enum State {
    /// The string has not begun.
    Before,
    /// In the string; an escape may be incomplete.
    Inside { escape: String },
    /// The string is complete.
    After,
}

impl TextArgument {
    /// Reads the string of this property.
    pub fn new(property: &'static str) -> Self {
        TextArgument { scan: Scan::call(property), state: State::Before, arguments: String::new() }
    }

    /// Takes in more of the arguments and returns what is new of the text.
    pub fn push(&mut self, arguments: &str) -> String {
        let (mut text, mut value) = (String::new(), String::new());
        for c in arguments.chars() {
            if matches!(self.state, State::After) {
                break;
            }
            if matches!(self.state, State::Before) {
                self.arguments.push(c);
            }
            value.clear();
            self.scan.push(c, &mut value);
            value.chars().for_each(|c| self.value(c, &mut text));
        }
        text
    }

    /// No more arguments come. Arguments without the string are the text themselves.
    pub fn finish(&mut self) -> String {
        match std::mem::replace(&mut self.state, State::After) {
            State::Before => std::mem::take(&mut self.arguments),
            State::Inside { .. } | State::After => String::new(),
        }
    }

    /// A character of the property's value.
    fn value(&mut self, c: char, text: &mut String) {
        match &mut self.state {
            State::Before if c == '"' => {
                self.arguments = String::new();
                self.state = State::Inside { escape: String::new() };
            }
            State::Inside { escape } if escape.is_empty() => match c {
                '"' => self.state = State::After,
                '\\' => escape.push(c),
                c => text.push(c),
            },
            State::Inside { escape } => {
                escape.push(c);
                let rest = unescape(escape, text);
                rest.chars().for_each(|c| self.value(c, text));
            }
            State::Before | State::After => {}
        }
    }
}

/// Bytes of `\uXXXX`, and of two of them, which are one character outside of the basic plane.
const UNIT: usize = 6;
const PAIR: usize = 12;

/// Adds the character that an escape stands for and empties it, once it is complete. Returns what has been read beyond it.
fn unescape(escape: &mut String, text: &mut String) -> String {
    let is_unicode = escape.starts_with("\\u");
    let is_high = is_unicode
        && matches!(
            escape.as_bytes().get(2..4),
            Some([b'd' | b'D', b'8' | b'9' | b'a' | b'b' | b'A' | b'B'])
        );
    let is_alone =
        is_high && escape.get(UNIT..8).or(escape.get(UNIT..)).is_some_and(|next| !"\\u".starts_with(next));
    let rest = if is_alone { escape.split_off(UNIT) } else { String::new() };
    let length = match (is_unicode, is_high && !is_alone) {
        (false, _) => 2,
        (true, false) => UNIT,
        (true, true) => PAIR,
    };
    if escape.len() >= length {
        let character = serde_json::from_str::<String>(&format!("\"{escape}\""));
        text.push_str(character.as_deref().unwrap_or("\u{fffd}"));
        escape.clear();
    }
    rest
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    /// The text of arguments that come character by character, and in one piece.
    fn read(arguments: &str) -> String {
        let mut reader = TextArgument::new("input");
        let mut text: String = arguments.chars().map(|c| reader.push(&c.to_string())).collect();
        text += &reader.finish();
        let mut reader = TextArgument::new("input");
        let mut whole = reader.push(arguments);
        whole += &reader.finish();
        assert_eq!(text, whole);
        text
    }

    #[test]
    fn the_string_is_the_text() {
        assert_eq!(read(r#"{"input": "a\n\"b\" \u00fc \ud83d\ude00 é"}"#), "a\n\"b\" ü 😀 é");
        assert_eq!(read(r#"{"other": {"input": "x"}, "input" : "y"}"#), "y");
        assert_eq!(read(r#"{"input": ""}"#), "");
        assert_eq!(read(r#"{"input": "cut of"#), "cut of");
        assert_eq!(read(r#"{"input": "a\ud83dx\q\ud83d\n\ud83d"}"#), "a\u{fffd}x\u{fffd}\u{fffd}\n\u{fffd}");
    }

    #[test]
    fn arguments_without_the_string_are_the_text() {
        for arguments in ["{}", "[1]", "{\"text\": \"x\"}", "{\"input\": 7}", "ls", ""] {
            assert_eq!(read(arguments), arguments);
        }
    }

    proptest! {
        #[test]
        fn every_text_is_read_back(text in any::<String>()) {
            prop_assert_eq!(read(&json!({"input": text}).to_string()), text);
        }
    }
}
