//! How a step can contradict the slot table.

/// What is wrong with a step.
///
/// Either router and shard disagree about slots, positions or blocks, which only a bug can cause and which ends the shard, or one sequence is
/// not one that a model can run, which is that sequence's end alone: see [`StepError::is_refusal`].
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum StepError {
    /// A slot beyond the table.
    #[error("slot {slot} is not one of the {slots} slots")]
    UnknownSlot {
        /// The slot.
        slot: u32,
        /// Size of the table.
        slots: usize,
    },
    /// A release or a row for a slot without a sequence.
    #[error("slot {slot} holds no sequence")]
    FreeSlot {
        /// The slot.
        slot: u32,
    },
    /// An admission to a slot that has a sequence.
    #[error("slot {slot} already holds a sequence")]
    TakenSlot {
        /// The slot.
        slot: u32,
    },
    /// A sequence without tokens, or with more than fit.
    #[error("the sequence for slot {slot} has {tokens} tokens; it must have 1 to {limit}")]
    SequenceLength {
        /// The slot.
        slot: u32,
        /// Tokens given.
        tokens: usize,
        /// Tokens allowed.
        limit: usize,
    },
    /// A token id outside the vocabulary.
    #[error("token {token} of slot {slot} is outside the vocabulary of {vocab}")]
    UnknownToken {
        /// The slot.
        slot: u32,
        /// The token.
        token: u32,
        /// Size of the vocabulary.
        vocab: usize,
    },
    /// A prompt that is empty or longer than the tokens given.
    #[error("the prompt of slot {slot} is said to have {prompt_len} of its {tokens} tokens")]
    PromptLength {
        /// The slot.
        slot: u32,
        /// Length given.
        prompt_len: u32,
        /// Tokens given.
        tokens: usize,
    },
    /// An admission without sampling parameters.
    #[error("the admission to slot {slot} has no sampling parameters")]
    NoSampling {
        /// The slot.
        slot: u32,
    },
    /// A sampling parameter outside its range.
    #[error("the sampling parameter `{field}` of slot {slot} is out of range: {value}")]
    Sampling {
        /// The slot.
        slot: u32,
        /// The parameter.
        field: &'static str,
        /// Its value.
        value: f64,
    },
    /// Two rows for one slot.
    #[error("slot {slot} has two rows")]
    SecondRow {
        /// The slot.
        slot: u32,
    },
    /// A row without tokens.
    #[error("the row of slot {slot} is empty")]
    EmptyRow {
        /// The slot.
        slot: u32,
    },
    /// A row past the tokens that are known, or past the longest sequence.
    #[error("the row of slot {slot} covers positions {start} to {end}, but only {limit} can be computed")]
    UnknownPositions {
        /// The slot.
        slot: u32,
        /// First position.
        start: usize,
        /// One past the last position.
        end: usize,
        /// Positions that may be computed.
        limit: usize,
    },
    /// Sampling from a position that is not the last known one.
    #[error("the row of slot {slot} samples after {end} tokens although {known} are known")]
    SampleInside {
        /// The slot.
        slot: u32,
        /// One past the last position.
        end: usize,
        /// Tokens known.
        known: usize,
    },
    /// A set of allowed tokens for a row that does not sample, without any token, or with one outside the vocabulary.
    #[error(
        "the {words} words of tokens allowed for slot {slot} are no choice from the vocabulary of {vocab}"
    )]
    Mask {
        /// The slot.
        slot: u32,
        /// Words given.
        words: usize,
        /// Size of the vocabulary.
        vocab: usize,
    },
    /// Scores of tokens that the prompt does not have, or with more alternatives than there are tokens or can be reported.
    #[error("slot {slot} has no prompt after position {start} to be scored with {top_n} of {vocab} tokens")]
    Score {
        /// The slot.
        slot: u32,
        /// First position.
        start: usize,
        /// Alternatives asked for.
        top_n: u32,
        /// Size of the vocabulary.
        vocab: usize,
    },
    /// A sequence to be pooled that has more than a prompt, or in a way that there is not.
    #[error(
        "the sequence for slot {slot} cannot be pooled: pooling {pooling}, {tokens} tokens, a prompt of {prompt_len}"
    )]
    Pooling {
        /// The slot.
        slot: u32,
        /// The number of the kind of pooling.
        pooling: i32,
        /// Tokens given.
        tokens: usize,
        /// Length of the prompt.
        prompt_len: u32,
    },
    /// Sampling for a sequence that is pooled.
    #[error("slot {slot} is pooled, and its row samples")]
    SamplePooled {
        /// The slot.
        slot: u32,
    },
    /// More tokens in all rows than a step can hold.
    #[error("the rows have more than {limit} tokens together")]
    TooManyTokens {
        /// Tokens allowed.
        limit: usize,
    },
    /// A block outside the pool.
    #[error("block {block} of slot {slot} is not one of the {blocks} blocks")]
    UnknownBlock {
        /// The slot.
        slot: u32,
        /// The block.
        block: u32,
        /// Blocks in the pool.
        blocks: usize,
    },
    /// A block table too short for the row, or longer than a sequence can need.
    #[error("slot {slot} has {blocks} blocks; its row needs {needed} and a sequence never more than {limit}")]
    BlockCount {
        /// The slot.
        slot: u32,
        /// Blocks it has, new ones included.
        blocks: usize,
        /// Blocks the row needs.
        needed: usize,
        /// Blocks of the longest table.
        limit: usize,
    },
}

impl StepError {
    /// Whether the content of one sequence is wrong, so that this sequence is refused and all others go on. The router checks the same
    /// before; this is what keeps a gap in its checks from ending the shards.
    pub fn is_refusal(&self) -> bool {
        match self {
            StepError::SequenceLength { .. }
            | StepError::UnknownToken { .. }
            | StepError::PromptLength { .. }
            | StepError::NoSampling { .. }
            | StepError::Sampling { .. }
            | StepError::Mask { .. }
            | StepError::Score { .. }
            | StepError::Pooling { .. }
            | StepError::SamplePooled { .. } => true,
            StepError::UnknownSlot { .. }
            | StepError::FreeSlot { .. }
            | StepError::TakenSlot { .. }
            | StepError::SecondRow { .. }
            | StepError::EmptyRow { .. }
            | StepError::UnknownPositions { .. }
            | StepError::SampleInside { .. }
            | StepError::TooManyTokens { .. }
            | StepError::UnknownBlock { .. }
            | StepError::BlockCount { .. } => false,
        }
    }
}
