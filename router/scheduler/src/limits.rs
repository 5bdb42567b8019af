//! The limits of the shards, and the requests that can never run within them.

use millrace_proto::rules::OutOfRange;
use millrace_proto::{MAX_FRAME, PromptHandling, Ready};

use super::message_size;

/// The limits that a shard group announced. Every step keeps them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SchedulerLimits {
    /// Maximum number of tokens of one sequence, prompt and generated tokens together.
    pub max_sequence_tokens: usize,
    /// Maximum number of tokens of all rows of one step.
    pub max_step_tokens: usize,
    /// Maximum number of running sequences. It is never more than `max_step_tokens`, so that each
    /// sequence can decode in each step.
    pub max_sequences: usize,
    /// Number of positions whose keys and values one block holds.
    pub block_size: usize,
    /// Number of blocks in the KV cache.
    pub num_blocks: usize,
    /// Number of token ids; all ids are below it.
    pub vocab_size: usize,
    /// Largest number of elements of a vector: the features of a state, or the outputs of the
    /// classifier.
    pub max_vector_len: usize,
    /// Size of the largest message in bytes: [`MAX_FRAME`] except in tests.
    pub max_frame_bytes: usize,
    /// How prompts may be divided and shared.
    pub prompt_handling: PromptHandling,
    /// Number of checkpoints of recurrent states. Prompts that cannot be shared otherwise are
    /// shared up to the positions at which a checkpoint was saved.
    pub state_checkpoints: usize,
    /// Maximum number of drafts of all rows of one step together.
    pub max_drafts: usize,
    /// Whether the shards have a draft model, so that rows may have its drafts.
    pub has_draft_model: bool,
    /// Number of places for adapters.
    pub adapters: usize,
    /// Maximum number of adapters that are loaded at a time. If it is larger than `adapters`, the
    /// scheduler decides which of them are in places. Whether an adapter that a request names is
    /// loaded is not known here.
    pub max_loaded_adapters: usize,
}

/// A shard announced limits with which no request could ever run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidAnnouncement {
    /// A limit is zero.
    #[error("the shard announced {0} = 0, so no request could ever run")]
    Zero(&'static str),
    /// The handling of prompts is not one that this version knows.
    #[error("the shard announced an unknown handling of prompts, {0}")]
    UnknownPromptHandling(i32),
}

impl SchedulerLimits {
    /// Reads the limits from the announcement of a shard.
    ///
    /// # Errors
    /// [`InvalidAnnouncement`] if one of them is zero, or the handling of prompts is unknown.
    pub fn new(ready: &Ready) -> Result<Self, InvalidAnnouncement> {
        let positive = |name, value: u32| match value {
            0 => Err(InvalidAnnouncement::Zero(name)),
            value => Ok(value as usize),
        };
        let prompt_handling = PromptHandling::try_from(ready.prompt_handling)
            .map_err(|_| InvalidAnnouncement::UnknownPromptHandling(ready.prompt_handling))?;
        let max_step_tokens = positive("max_step_tokens", ready.max_step_tokens)?;
        Ok(SchedulerLimits {
            max_sequence_tokens: positive("max_sequence_tokens", ready.max_sequence_tokens)?,
            max_step_tokens,
            max_sequences: positive("max_sequences", ready.max_sequences)?
                .min(max_step_tokens)
                .min(message_size::max_rows(MAX_FRAME)),
            block_size: positive("block_size", ready.block_size)?,
            num_blocks: positive("num_blocks", ready.num_blocks)?,
            vocab_size: positive("vocab_size", ready.vocab_size)?,
            max_vector_len: ready.hidden_size.max(ready.classes) as usize,
            max_frame_bytes: MAX_FRAME,
            prompt_handling,
            state_checkpoints: ready.state_checkpoints as usize,
            max_drafts: ready.max_drafts as usize,
            has_draft_model: !ready.draft_model.is_empty(),
            adapters: ready.adapters as usize,
            max_loaded_adapters: ready.max_loaded_adapters.max(ready.adapters) as usize,
        })
    }

    /// Whether sequences with the same beginning may share blocks: everywhere, or up to a
    /// checkpoint.
    pub(super) fn shares_blocks(&self) -> bool {
        self.prompt_handling == PromptHandling::Shared || self.shares_at_checkpoints()
    }

    /// Whether sequences share blocks only up to checkpoints of their recurrent states.
    pub(super) fn shares_at_checkpoints(&self) -> bool {
        self.prompt_handling == PromptHandling::Unshared && self.state_checkpoints > 0
    }

    /// Whether a position may be run again.
    pub(super) fn reruns_positions(&self) -> bool {
        self.prompt_handling == PromptHandling::Shared
    }

