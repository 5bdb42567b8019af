//! Excludes keys that an object of the answer has already.
//!
//! A grammar cannot remember which keys an object has, so a schema with keys that it does not list
//! (`patternProperties`, `additionalProperties`) would allow the same key twice, and readers keep
//! only one of them. The tracker follows the JSON of the answer beside the grammar and excludes
//! the tokens that would complete such a key.
//!
//! The text around the JSON, such as reasoning, is followed in the same way. What looks like an
//! object there has no repeated keys either.

use std::collections::HashSet;
use std::sync::Arc;

use toktrie::{SimpleVob, TokTrie};

/// The maximum depth that is followed. Text that is no JSON may open brackets without end.
const MAX_DEPTH: usize = 256;
/// The maximum number of bytes of a key that is followed.
const MAX_KEY_BYTES: usize = 4096;

/// The tokens of a vocabulary that have quotes, which alone can complete a key.
#[derive(Debug, Default)]
pub(super) struct QuoteTokens {
    /// Tokens with one quote.
    one: Vec<u32>,
    /// Tokens with more quotes, which may contain whole keys.
    several: Vec<u32>,
}

impl QuoteTokens {
    pub(super) fn of(trie: &TokTrie) -> Self {
        let mut tokens = QuoteTokens::default();
        for id in 0..trie.vocab_size() as u32 {
            let bytes = trie.token(id);
            if bytes.first() == Some(&TokTrie::SPECIAL_TOKEN_MARKER) {
                continue;
            }
            match bytes.iter().filter(|byte| **byte == b'"').count() {
                0 => {}
                1 => tokens.one.push(id),
                _ => tokens.several.push(id),
            }
        }
        tokens
    }
}

/// Follows the JSON of an answer.
#[derive(Debug, Clone, Default)]
pub(super) struct KeyTracker {
    /// The open objects and lists.
    open: Vec<Container>,
    string: Option<OpenString>,
}

#[derive(Debug, Clone)]
enum Container {
    List,
    Object {
        /// The keys so far. They are shared by copies of the tracker.
        keys: Arc<HashSet<Vec<u8>>>,
        /// Whether the next string is a key.
        expects_key: bool,
    },
}

/// A string that has begun.
#[derive(Debug, Clone)]
struct OpenString {
    is_key: bool,
    is_escaped: bool,
    /// The bytes of a key so far, as they are written.
    bytes: Vec<u8>,
}

impl KeyTracker {
    /// Follows the bytes of a token. Returns whether they complete a key that its object has
    /// already.
    pub(super) fn push(&mut self, bytes: &[u8]) -> bool {
        let mut repeats = false;
        for &byte in bytes {
            repeats |= match self.string.take() {
                Some(string) => self.in_string(string, byte),
                None => {
                    self.outside(byte);
                    false
                }
            };
        }
        repeats
    }

    fn in_string(&mut self, mut string: OpenString, byte: u8) -> bool {
        match byte {
            // A string of JSON has no line breaks, so this quote was no part of JSON.
            b'\n' => return false,
            b'"' if !string.is_escaped => return string.is_key && self.add_key(&string.bytes),
            _ => {}
        }
        string.is_escaped = byte == b'\\' && !string.is_escaped;
        if string.is_key && string.bytes.len() < MAX_KEY_BYTES {
            string.bytes.push(byte);
        }
        self.string = Some(string);
        false
    }

    /// Adds a key to the innermost object. Returns whether the object has it already.
    fn add_key(&mut self, written: &[u8]) -> bool {
        let Some(Container::Object { keys, expects_key }) = self.open.last_mut() else { return false };
        *expects_key = false;
        !Arc::make_mut(keys).insert(unescaped(written))
    }

