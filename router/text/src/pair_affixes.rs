//! The tokens that a tokenizer puts around a pair of texts, such as a query and a document.

use super::vocabulary::Library;

/// The tokens before, between and after the texts of a pair, and the types of all tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PairAffixes {
    before: Vec<u32>,
    between: Vec<u32>,
    after: Vec<u32>,
    types: PairTypes,
}

/// The types that a tokenizer gives to the tokens of a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PairTypes {
    /// All tokens have type 0.
    Same,
    /// So many of the tokens between the texts, and all tokens before them, have type 0. All later
    /// tokens have type 1.
    SecondText(usize),
    /// Any other order of types.
    Other,
}

/// The tokens of a pair of texts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinedPair {
    /// The tokens of both texts and those around them.
    pub ids: Vec<u32>,
    /// The index from which on tokens have type 1. `None` if all tokens have type 0.
    pub second_type_start: Option<usize>,
}

impl PairAffixes {
    /// Finds the tokens by encoding a pair of short texts. Returns `None` if the texts are not
    /// found in the result, or if nothing separates them.
    pub(super) fn of(library: &Library) -> Option<PairAffixes> {
        let ids = |text, add| Some(library.encode(text, add).ok()?.get_ids().to_vec());
        let (first, second) = (ids("a", false)?, ids("b", false)?);
        let pair = library.encode(("a", "b"), true).ok()?;
        let whole = pair.get_ids();
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
            types: PairTypes::of(pair.get_type_ids(), middle, second_at),
        };
        (!affixes.between.is_empty()).then_some(affixes)
    }

    /// Returns the number of tokens around the texts.
    pub fn len(&self) -> usize {
        self.before.len() + self.between.len() + self.after.len()
    }

    /// Returns whether there are no tokens around the texts.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether the types of the tokens are 0 up to some place between the texts and 1 after
    /// it, or 0 everywhere. A [`JoinedPair`] cannot describe other types.
    pub fn has_usual_types(&self) -> bool {
        self.types != PairTypes::Other
    }

    /// Joins the tokens of two texts.
    pub fn join(&self, first: &[u32], second: &[u32]) -> JoinedPair {
        let second_type_start = match self.types {
            PairTypes::SecondText(between) => Some(self.before.len() + first.len() + between),
            PairTypes::Same | PairTypes::Other => None,
        };
        let ids = [&self.before, first, &self.between, second, &self.after].concat();
        JoinedPair { ids, second_type_start }
    }
}

impl PairTypes {
    /// Reads the types of the tokens of a pair, whose first text ends before `middle` and whose
    /// second text begins at `second_at`.
    fn of(types: &[u32], middle: usize, second_at: usize) -> Self {
        let start = types.iter().position(|&kind| kind != 0);
        match start {
            None => PairTypes::Same,
            Some(start)
                if (middle..=second_at).contains(&start) && types[start..].iter().all(|&kind| kind == 1) =>
            {
                PairTypes::SecondText(start - middle)
            }
            Some(_) => PairTypes::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `[CLS] a [SEP] b [SEP]`.
    fn bert(types: PairTypes) -> PairAffixes {
        PairAffixes { before: vec![1], between: vec![2], after: vec![2], types }
    }

    #[test]
    fn types_change_once_between_the_texts() {
        let types = |types: &[u32]| PairTypes::of(types, 2, 3);
        assert_eq!(types(&[0; 5]), PairTypes::Same);
        assert_eq!(types(&[0, 0, 0, 1, 1]), PairTypes::SecondText(1));
        assert_eq!(types(&[0, 0, 1, 1, 1]), PairTypes::SecondText(0));
        for other in [[0, 1, 1, 1, 1], [0, 0, 0, 1, 0], [0, 0, 0, 2, 2], [0, 0, 0, 0, 1], [2, 0, 0, 1, 1]] {
            assert_eq!(types(&other), PairTypes::Other, "{other:?}");
        }
    }

    #[test]
    fn the_second_type_begins_after_the_tokens_of_the_first() {
        let joined = bert(PairTypes::SecondText(1)).join(&[7, 8, 9], &[5]);
        assert_eq!(joined, JoinedPair { ids: vec![1, 7, 8, 9, 2, 5, 2], second_type_start: Some(5) });
        let joined = bert(PairTypes::SecondText(0)).join(&[], &[5]);
        assert_eq!(joined, JoinedPair { ids: vec![1, 2, 5, 2], second_type_start: Some(1) });
        assert_eq!(bert(PairTypes::Same).join(&[7], &[5]).second_type_start, None);
        assert!(!bert(PairTypes::Other).has_usual_types() && bert(PairTypes::Same).has_usual_types());
    }
}