    /// Whether recurrent states are kept before rows with drafts, because they cannot go back.
    pub(super) fn keeps_states(&self) -> bool {
        self.prompt_handling == PromptHandling::Unshared
    }

    /// Whether a prompt must be computed by one row.
    pub(super) fn needs_whole_prompts(&self) -> bool {
        self.prompt_handling == PromptHandling::Whole
    }

    /// Maximum number of tokens of a prompt. A prompt that cannot be divided must fit a step in
    /// which all other sequences decode.
    pub fn max_prompt_tokens(&self) -> usize {
        match self.needs_whole_prompts() {
            true => (self.max_step_tokens + 1 - self.max_sequences).min(self.max_sequence_tokens),
            false => self.max_sequence_tokens,
        }
    }

    /// Number of blocks that hold `positions` positions.
    pub fn blocks_for(&self, positions: usize) -> usize {
        positions.div_ceil(self.block_size)
    }

    /// Checks that a sequence of this size could run if it had all blocks for itself.
    ///
    /// # Errors
    /// [`InfeasibleRequest`] explains the sizes.
    pub fn check(&self, prompt: usize, new: usize) -> Result<(), InfeasibleRequest> {
        if prompt == 0 {
            return Err(InfeasibleRequest::EmptyPrompt);
        }
        if prompt.saturating_add(new) > self.max_sequence_tokens {
            return Err(InfeasibleRequest::TooLong { prompt, new, limit: self.max_sequence_tokens });
        }
        if prompt > self.max_prompt_tokens() {
            return Err(InfeasibleRequest::ExceedsStep { prompt, limit: self.max_prompt_tokens() });
        }
        let needed = self.blocks_for(positions(prompt, new));
        if needed > self.num_blocks {
            let SchedulerLimits { block_size, num_blocks, .. } = *self;
            return Err(InfeasibleRequest::ExceedsPool { prompt, new, needed, block_size, num_blocks });
        }
        Ok(())
    }
}

/// Maximum number of positions whose keys and values a sequence needs: the last new token is never
/// run through the model.
pub(super) fn positions(prompt: usize, new: usize) -> usize {
    prompt + new.max(1) - 1
}

/// Why a sequence can never run. The texts are meant for clients.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[expect(missing_docs, reason = "the texts say what the fields are")]
pub enum InfeasibleRequest {
    /// The prompt is empty.
    #[error("A request needs at least one prompt token")]
    EmptyPrompt,
    /// The sequence is longer than the model's positions or the configured limit.
    #[error(
        "{prompt} prompt tokens and {new} new tokens are more than the {limit} that a sequence can hold; \
         shorten the prompt or ask for fewer new tokens"
    )]
    TooLong { prompt: usize, new: usize, limit: usize },
    /// The prompt cannot be divided and is longer than a step.
    #[error(
        "{prompt} prompt tokens are more than the {limit} that one step holds, and the model computes a prompt \
         as a whole; shorten the prompt"
    )]
    ExceedsStep { prompt: usize, limit: usize },
    /// Scores of a prompt whose tokens attend to the tokens after them.
    #[error(
        "the tokens of a prompt attend to the tokens after them in this model, so they have no log-probabilities"
    )]
    NoPromptScores,
    /// The sequence needs more keys and values than the whole KV cache holds.
    #[error(
        "{prompt} prompt tokens and {new} new tokens need {needed} cache blocks of {block_size} tokens, \
         but the server has only {num_blocks} ({} tokens); shorten the prompt or ask for fewer new tokens",
        num_blocks * block_size
    )]
    ExceedsPool { prompt: usize, new: usize, needed: usize, block_size: usize, num_blocks: usize },
    /// A prompt token that is not in the model's vocabulary.
    #[error("token {token} is outside the vocabulary of {vocab_size}")]
    UnknownToken { token: u32, vocab_size: usize },
    /// The request names an adapter, and the shards have no place for any.
    #[error("the request names an adapter, and the shards have none")]
    NoAdapters,
    /// The admission does not fit one message to the shards.
    #[error(
        "{tokens} prompt and new tokens and their parameters need {needed} bytes in one message to the shards, which holds {room}; \
         shorten the prompt or ask for fewer new tokens"
    )]
    ExceedsFrame { tokens: usize, needed: usize, room: usize },
    /// A sampling parameter that the shards would refuse.
    #[error("{0}")]
    Sampling(#[from] OutOfRange),
    /// More alternatives at each token of the prompt than the shards report.
    #[error(
        "{given} alternatives at each token of the prompt are more than the {limit} that can be reported"
    )]
    TooManyAlternatives { given: u32, limit: usize },
    /// A mask that allows no token, or a token that is not in the model's vocabulary.
    #[error("the grammar allows no token of the model's vocabulary")]
    EmptyMask,
}
