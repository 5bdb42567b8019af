//! Text to token ids and back: tokenizer, incremental detokenizer, stop strings, chat templates, and the special tokens in
//! what clients write.

mod cuts;
mod detokenize;
mod encode;
mod ends;
mod guard;
mod pieces;
mod stop;
mod template;
mod tokenizer;

pub use detokenize::Detokenizer;
pub(crate) use ends::end_tokens;
pub use guard::{ControlTokens, Guard, Rendered};
pub(crate) use stop::Pattern;
pub use stop::{StopMatcher, StopText};
pub use template::{ChatTemplate, Conversation, TemplateError};
pub use tokenizer::{Encoded, Specials, TextError, Tokenizer};
