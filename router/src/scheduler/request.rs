//! What is asked of the scheduler, and why it ends.

use std::sync::Arc;

use millrace_proto::Sampling;

/// Tokens to continue.
#[derive(Debug, Clone)]
pub struct Request {
    /// The prompt; not empty.
    pub prompt: Vec<u32>,
    /// Tokens to generate at most; with 0 it ends when its prompt has been computed.
    pub max_new_tokens: u32,
    /// Tokens that end the generation (they are still reported).
    pub stop_tokens: Arc<[u32]>,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Who goes first.
    pub priority: Priority,
    /// Computed prefixes are shared only among requests with the same salt; none is a salt like any other.
    pub cache_salt: Option<Arc<str>>,
    /// Given if what may be generated is constrained: the tokens that may come first. What may come after each token is
    /// told by [`release`](super::Scheduler::release).
    pub mask: Option<Mask>,
    /// Given if it shall be told what the model makes of the prompt's tokens: how many alternatives at each of them. The
    /// whole prompt is computed for that, whatever is cached.
    pub prompt_logprobs: Option<u32>,
    /// Given if the prompt shall become a vector; there are no new tokens then.
    pub pooling: Option<Pooling>,
}

/// Which states after the final norm make the vector of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pooling {
    /// The last one, which has seen all the others.
    Last,
    /// The mean of all. The whole prompt is computed for it, whatever is cached.
    Mean,
}

/// The tokens that may come next: bit `t % 32` of word `t / 32` stands for token t; words that are not there are 0. At
/// least one token of the vocabulary has its bit.
pub type Mask = Arc<[u32]>;

/// Who goes first when not all can. A request is treated like one of the next higher priority that arrived
/// [`ageing_steps`](super::Options::ageing_steps) later, so none waits for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Priority {
    /// Before all others.
    High,
    /// The usual.
    #[default]
    Normal,
    /// When there is room.
    Low,
}

/// Why a generation ended by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// `max_new_tokens` have been generated, which may be none. It wins if the last one is also a stop token.
    Length,
    /// One of the `stop_tokens` was generated.
    StopToken,
}
