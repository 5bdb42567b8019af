//! Guesses of the next tokens of a sequence from what it repeats.
//!
//! Code that is edited, documents that are summarized and lists repeat parts of what was there
//! before (Saxena, "Prompt Lookup Decoding", 2023). The drafter finds the place where the last
//! tokens stood before, in the sequence or else in [earlier answers](super::earlier_answers), and
//! guesses that the sequence goes on as it did there. It counts how often such a guess would have
//! been right, whether the guess was used or not.

use std::collections::HashMap;

use super::acceptance::Acceptance;
use super::cache::BlockHash;
use super::earlier_answers::{EarlierAnswers, EarlierPlace, GRAM};

/// The share of right guesses of a sequence that has made none.
const EXPECTED: f64 = 0.5;

/// The answers of other sequences that a sequence may look into.
#[derive(Debug, Clone, Copy)]
pub(super) struct Earlier<'a> {
    /// All of them.
    pub(super) answers: &'a EarlierAnswers,
    /// The root of the sequence.
    pub(super) root: BlockHash,
}

impl Earlier<'_> {
    fn find(self, tokens: &[u32]) -> Option<Source> {
        self.answers.find(self.root, tokens).map(Source::Earlier)
    }
}

/// The place of the token that is expected next.
#[derive(Debug)]
enum Source {
    /// In the sequence itself.
    Own(usize),
    /// In an answer of another sequence.
    Earlier(EarlierPlace),
}

impl Source {
    /// The token at this place of the sequence with these tokens.
    fn token(&self, tokens: &[u32]) -> Option<u32> {
        match self {
            Source::Own(place) => tokens.get(*place).copied(),
            Source::Earlier(place) => place.rest().first().copied(),
        }
    }

    /// The place after this one, if there is one.
    fn next(self) -> Option<Source> {
        match self {
            Source::Own(place) => Some(Source::Own(place + 1)),
            Source::Earlier(place) => place.next().map(Source::Earlier),
        }
    }
}

/// The repetitions in one sequence.
#[derive(Debug, Default)]
pub(super) struct Drafter {
    /// The place after the last occurrence of these tokens.
    places: HashMap<[u32; GRAM], u32>,
    /// Number of tokens of the sequence that have been read.
    read: usize,
    source: Option<Source>,
    acceptance: Acceptance,
}

impl Drafter {
    /// Reads up to `most` further tokens of the sequence, and returns how many it has read.
    /// Guesses count from position `generated` on, and earlier answers matter from there on.
    pub(super) fn read(
        &mut self,
        tokens: &[u32],
        generated: usize,
        most: usize,
        earlier: Earlier<'_>,
    ) -> usize {
        let first = self.read;
        let end = tokens.len().min(first + most);
        for place in first..end {
            let guess = self.source.take();
            let is_right = guess.as_ref().is_some_and(|source| source.token(tokens) == Some(tokens[place]));
            if guess.is_some() && place >= generated {
                self.acceptance.note(is_right);
            }
            let before = self.note(&tokens[..=place]);
            self.source = guess.filter(|_| is_right).and_then(Source::next).or(before.map(Source::Own));
            if self.source.is_none() && place + 1 >= generated {
                self.source = earlier.find(&tokens[..=place]);
            }
        }
        self.read = end;
        end - first
    }

    /// Notes where the last tokens of `tokens` end, and returns where they ended before.
    fn note(&mut self, tokens: &[u32]) -> Option<usize> {
        let gram = tokens.last_chunk::<GRAM>()?;
        self.places.insert(*gram, tokens.len() as u32).map(|place| place as usize)
    }

    /// The share of right guesses, as far as it is known.
    pub(super) fn confidence(&self) -> f64 {
        self.acceptance.share(EXPECTED)
    }

    /// Whether the tokens are expected to go on as they did before.
    pub(super) fn is_ready(&self, tokens: &[u32]) -> bool {
        self.read == tokens.len() && self.source.is_some()
    }

    /// Number of guesses that can be made.
    pub(super) fn most_guesses(&self) -> usize {
        match &self.source {
            None => 0,
            Some(Source::Own(_)) => usize::MAX,
            Some(Source::Earlier(place)) => place.rest().len(),
        }
    }

