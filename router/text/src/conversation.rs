//! The input of a chat template, and the prompt that comes out.

use std::ops::Range;

use serde::Serialize;

/// The variables that a chat template receives.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Conversation {
    /// The messages in the client's form. The text of each message is one string.
    pub messages: Vec<serde_json::Value>,
    /// The tools in the client's form.
    pub tools: Option<Vec<serde_json::Value>>,
    /// The documents in the client's form.
    pub documents: Option<Vec<serde_json::Value>>,
    /// Further variables of the template, such as `enable_thinking`. They cannot replace the usual
    /// variables.
    pub more: serde_json::Map<String, serde_json::Value>,
    /// Whether the prompt ends with the beginning of the assistant's turn.
    pub add_generation_prompt: bool,
}

/// The text of a prompt, and the parts of it that are encoded as ordinary text although they look
/// like special tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RenderedPrompt {
    /// The text of the prompt.
    pub text: String,
    /// The byte ranges that are encoded as ordinary text, in ascending order and without overlap.
    pub literal: Vec<Range<usize>>,
}

impl From<String> for RenderedPrompt {
    fn from(text: String) -> Self {
        RenderedPrompt { text, literal: Vec::new() }
    }
}

impl RenderedPrompt {
    /// Shortens the text to at most `length` bytes. `length` must be a character boundary.
    pub fn truncate(&mut self, length: usize) {
        self.text.truncate(length);
        self.literal.retain(|range| range.start < length);
        if let Some(last) = self.literal.last_mut() {
            last.end = last.end.min(length);
        }
    }
}
