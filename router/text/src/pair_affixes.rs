//! The tokens that a tokenizer puts around a pair of texts, such as a query and a document.

use super::vocabulary::Library;

/// The tokens before, between and after the texts of a pair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PairAffixes {
    before: Vec<u32>,
    between: Vec<u32>,
    after: Vec<u32>,
    has_types: bool,
}

impl PairAffixes {
    /// Finds the tokens by encoding a pair of short texts. Returns `None` if the texts are not
    /// found in the result, or if nothing separates them.
    pub(super) fn of(library: &Library) -> Option<PairAffixes> {
        let ids = |text, add| Some(library.encode(text, add).ok()?.get_ids().to_vec());
        let (first, second) = (ids("a", false)?, ids("b", false)?);
        let whole = library.encode(("a", "b"), true).ok()?;
        let has_types = whole.get_type_ids().iter().any(|&kind| kind != 0);
        let whole = whole.get_ids().to_vec();
        let find = |from: usize, part: &[u32]| {
            let last = whole.len().checked_sub(part.len())?;
            (from..=last).find(|&at| whole[at..].starts_with(part))
        };
        let begin = find(0, &first)?;
        let middle = begin + first.len();
        let second_at = find(middle, &second)?;
        let affixes = PairAffixes {
            before: whole[..begin].to_vec(),
            between: whole[middle..second_at].to_vec(),
            after: whole[second_at + second.len()..].to_vec(),
            has_types,
        };
        (!affixes.between.is_empty()).then_some(affixes)
    }

    /// Returns the number of tokens around the texts.
    pub fn len(&self) -> usize {
        self.before.len() + self.between.len() + self.after.len()
    }

    /// Returns whether the tokens of the second text have another type than those of the first one.
    pub fn has_types(&self) -> bool {
        self.has_types
    }

    /// Returns whether there are no tokens around the texts.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Joins the tokens of two texts.
    pub fn join(&self, first: &[u32], second: &[u32]) -> Vec<u32> {
        [&self.before, first, &self.between, second, &self.after].concat()
    }
}
