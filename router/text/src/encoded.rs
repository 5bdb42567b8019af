//! Texts as token ids.

/// Whether a text gets the special tokens that the tokenizer adds at its beginning and end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpecialTokens {
    /// Adds the special tokens of the tokenizer's post-processor. Raw prompts use this.
    Add,
    /// Adds no special tokens. Prompts from a chat template use this, because the template writes
    /// them itself.
    Omit,
}

/// A text as tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EncodedText {
    /// The token ids.
    pub ids: Vec<u32>,
    /// The byte range of the text that each token covers, shorter than 4 GiB. Tokens that the
    /// tokenizer added have the empty range at 0.
    pub offsets: Vec<(u32, u32)>,
}

impl EncodedText {
    /// Appends the tokens of the text that follows.
    pub fn append(&mut self, mut later: EncodedText) {
        self.ids.append(&mut later.ids);
        self.offsets.append(&mut later.offsets);
    }

    /// Returns tokens that the tokenizer added to a text. They cover no bytes of it.
    pub(super) fn outside(ids: &[u32]) -> Self {
        EncodedText { ids: ids.to_vec(), offsets: vec![(0, 0); ids.len()] }
    }
}
