//! The prefix of a prompt, whose tokens attend to each other in both directions.

use millrace_backend::SequencePrefix;

/// The tokens of a prompt that attend to each other in both directions: its prefix. Every later
/// token attends to the prefix and to the tokens before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrefixRule {
    /// The prefix is the prompt (BERT).
    Prompt,
    /// The prefix ends before a token that separates the context from the answer (ChatGLM-6B). In a
    /// prompt without this token it is the prompt.
    Before {
        /// The token. The first one in a prompt counts.
        separator: u32,
        /// The tokens that stand for the place of the answer. The first place of the first of them
        /// that occurs is the anchor of the prefix; if none occurs, the end of the prefix is.
        masks: [u32; 2],
    },
}

impl PrefixRule {
    /// Returns the prefix of a prompt.
    pub fn of(self, prompt: &[u32]) -> SequencePrefix {
        let place = |token: u32| prompt.iter().position(|&other| other == token);
        match self {
            PrefixRule::Prompt => SequencePrefix { len: prompt.len(), anchor: 0 },
            PrefixRule::Before { separator, masks } => {
                let len = place(separator).unwrap_or(prompt.len());
                let anchor = masks.into_iter().find_map(place).unwrap_or(len.saturating_sub(1));
                SequencePrefix { len, anchor }
            }
        }
    }
}
