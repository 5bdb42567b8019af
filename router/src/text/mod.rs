//! Conversion between text and token ids: tokenizer, incremental detokenizer, stop strings, chat
//! templates, and the special tokens in text that clients write.
//!
//! | file | its job |
//! |---|---|
//! | `tokenizer` | a model's tokenizer, and encoding on the current thread |
//! | `vocabulary` | tokenizers from the vocabularies of other libraries |
//! | `encode`, `encode_lanes` | encoding on blocking threads, in chunks and in bounded memory |
//! | `split_points` | places at which a text can be split without changing its tokens |
//! | `token_bytes`, `detokenize` | the bytes of each token, and token ids to text |
//! | `stop`, `substring` | stop strings in generated text |
//! | `conversation`, `template` | chat templates and their input |
//! | `control_tokens`, `rendered` | special tokens that clients write are encoded as ordinary text |
//! | `end_tokens` | the tokens that end an answer |

mod control_tokens;
mod conversation;
mod detokenize;
mod encode;
mod encode_lanes;
mod encoded;
mod end_tokens;
mod error;
mod pair_affixes;
mod rendered;
mod split_points;
mod stop;
mod substring;
mod template;
mod token_bytes;
mod tokenizer;
mod vocabulary;

pub use control_tokens::{ControlTokenGuard, ControlTokens};
pub use conversation::Conversation;
pub use detokenize::Detokenizer;
pub use encoded::{EncodedText, SpecialTokens};
pub(crate) use end_tokens::end_tokens;
pub use error::TextError;
pub use pair_affixes::PairAffixes;
pub use rendered::RenderedPrompt;
pub use stop::{StopMatcher, StopText};
pub(crate) use substring::SubstringMatcher;
pub use template::{ChatTemplate, TemplateError};
pub use tokenizer::Tokenizer;
