//! Text of models: the files of tokenizers and chat templates, conversion between text and token
//! ids, stop strings, and the special tokens in text that clients write.
//!
//! A model's files become [`TextAssets`](assets::TextAssets). A [`Tokenizer`] and a
//! [`ChatTemplate`] are built from them. A [`Conversation`] is rendered to a [`RenderedPrompt`],
//! which the tokenizer encodes; a [`Detokenizer`] turns generated tokens into text, in which a
//! [`StopMatcher`] searches for stop strings.
//!
//! Nothing here knows requests, tenants, grammars or the engine.
//!
//! | file | its job |
//! |---|---|
//! | `assets` | the files of a model that are about text |
//! | `tokenizer` | a model's tokenizer, and encoding on the current thread |
//! | `vocabulary` | tokenizers from the vocabularies of other libraries |
//! | `chunks` | encoding of texts in parts |
//! | `split_points`, `cut_marks` | places at which a text can be split without changing its tokens |
//! | `token_bytes`, `detokenize` | the bytes of each token, and token ids to text |
//! | `stop`, `substring` | stop strings in generated text |
//! | `conversation`, `template` | chat templates and their input |
//! | `control_tokens` | special tokens that clients write are encoded as ordinary text |
//! | `end_tokens` | the tokens that end an answer |

pub mod assets;
mod chunks;
mod control_tokens;
mod conversation;
mod cut_marks;
mod detokenize;
mod encoded;
mod end_tokens;
mod error;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
mod pair_affixes;
mod split_points;
mod stop;
mod substring;
mod template;
#[cfg(any(test, feature = "test-support"))]
pub mod test_support;
mod thread_time;
mod token_bytes;
mod tokenizer;
mod vocabulary;

pub use chunks::{PieceSizes, TextChunk};
pub use control_tokens::{ControlTokenGuard, ControlTokens};
pub use conversation::{Conversation, RenderedPrompt};
pub use detokenize::Detokenizer;
pub use encoded::{EncodedText, SpecialTokens};
pub use end_tokens::end_tokens;
pub use error::{TemplateError, TextError};
pub use pair_affixes::{JoinedPair, PairAffixes};
pub use stop::{StopMatcher, StopText};
pub use substring::SubstringMatcher;
pub use template::ChatTemplate;
pub use thread_time::thread_time;
pub use tokenizer::Tokenizer;
