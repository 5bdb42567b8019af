//! Text to token ids and back: tokenizer, incremental detokenizer, stop strings, chat templates.

mod detokenize;
mod pieces;
mod stop;
mod template;
mod tokenizer;

pub use detokenize::Detokenizer;
pub(crate) use stop::Pattern;
pub use stop::{StopMatcher, StopText};
pub use template::{ChatTemplate, Conversation, TemplateError};
pub use tokenizer::{Encoded, Specials, TextError, Tokenizer};
