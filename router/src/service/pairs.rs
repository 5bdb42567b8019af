//! Prompts of two texts, as models with a classifier read them.

use millrace_text::{JoinedPair, PairAffixes};

use super::params::TruncationSide;

/// The form in which a model reads pairs of texts.
#[derive(Debug, Clone, Copy)]
pub struct PairForm<'a> {
    pub(super) affixes: &'a PairAffixes,
    /// Whether the tokens of the texts have types.
    pub(super) has_types: bool,
}

/// The limit on the tokens of a pair that is cut.
#[derive(Debug, Clone, Copy)]
pub struct PairCut {
    /// Maximum number of tokens, including the special tokens around the texts.
    pub longest: usize,
    /// The side on which the texts lose tokens.
    pub side: TruncationSide,
}

impl PairForm<'_> {
    /// Joins the tokens of two texts. If there is a limit, the longer text loses tokens until both
    /// are of the same length, and then both do. No limit can remove the tokens around the texts,
    /// so the result may still be too long.
    pub fn join(&self, first: &[u32], second: &[u32], cut: Option<PairCut>) -> JoinedPair {
        let (mut first, mut second) = (first, second);
        if let Some(PairCut { longest, side }) = cut {
            let room = longest.saturating_sub(self.affixes.len());
            let kept = longest_first(first.len(), second.len(), room);
            (first, second) = (shortened(first, kept[0], side), shortened(second, kept[1], side));
        }
        let JoinedPair { ids, second_type_start } = self.affixes.join(first, second);
        JoinedPair { ids, second_type_start: second_type_start.filter(|_| self.has_types) }
    }
}

/// Returns the lengths of two texts that together have room for `room` tokens. A text that is at
/// most half of the room stays whole. If both are longer, the longer one gets an odd token
/// (`longest_first` in transformers and text-embeddings-inference).
fn longest_first(first: usize, second: usize, room: usize) -> [usize; 2] {
    let half = room / 2;
    match (first <= half, second <= half) {
        _ if first + second <= room => [first, second],
        (true, _) => [first, room - first],
        (_, true) => [room - second, second],
        _ if first > second => [room - half, half],
        _ => [half, room - half],
    }
}

fn shortened(ids: &[u32], kept: usize, side: TruncationSide) -> &[u32] {
    match side {
        TruncationSide::Right => &ids[..kept.min(ids.len())],
        TruncationSide::Left => &ids[ids.len().saturating_sub(kept)..],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longer_text_is_cut_first() {
        for (texts, room, kept) in [
            ([3, 4], 7, [3, 4]),
            ([3, 9], 8, [3, 5]),
            ([9, 3], 8, [5, 3]),
            ([9, 4], 8, [4, 4]),
            ([9, 8], 7, [4, 3]),
            ([8, 9], 7, [3, 4]),
            ([9, 9], 7, [3, 4]),
            ([4, 4], 7, [3, 4]),
            ([4, 1], 0, [0, 0]),
            ([5, 5], 1, [0, 1]),
        ] {
            assert_eq!(longest_first(texts[0], texts[1], room), kept, "{texts:?} in {room}");
        }
    }

    #[test]
    fn texts_lose_tokens_on_one_side() {
        let ids = [1, 2, 3];
        assert_eq!(shortened(&ids, 2, TruncationSide::Right), [1, 2]);
        assert_eq!(shortened(&ids, 2, TruncationSide::Left), [2, 3]);
        assert_eq!(shortened(&ids, 4, TruncationSide::Left), ids);
        assert!(shortened(&ids, 0, TruncationSide::Left).is_empty());
    }
}