    /// Guesses of the next tokens. A place near the end of the sequence stands for a period.
    pub(super) fn guesses<'a>(&'a self, tokens: &'a [u32]) -> impl Iterator<Item = u32> + use<'a> {
        let (once, again): (&[u32], &[u32]) = match &self.source {
            Some(Source::Own(place)) if self.is_ready(tokens) => (&[], &tokens[*place..]),
            Some(Source::Earlier(place)) if self.is_ready(tokens) => (place.rest(), &[]),
            _ => (&[], &[]),
        };
        once.iter().chain(again.iter().cycle()).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::BlockHashes;

    fn root() -> BlockHash {
        BlockHashes::new(None, None, None).root()
    }

    fn read_beside(tokens: &[u32], generated: usize, answers: &EarlierAnswers) -> Drafter {
        let mut drafter = Drafter::default();
        let earlier = Earlier { answers, root: root() };
        assert_eq!(drafter.read(tokens, generated, usize::MAX, earlier), tokens.len());
        drafter
    }

    fn read(tokens: &[u32], generated: usize) -> Drafter {
        read_beside(tokens, generated, &EarlierAnswers::default())
    }

    fn guesses(tokens: &[u32]) -> Vec<u32> {
        read(tokens, 0).guesses(tokens).take(5).collect()
    }

    #[test]
    fn tokens_are_expected_to_go_on_as_they_did_before() {
        assert_eq!(guesses(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3]), [4, 5, 6, 7, 8]);
        assert_eq!(guesses(&[1, 2, 3, 4, 9, 1, 2, 3, 5, 9, 1, 2, 3]), [5, 9, 1, 2, 3], "the last place");
        assert_eq!(guesses(&[7, 8, 7, 8, 7]), [8, 7, 8, 7, 8], "a period");
        assert_eq!(guesses(&[1, 2, 3, 4, 1, 2]), [], "two tokens are too few");
        assert_eq!(guesses(&[]), []);
    }

    #[test]
    fn a_right_guess_stays_at_its_place() {
        // After the second 1 2 3 4 the place is the one behind the first, although 2 3 4 stood
        // later.
        let tokens = [1, 2, 3, 4, 5, 8, 2, 3, 4, 6, 1, 2, 3, 4];
        assert_eq!(read(&tokens, 0).guesses(&tokens).next(), Some(5));
    }

    #[test]
    fn tokens_can_be_read_in_parts() {
        let tokens: Vec<u32> = (0..200).map(|n| n * n % 13).collect();
        let whole = read(&tokens, 50);
        let mut parts = Drafter::default();
        for most in [0, 1, 2, 50, 100, 100] {
            assert!(!parts.is_ready(&tokens));
            let answers = EarlierAnswers::default();
            parts.read(&tokens, 50, most, Earlier { answers: &answers, root: root() });
        }
        assert!(parts.is_ready(&tokens));
        assert!(whole.guesses(&tokens).take(20).eq(parts.guesses(&tokens).take(20)));
        assert_eq!(whole.confidence().to_bits(), parts.confidence().to_bits());
    }

    #[test]
    fn confidence_follows_the_guesses_in_generated_tokens() {
        let repeated: Vec<u32> = (0..300).map(|n| n % 30).collect();
        assert_eq!(read(&repeated, 300).confidence(), 0.5);
        assert!(read(&repeated, 100).confidence() > 0.9);
        // Each pair of periods differs in the token after the gram.
        let misleading: Vec<u32> = (0..300).map(|n| if n % 4 == 3 { 100 + n } else { n % 4 }).collect();
        assert!(read(&misleading, 100).confidence() < 0.1);
    }

    #[test]
    fn what_the_sequence_does_not_repeat_is_looked_for_in_earlier_answers() {
        let mut answers = EarlierAnswers::new(100);
        answers.add(root(), &[1, 2, 3, 4, 5, 6, 7], 3);
        answers.read(100);
        let next = |tokens: &[u32], generated| -> Vec<u32> {
            let drafter = read_beside(tokens, generated, &answers);
            let guesses: Vec<u32> = drafter.guesses(tokens).take(9).collect();
            assert_eq!(guesses.len(), drafter.most_guesses().min(9));
            guesses
        };
        assert_eq!(next(&[9, 1, 2, 3], 4), [4, 5, 6, 7], "the first token of an answer");
        assert_eq!(next(&[9, 1, 2, 3, 4, 5], 4), [6, 7], "the place stays");
        assert_eq!(next(&[9, 1, 2, 3, 4, 5, 6, 7], 4), [], "the answer ends");
        assert_eq!(next(&[1, 2, 3, 8, 9, 1, 2, 3], 8)[..2], [8, 9], "the sequence itself comes first");
        assert_eq!(next(&[9, 1, 2, 3, 8], 4), [], "another token");
        let drafter = read_beside(&[1, 2, 3, 4, 5, 6], 3, &answers);
        assert!(drafter.confidence() > 0.75, "three of three");
        let unused = read_beside(&[1, 2, 3, 4, 5, 6], 6, &answers);
        assert_eq!(unused.confidence(), 0.5, "guesses in the prompt do not count");
    }
}
