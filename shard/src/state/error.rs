//! The ways in which a step can contradict the slot table.

/// An error in a step.
///
/// There are two kinds. If router and shard disagree about slots, positions or blocks, one of them
/// has a bug, and the shard ends. If one sequence cannot be run by the model, only this sequence is
/// refused: see [`StepError::is_refusal`].
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
    /// A sequence begins with the states of a checkpoint in which none were saved.
    #[error("slot {slot} begins with checkpoint {checkpoint}, in which nothing was saved")]
    EmptyCheckpoint {
        /// The slot.
        slot: u32,
        /// The checkpoint.
        checkpoint: u32,
    },
    /// A row saves states in a checkpoint that does not exist.
    #[error("slot {slot} saves its states in checkpoint {checkpoint} of {checkpoints}")]
    UnknownCheckpoint {
        /// The slot.
        slot: u32,
        /// The checkpoint.
        checkpoint: u32,
        /// Number of checkpoints.
        checkpoints: usize,
    },
    /// A row with drafts whose recurrent states are not kept, or a row without drafts that keeps
    /// states.
    #[error("slot {slot} has {drafts} drafts, before which states must be kept, or none and keeps them")]
    KeptStates {
        /// The slot.
        slot: u32,
        /// Number of drafts.
        drafts: usize,
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
    #[error(
        "the prompt of slot {slot} has {prompt_len} tokens according to the router, but the sequence has {tokens}"
    )]
    PromptLength {
        /// The slot.
        slot: u32,
        /// Length given.
        prompt_len: u32,
        /// Tokens given.
        tokens: usize,
    },
    /// A sequence names an adapter that the shard has not loaded.
    #[error("the sequence for slot {slot} names adapter {adapter}, which is not loaded")]
    UnknownAdapter {
        /// The slot.
        slot: u32,
        /// The adapter.
        adapter: u32,
    },
    /// Tokens of the second type in a sequence that is not pooled or for a model without that type,
    /// or from a position on that is not in the prompt.
    #[error(
        "the prompt of slot {slot} has {prompt_len} tokens, and from token {start} on a second type, which cannot be computed"
    )]
    TokenTypes {
        /// The slot.
        slot: u32,
        /// First position of the second type.
        start: u32,
        /// Length of the prompt.
        prompt_len: u32,
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
    /// Sampling after a position that is not the last known one.
    #[error("the row of slot {slot} samples after {end} tokens, but the sequence has {known}")]
    SampleInside {
        /// The slot.
        slot: u32,
        /// One past the last position.
        end: usize,
        /// Tokens known.
        known: usize,
    },
    /// A mask of allowed tokens for a row that does not sample, a mask without any token, or a mask
    /// with a token outside the vocabulary.
    #[error("the mask of {words} words for slot {slot} is not valid for the vocabulary of {vocab}")]
    Mask {
        /// The slot.
        slot: u32,
        /// Words given.
        words: usize,
        /// Size of the vocabulary.
        vocab: usize,
    },
    /// A row whose mask follows that is not one generated token, the last one, to be sampled after.
    #[error(
        "the row of slot {slot} at position {start} cannot wait for its mask; the last token is at {last}"
    )]
    LateMask {
        /// The slot.
        slot: u32,
        /// First position.
        start: usize,
        /// Position of the last token.
        last: usize,
    },
    /// A mask that comes after its step for a slot that waits for none.
    #[error("slot {slot} waits for no mask")]
    StrayMask {
        /// The slot.
        slot: u32,
    },
    /// Masks of another step than the one that waits for them.
    #[error("masks of step {given} came instead of those of step {awaited}")]
    OtherMasks {
        /// The step given.
        given: u64,
        /// The step that waits.
        awaited: u64,
    },
    /// Scores of tokens that the prompt does not have, or with more alternatives than can be
    /// reported.
    #[error(
        "the prompt of slot {slot} cannot be scored after position {start} with {top_n} alternatives of {vocab}"
    )]
    Score {
        /// The slot.
        slot: u32,
        /// First position.
        start: usize,
        /// Number of alternatives asked for.
        top_n: u32,
        /// Size of the vocabulary.
        vocab: usize,
    },
    /// A pooled sequence with generated tokens, or an unknown kind of pooling.
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
    /// A first row that does not cover the prompt, which cannot be divided.
    #[error(
        "the first row of slot {slot} has positions {start} to {end}, but its prompt of {prompt_len} tokens is computed as a whole"
    )]
    PartOfPrompt {
        /// The slot.
        slot: u32,
        /// First position.
        start: usize,
        /// Position after the last one.
        end: usize,
        /// Length of the prompt.
        prompt_len: usize,
    },
    /// A row that does not continue where the last one ended, for a model with recurrent layers.
    #[error(
        "the row of slot {slot} begins at position {start} instead of {expected}; layers have a recurrent state"
    )]
    OutOfOrder {
        /// The slot.
        slot: u32,
        /// First position.
        start: usize,
        /// Position after the last row.
        expected: usize,
    },
    /// Sampling for a sequence that is pooled.
    #[error("the row of slot {slot} samples, but its sequence is pooled")]
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
    /// More drafts in all rows than a step can hold.
    #[error("the rows have more than {limit} drafts together")]
    TooManyDrafts {
        /// Drafts allowed.
        limit: usize,
    },
    /// A row that cannot have drafts, or a draft that is not a token.
    #[error("the row of slot {slot} at {start} cannot have these {drafts} drafts")]
    Drafts {
        /// The slot.
        slot: u32,
        /// The row's first position.
        start: usize,
        /// Number of drafts.
        drafts: usize,
    },
    /// A row for which the draft model is to guess tokens, and there is none.
    #[error("slot {slot} wants guesses of a draft model, and there is none")]
    NoDraftModel {
        /// The slot.
        slot: u32,
    },
    /// A row of a sequence whose drafts have not been verified.
    #[error("slot {slot} has a row before its drafts are verified")]
    UnverifiedDrafts {
        /// The slot.
        slot: u32,
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
    /// A copy between the KV cache and the disk cache that names a slot or a block that does not
    /// exist.
    #[error("a copy names slot {slot} of {slots} of the disk cache and block {block} of {blocks}")]
    DiskCopy {
        /// The slot of the disk cache.
        slot: u32,
        /// The block.
        block: u32,
        /// Slots of the disk cache; 0 if there is none.
        slots: usize,
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
    /// Tells whether the content of one sequence is invalid, so that this sequence is refused and
    /// all others continue. The router makes the same checks before it sends a sequence. The shard
    /// repeats them so that a gap in the router's checks does not end the shards.
    pub fn is_refusal(&self) -> bool {
        match self {
            StepError::SequenceLength { .. }
            | StepError::UnknownToken { .. }
            | StepError::PromptLength { .. }
            | StepError::UnknownAdapter { .. }
            | StepError::TokenTypes { .. }
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
            | StepError::LateMask { .. }
            | StepError::StrayMask { .. }
            | StepError::OtherMasks { .. }
            | StepError::UnknownPositions { .. }
            | StepError::SampleInside { .. }
            | StepError::TooManyTokens { .. }
            | StepError::TooManyDrafts { .. }
            | StepError::Drafts { .. }
            | StepError::NoDraftModel { .. }
            | StepError::UnverifiedDrafts { .. }
            | StepError::UnknownBlock { .. }
            | StepError::BlockCount { .. }
            | StepError::DiskCopy { .. }
            | StepError::PartOfPrompt { .. }
            | StepError::OutOfOrder { .. }
            | StepError::EmptyCheckpoint { .. }
            | StepError::UnknownCheckpoint { .. }
            | StepError::KeptStates { .. } => false,
        }
    }
}
