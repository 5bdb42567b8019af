//! The text of a prompt, with the ranges that clients wrote.

use std::ops::Range;

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
