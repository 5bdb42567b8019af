//! What the shards can hold, and what can therefore never be asked of them.

use millrace_proto::rules::OutOfRange;
use millrace_proto::{MAX_FRAME, Ready};

use super::frame;

/// The bounds that a shard group announced; every plan keeps them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Tokens of one sequence, prompt and generated together.
    pub max_sequence_tokens: usize,
    /// Tokens of all rows of one step.
    pub max_step_tokens: usize,
    /// Sequences that run at the same time; never more than `max_step_tokens`, so that each can decode in each step.
    pub max_sequences: usize,
    /// Positions whose keys and values one block holds.
    pub block_size: usize,
    /// Blocks of the pool.
    pub num_blocks: usize,
    /// Token ids are below this.
    pub vocab_size: usize,
    /// Features of a state, and so of a vector.
    pub hidden_size: usize,
    /// Bytes of the largest message: [`MAX_FRAME`] but in tests.
    pub max_frame_bytes: usize,
}

/// A shard announced that it can hold nothing at all.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the shard announced {0} = 0: nothing could ever be served")]
pub struct NoRoom(&'static str);

impl Limits {
    /// Reads the limits from a shard's announcement.
    ///
    /// # Errors
    /// If one of them is zero.
    pub fn new(ready: &Ready) -> Result<Self, NoRoom> {
        let positive = |name, value: u32| if value == 0 { Err(NoRoom(name)) } else { Ok(value as usize) };
        let max_step_tokens = positive("max_step_tokens", ready.max_step_tokens)?;
        Ok(Limits {
            max_sequence_tokens: positive("max_sequence_tokens", ready.max_sequence_tokens)?,
            max_step_tokens,
            max_sequences: positive("max_sequences", ready.max_sequences)?
                .min(max_step_tokens)
                .min(frame::most_rows(MAX_FRAME)),
            block_size: positive("block_size", ready.block_size)?,
            num_blocks: positive("num_blocks", ready.num_blocks)?,
            vocab_size: positive("vocab_size", ready.vocab_size)?,
            hidden_size: ready.hidden_size as usize,
            max_frame_bytes: MAX_FRAME,
        })
    }

    /// Blocks that hold `positions` positions.
    pub fn blocks_for(&self, positions: usize) -> usize {
        positions.div_ceil(self.block_size)
    }

    /// Whether a sequence of this size could run if it had all blocks for itself.
    ///
    /// # Errors
    /// [`Impossible`] with the arithmetic.
    pub fn check(&self, prompt: usize, new: usize) -> Result<(), Impossible> {
        if prompt == 0 {
            return Err(Impossible::Nothing);
        }
        if prompt.saturating_add(new) > self.max_sequence_tokens {
            return Err(Impossible::TooLong { prompt, new, limit: self.max_sequence_tokens });
        }
        let needed = self.blocks_for(positions(prompt, new));
        if needed > self.num_blocks {
            let Limits { block_size, num_blocks, .. } = *self;
            return Err(Impossible::OverPool { prompt, new, needed, block_size, num_blocks });
        }
        Ok(())
    }
}

/// Positions whose keys and values a sequence needs at most: the last new token is never run through the model.
pub(super) fn positions(prompt: usize, new: usize) -> usize {
    prompt + new.max(1) - 1
}

/// Why a sequence can never run. The texts are fit for a client.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[expect(missing_docs, reason = "the texts say what the fields are")]
pub enum Impossible {
    /// No prompt.
    #[error("A request needs at least one prompt token")]
    Nothing,
    /// Longer than the model's positions or the configured limit.
    #[error(
        "{prompt} prompt tokens and {new} new tokens are more than the {limit} that a sequence can hold; \
         shorten the prompt or ask for fewer new tokens"
    )]
    TooLong { prompt: usize, new: usize, limit: usize },
    /// More keys and values than the whole pool.
    #[error(
        "{prompt} prompt tokens and {new} new tokens need {needed} cache blocks of {block_size} tokens, \
         but the server has only {num_blocks} ({} tokens); shorten the prompt or ask for fewer new tokens",
        num_blocks * block_size
    )]
    OverPool { prompt: usize, new: usize, needed: usize, block_size: usize, num_blocks: usize },
    /// A prompt token that the model does not have.
    #[error("token {token} is outside the vocabulary of {vocab_size}")]
    UnknownToken { token: u32, vocab_size: usize },
    /// More than one message to the shards holds.
    #[error(
        "{tokens} prompt and new tokens and their parameters need {needed} bytes in one message to the shards, which holds {room}; \
         shorten the prompt or ask for fewer new tokens"
    )]
    OverFrame { tokens: usize, needed: usize, room: usize },
    /// A sampling parameter that the shards would refuse.
    #[error("{0}")]
    Sampling(#[from] OutOfRange),
    /// More alternatives at each token of the prompt than can be reported.
    #[error(
        "{given} alternatives at each token of the prompt are more than the {limit} that can be reported"
    )]
    Scores { given: u32, limit: usize },
    /// A mask that allows nothing, or a token that the model does not have.
    #[error("the grammar allows no token of the model's vocabulary")]
    Mask,
}
