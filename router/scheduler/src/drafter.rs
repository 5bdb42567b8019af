//! Guesses of the next tokens of a sequence from what it repeats.
//!
//! Code that is edited, documents that are summarized and lists repeat parts of what was there
//! before (Saxena, "Prompt Lookup Decoding", 2023). The drafter finds the place where the last
//! tokens stood before, and guesses that the sequence goes on as it did there. It counts how often
//! such a guess would have been right, whether the guess was used or not.

use std::collections::HashMap;

/// Number of tokens that must have stood together before.
const GRAM: usize = 3;

/// Factor by which the weight of a guess falls with each later one.
const MEMORY: f64 = 0.9;

/// The repetitions in one sequence.
#[derive(Debug, Default)]
pub(super) struct Drafter {
    /// The place after the last occurrence of these tokens.
    places: HashMap<[u32; GRAM], u32>,
    /// Number of tokens of the sequence that have been read.
    read: usize,
    /// The place of the token that is expected next.
    source: Option<usize>,
    /// Weighted number of guesses, and of right ones.
    guesses: f64,
    right: f64,
}

impl Drafter {
    /// Reads up to `most` further tokens of the sequence, and returns how many it has read.
    /// Guesses count from position `generated` on.
    pub(super) fn read(&mut self, tokens: &[u32], generated: usize, most: usize) -> usize {
        let first = self.read;
        let end = tokens.len().min(first + most);
        for place in first..end {
            let guess = self.source.take();
            let is_right = guess.is_some_and(|source| tokens[source] == tokens[place]);
            if guess.is_some() && place >= generated {
                self.guesses = MEMORY * self.guesses + 1.0;
                self.right = MEMORY * self.right + f64::from(u8::from(is_right));
            }
            let before = self.note(&tokens[..=place]);
            self.source = guess.filter(|_| is_right).map(|source| source + 1).or(before);
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
        (self.right + 1.0) / (self.guesses + 2.0)
    }

    /// Whether the tokens are expected to go on as they did before.
    pub(super) fn is_ready(&self, tokens: &[u32]) -> bool {
        self.read == tokens.len() && self.source.is_some()
    }

    /// Guesses of the next tokens, without end. A place near the end of the sequence stands for a
    /// period.
    pub(super) fn guesses<'a>(&self, tokens: &'a [u32]) -> impl Iterator<Item = u32> + use<'a> {
        let source = self.source.filter(|_| self.is_ready(tokens)).unwrap_or(tokens.len());
        tokens[source..].iter().copied().cycle()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(tokens: &[u32], generated: usize) -> Drafter {
        let mut drafter = Drafter::default();
        assert_eq!(drafter.read(tokens, generated, usize::MAX), tokens.len());
        drafter
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
            parts.read(&tokens, 50, most);
        }
        assert!(parts.is_ready(&tokens));
        assert_eq!((whole.source, whole.right), (parts.source, parts.right));
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
}
