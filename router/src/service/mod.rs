//! The path of a request from text to text: validation, chat template, tokenizer, engine, and text
//! again.
//!
//! The HTTP routes and the commands at the terminal all use [`Service`].
//!
//! | module | purpose |
//! |---|---|
//! | `setup` | builds the service from a model folder |
//! | `model` | the model as clients see it |
//! | `limits`, `params` | limits of the server, and the parameters of a request |
//! | `pairs` | joins the texts of a pair |
//! | `text` | renders conversations and tokenizes texts |
//! | `encode` | encodes texts on blocking threads, in turns of tenants |
//! | `turn` | runs the work of a long request in a turn of its tenant |
//! | `prepare`, `prepared` | validates a request and tokenizes its prompt |
//! | `block_hashes` | hashes the prompt for the prefix cache |
//! | `generate`, `stream`, `answer` | runs a prepared request, and turns its tokens into text |
//! | `vectors` | how the loaded model makes vectors of texts |
//! | `context`, `caller` | the HTTP request and the API key for which a request runs |
//! | `budget` | bounds the memory of answers that are not generated |
//! | `contradictions` | warnings about files of the model that contradict each other |
//! | `reasoning_limit` | the tokens that end the reasoning at its budget |
//! | `late_system` | tests whether a chat template renders late system messages |
//! | `error` | errors of requests |

mod answer;
mod block_hashes;
mod budget;
mod caller;
mod context;
mod contradictions;
mod encode;
mod error;
mod generate;
mod late_system;
mod limits;
mod model;
mod pairs;
mod params;
mod prepare;
mod prepared;
mod reasoning_limit;
mod setup;
mod stream;
mod text;
mod turn;
mod vectors;

#[cfg(test)]
mod tests;

pub use millrace_proto::Watermark;

pub use self::answer::{Answer, FinishReason, Finished, TextEvent, TextToken};
pub(crate) use self::budget::Reservation;
pub(crate) use self::caller::Caller;
pub(crate) use self::context::{RequestContext, TokenCounts};
pub use self::error::{AtIndex, ContextOverflow, ServiceError};
pub use self::limits::{PayloadLimit, RequestLimits, TokenLimits};
pub use self::model::ModelInfo;
pub use self::pairs::{PairCut, PairForm};
pub(crate) use self::params::{BYTES_PER_TOKEN, priority};
pub use self::params::{Params, Prompt, TruncationSide};
pub use self::prepared::Prepared;
#[cfg(test)]
pub(crate) use self::prepared::variant_seed;
pub use self::setup::{Service, SetupError};
pub use self::stream::TextStream;
pub(crate) use self::turn::MAX_INLINE_BYTES;
pub use self::vectors::VectorPlan;
pub use crate::engine::AdapterInfo;
pub use crate::engine::{Pooling, PromptToken};
pub use crate::metrics::Timings;
