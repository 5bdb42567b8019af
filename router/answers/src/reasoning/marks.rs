//! The texts around a model's reasoning, and how the beginning of an answer is compared with them.

use millrace_text::Tokenizer;

/// The marks around a model's reasoning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReasoningMarks {
    /// The text before the reasoning; empty if the answer always begins with the reasoning.
    pub open: &'static str,
    /// The text after the reasoning.
    pub close: &'static str,
    /// The parts of the marks that may be special tokens.
    pub tokens: &'static [&'static str],
}

/// The state of the reasoning at the beginning of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReasoningStart {
    /// The prompt ends within the reasoning.
    Inside,
    /// The answer may begin with the reasoning.
    Possible,
}

impl ReasoningMarks {
    /// Returns the state of the reasoning after a prompt that may open it.
    pub fn start(&self, prompt: &str) -> ReasoningStart {
        // A long prompt ends with few white spaces, so this looks at its end only.
        if prompt.trim_end().ends_with(self.open) { ReasoningStart::Inside } else { ReasoningStart::Possible }
    }

    /// Returns the special tokens in the marks, which are shown as text.
    pub fn special_tokens(&self, tokenizer: &Tokenizer) -> Vec<u32> {
        let ids = self.tokens.iter().filter_map(|mark| tokenizer.token_id(mark));
        ids.filter(|&id| tokenizer.is_special(id)).collect()
    }
}

/// Whether a text is the beginning of an answer that begins with a mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Opening {
    /// The text may become the mark.
    Undecided,
    /// The text ends with the mark.
    Found,
    /// The answer does not begin with the mark.
    Absent,
}

/// White space that may precede the mark, in bytes.
const MAX_SPACE: usize = 16;

/// Compares the beginning of an answer with a mark. White space may precede the mark.
pub(super) fn opening(begin: &str, mark: &str) -> Opening {
    let text = begin.trim_start();
    if begin.len() - text.len() > MAX_SPACE {
        Opening::Absent
    } else if text == mark {
        Opening::Found
    } else if mark.starts_with(text) {
        Opening::Undecided
    } else {
        Opening::Absent
    }
}
