//! One request's way through a grammar.

use std::sync::Arc;

use llguidance::Matcher;

use super::Compiled;
use crate::engine::{Constraint, Mask};

/// Follows a grammar from its beginning.
pub struct Walk {
    grammar: Arc<Compiled>,
    /// Made with the first token, where there is time for it. No state is shared with others that follow the same grammar:
    /// the work of one may be a burden to itself only.
    matcher: Option<Matcher>,
}

impl Walk {
    /// At the beginning.
    pub fn new(grammar: Arc<Compiled>) -> Self {
        Walk { grammar, matcher: None }
    }
}

impl Constraint for Walk {
    fn advance(&mut self, token: u32) -> Result<Mask, String> {
        let matcher = self.matcher.get_or_insert_with(|| self.grammar.matcher());
        let advanced = matcher.consume_token(token).and_then(|()| matcher.compute_mask_or_eos());
        let mask = advanced.map_err(|error| super::compiler::described(&error))?;
        mask_of(&mask, self.grammar.vocab_size())
            .ok_or_else(|| "grammar has no way on in this vocabulary".into())
    }
}

/// The tokens of the model that a set holds; nothing if it holds none.
pub(super) fn mask_of(set: &toktrie::SimpleVob, vocab_size: u32) -> Option<Mask> {
    let vocab_size = vocab_size as usize;
    let mut words = set.as_slice().to_vec();
    words.truncate(vocab_size.div_ceil(32));
    if let Some(last) = words.get_mut(vocab_size / 32) {
        *last &= (1 << (vocab_size % 32)) - 1;
    }
    words.iter().any(|word| *word != 0).then(|| words.into())
}