    fn outside(&mut self, byte: u8) {
        match byte {
            b'{' => self.open(Container::Object { keys: Arc::default(), expects_key: true }),
            b'[' => self.open(Container::List),
            b'}' | b']' => drop(self.open.pop()),
            b'"' if !self.open.is_empty() => {
                let is_key = matches!(self.open.last(), Some(Container::Object { expects_key: true, .. }));
                self.string = Some(OpenString { is_key, is_escaped: false, bytes: Vec::new() });
            }
            b',' => {
                if let Some(Container::Object { expects_key, .. }) = self.open.last_mut() {
                    *expects_key = true;
                }
            }
            _ => {}
        }
    }

    fn open(&mut self, container: Container) {
        if self.open.len() >= MAX_DEPTH {
            self.open.clear();
        }
        self.open.push(container);
    }

    /// Returns whether a token would complete a key that its object has already.
    fn is_repeated_by(&self, token: &[u8]) -> bool {
        // Each byte of the token closes at most one object or list.
        let from = self.open.len().saturating_sub(token.len() + 1);
        let mut copy = KeyTracker { open: self.open[from..].to_vec(), string: self.string.clone() };
        copy.push(token)
    }

    /// Removes the tokens that would complete a repeated key from the tokens that may come next. If
    /// no other token is left, all of them stay.
    pub(super) fn exclude_repeated(&self, allowed: &mut SimpleVob, quotes: &QuoteTokens, trie: &TokTrie) {
        let has_keys = |container: &Container| match container {
            Container::List => false,
            Container::Object { keys, .. } => !keys.is_empty(),
        };
        if !self.open.iter().any(has_keys) {
            return;
        }
        let in_key = self.string.as_ref().is_some_and(|string| string.is_key);
        let one = quotes.one.iter().filter(|_| in_key);
        let candidates = one.chain(&quotes.several).filter(|id| allowed.is_allowed(**id));
        let repeated: Vec<u32> =
            candidates.copied().filter(|&id| self.is_repeated_by(trie.token(id))).collect();
        if repeated.len() < allowed.num_set() {
            repeated.into_iter().for_each(|id| allowed.disallow_token(id));
        }
    }
}

/// Returns the text of a key without escapes, or the key as it is if it is no text.
fn unescaped(written: &[u8]) -> Vec<u8> {
    if !written.contains(&b'\\') {
        return written.to_vec();
    }
    let quoted = [b"\"", written, b"\""].concat();
    serde_json::from_slice::<String>(&quoted).map_or_else(|_| written.to_vec(), String::into_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repeats(before: &str, token: &str) -> bool {
        let mut tracker = KeyTracker::default();
        assert!(!tracker.push(before.as_bytes()), "{before}");
        tracker.is_repeated_by(token.as_bytes())
    }

    #[test]
    fn a_key_repeats_in_its_own_object_only() {
        for (before, token) in [
            (r#"{"a": 1, "a"#, "\""),
            (r#"{"a": 1, "#, "\"a\":"),
            (r#"{"ab": "x, y", "a"#, "b\": 1"),
            (r#"{"\u0061": {"b": [1, {"c": 2}]}, "a"#, "\""),
            (r#"{"a\"b": 1, "a\"b"#, "\""),
            (r#"[{"a": 1}, {"x": 1, "x"#, "\""),
            ("He said \"no\nwell: {\"a\": 1, \"a", "\""),
            (r#"{"a": "v"#, "\", \"a\": "),
        ] {
            assert!(repeats(before, token), "{before}{token}");
        }
        for (before, token) in [
            (r#"{"a": 1, "a"#, "b\""),
            (r#"{"a": 1, "b": "a"#, "\""),
            (r#"{"a": {"#, "\"a\""),
            (r#"{"a": {"a": 1}, "b"#, "\""),
            (r#"[{"a": 1}, {"a"#, "\""),
            (r#"{"a": ["a", "a"#, "\""),
            (r#"{"a": 1, "a\"#, "\""),
            ("\"a\" \"a", "\""),
        ] {
            assert!(!repeats(before, token), "{before}{token}");
        }
    }

    #[test]
    fn brackets_without_end_are_forgotten() {
        let mut tracker = KeyTracker::default();
        tracker.push("[{".repeat(100_000).as_bytes());
        assert!(tracker.open.len() <= MAX_DEPTH);
    }
}
