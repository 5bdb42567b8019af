//! A request to the scheduler, and the reasons for which a generation ends.

use std::sync::Arc;

use millrace_proto::Sampling;

use super::cache::BlockHashes;
use super::id::AdapterId;

/// A prompt and the parameters of its continuation.
#[derive(Debug, Clone)]
pub struct Request {
    /// The tokens of the prompt; not empty.
    pub prompt: Vec<u32>,
    /// Maximum number of tokens to generate. With 0 the sequence ends when its prompt has been
    /// computed.
    pub max_new_tokens: u32,
    /// Tokens that end the generation. The stop token itself is still reported.
    pub stop_tokens: Arc<[u32]>,
    /// Sampling parameters.
    pub sampling: Sampling,
    /// Scheduling priority.
    pub priority: Priority,
    /// The tenant with whose other requests this one shares its part of the tokens.
    pub tenant: Tenant,
    /// The adapter that the sequence is computed with; `None` for the model itself. Computed
    /// prefixes are shared only among requests with the same adapter.
    pub adapter: Option<AdapterId>,
    /// Separates prefix caches: computed prefixes are shared only among requests with an equal
    /// salt. Requests without a salt share with each other.
    pub cache_salt: Option<Arc<str>>,
    /// The hashes of the prompt's blocks with this adapter and this salt. If they are absent, the
    /// scheduler computes them.
    pub block_hashes: Option<BlockHashes>,
    /// The tokens that may come first, if the generation is constrained.
    /// [`release`](super::Scheduler::release) gives the mask after each token.
    pub mask: Option<Mask>,
    /// Number of alternatives to report at each token of the prompt, if the log-probabilities of
    /// the prompt are wanted. The whole prompt is computed for them, whatever is cached.
    pub prompt_logprobs: Option<u32>,
    /// How to pool the prompt into a vector, if a vector is wanted. No tokens are generated then.
    pub pooling: Option<Pooling>,
    /// Number of states at the beginning of the prompt that are not pooled. The number is less
    /// than the length of the prompt.
    pub pooling_start: u32,
    /// Position from which on the tokens of a pooled prompt have the model's second token type, as
    /// those of the second text of a pair do. `None` if all have the first type.
    pub second_type_start: Option<u32>,
}

/// The pooling of the states after the final norm into the vector of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pooling {
    /// The last state, which depends on all tokens of the prompt.
    Last,
    /// The mean of all states. The whole prompt is computed for it, whatever is cached.
    Mean,
    /// The first state, which depends on all tokens if these attend in both directions. The whole
    /// prompt is computed for it, whatever is cached.
    First,
    /// The outputs of the model's classifier for the first state.
    Classes,
    /// The largest value of each feature. The whole prompt is computed for it, whatever is cached.
    Max,
    /// The mean of all states, in which the state at position p has the weight p + 1. The whole
    /// prompt is computed for it, whatever is cached.
    WeightedMean,
}

/// A set of allowed tokens: bit `t % 32` of word `t / 32` stands for token t, and missing words are
/// 0. At least one token of the vocabulary is allowed. An empty mask allows all tokens, at no cost
/// for the shards.
pub type Mask = Arc<[u32]>;

/// Scheduling priority. A request is ordered like a request of the next higher priority that
/// arrives [`ageing_steps`](super::SchedulerOptions::ageing_steps) later, so no request waits
/// forever.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Priority {
    /// Before all other requests.
    High,
    /// The default.
    #[default]
    Normal,
    /// After all other requests.
    Low,
}

/// The party for which a request runs. Tenants that wait at the same time get the same share of the
/// tokens. The default is the one tenant of all requests that name none.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Tenant(Option<Arc<str>>);

impl Tenant {
    /// The tenant with this name.
    pub fn named(name: impl Into<Arc<str>>) -> Self {
        Tenant(Some(name.into()))
    }
}

/// Why a generation ended normally.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// `max_new_tokens` tokens have been generated, possibly none. This reason wins if the last
    /// token is also a stop token.
    Length,
    /// The model generated one of the `stop_tokens`.
    StopToken,
}
