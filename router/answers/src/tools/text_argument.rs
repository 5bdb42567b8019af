//! A reader for the text in a call of a custom tool. A custom tool takes a text, and the model
//! calls a function with one string argument for it.

use super::json_call::JsonCallReader;

/// Extracts the text from the streamed arguments of a call. The time is linear in the arguments.
#[derive(Debug)]
pub struct TextArgument {
    reader: JsonCallReader,
    state: TextState,
    /// The arguments so far, while they may turn out to contain no text.
    arguments: String,
}

#[derive(Debug)]
enum TextState {
    /// The string has not begun.
    Before,
    /// Within the string. An escape may be incomplete.
    Inside { escape: String },
    /// The string is complete.
    After,
}

impl TextArgument {
    /// Creates a reader for the string in this property.
    pub fn new(property: &'static str) -> Self {
        TextArgument {
            reader: JsonCallReader::call("name", property),
            state: TextState::Before,
            arguments: String::new(),
        }
    }

    /// Adds a part of the arguments and returns the text in it.
    pub fn push(&mut self, arguments: &str) -> String {
        let (mut text, mut value) = (String::new(), String::new());
        for c in arguments.chars() {
            if matches!(self.state, TextState::After) {
                break;
            }
            if matches!(self.state, TextState::Before) {
                self.arguments.push(c);
            }
            value.clear();
            self.reader.push(c, &mut value);
            value.chars().for_each(|c| self.value(c, &mut text));
        }
        text
    }

    /// Ends the arguments. If they do not contain the string, they are returned as the text.
    pub fn finish(&mut self) -> String {
        match std::mem::replace(&mut self.state, TextState::After) {
            TextState::Before => std::mem::take(&mut self.arguments),
            TextState::Inside { .. } | TextState::After => String::new(),
        }
    }

    /// Reads a character of the property's value.
    fn value(&mut self, c: char, text: &mut String) {
        match &mut self.state {
            TextState::Before if c == '"' => {
                self.arguments = String::new();
                self.state = TextState::Inside { escape: String::new() };
            }
            TextState::Inside { escape } if escape.is_empty() => match c {
                '"' => self.state = TextState::After,
                '\\' => escape.push(c),
                c => text.push(c),
            },
            TextState::Inside { escape } => {
                escape.push(c);
                let rest = unescape(escape, text);
                rest.chars().for_each(|c| self.value(c, text));
            }
            TextState::Before | TextState::After => {}
        }
    }
}

/// The length of `\uXXXX` in bytes, and of a surrogate pair of two such escapes.
const UNIT: usize = 6;
const PAIR: usize = 12;

/// Appends the character of an escape to `text` and clears the escape if it is complete. Returns
/// the characters that were read beyond it.
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

    /// Reads arguments character by character and in one piece, and compares the results.
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
    fn the_string_argument_is_the_text() {
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
