//! One request's way through a grammar, with bounds on the memory of all requests together.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use llguidance::TokenParser;

use super::Compiled;
use super::parser::{caught, described, next_mask, parser_bytes};
use crate::engine::{Constraint, Mask, thread_time};

/// Bytes that the parser of one request may have.
const MOST_BYTES: usize = 64 << 20;
/// Bytes that the parsers of all requests may have together.
const MOST_BYTES_TOGETHER: usize = 1 << 30;
/// Bytes of an item of the parser's table.
const BYTES_PER_ITEM: usize = 16;

/// Follows a grammar from its beginning.
pub struct Walk {
    grammar: Arc<Compiled>,
    /// Made with the first token, where there is time for it. No state is shared with others that follow the same grammar:
    /// the work of one may be a burden to itself only.
    parser: Option<TokenParser>,
    memory: Share,
    /// Items that its tokens have left in the parser's table.
    items: usize,
}

impl Walk {
    /// At the beginning.
    pub fn new(grammar: Arc<Compiled>) -> Self {
        let memory = grammar.memory().share();
        Walk { grammar, parser: None, memory, items: 0 }
    }

    fn next(&mut self, token: u32) -> anyhow::Result<toktrie::SimpleVob> {
        let parser = self.parser.get_or_insert_with(|| self.grammar.parser());
        caught(|| {
            let before = parser.parser.stats().all_items;
            let backtracked = parser.consume_token(token)?;
            anyhow::ensure!(backtracked == 0, "the parser went back");
            parser.check_stop()?;
            self.items += parser.parser.stats().all_items.saturating_sub(before);
            next_mask(parser)
        })
    }
}

impl Constraint for Walk {
    fn advance(&mut self, token: u32) -> Result<Mask, String> {
        let since = thread_time();
        let advanced = self.next(token);
        self.grammar.observe(thread_time().saturating_sub(since));
        let mask = advanced.map_err(|error| described(&error))?;
        let bytes = self.parser.as_ref().map_or(0, parser_bytes) + self.items * BYTES_PER_ITEM;
        self.memory.set(bytes)?;
        mask_of(&mask, self.grammar.vocab_size())
            .ok_or_else(|| "grammar has no way on in this vocabulary".into())
    }

    fn expected_cost(&self) -> Duration {
        self.grammar.mask_cost()
    }
}

/// The memory of the parsers of all requests. Clones count together.
#[derive(Debug, Clone, Default)]
pub(super) struct ParserMemory(Arc<Used>);

#[derive(Debug, Default)]
struct Used {
    bytes: AtomicUsize,
    /// Parsers that the bytes belong to.
    parsers: AtomicUsize,
}

impl ParserMemory {
    fn share(&self) -> Share {
        self.0.parsers.fetch_add(1, Ordering::Relaxed);
        Share { used: self.0.clone(), bytes: 0 }
    }

    /// Bytes of all parsers.
    #[cfg(test)]
    fn bytes(&self) -> usize {
        self.0.bytes.load(Ordering::Relaxed)
    }
}

/// The memory of one request's parser; it no longer counts when this is dropped.
#[derive(Debug)]
struct Share {
    used: Arc<Used>,
    bytes: usize,
}

impl Share {
    /// The parser has so many bytes now.
    ///
    /// # Errors
    /// Why the request cannot go on: its parser is too large, or all parsers together are and this one is larger
    /// than most.
    fn set(&mut self, bytes: usize) -> Result<(), String> {
        let others = self.used.bytes.fetch_sub(self.bytes, Ordering::Relaxed) - self.bytes;
        self.used.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.bytes = bytes;
        if bytes > MOST_BYTES {
            let most = MOST_BYTES >> 20;
            return Err(format!("grammar is too complex: its parser needs more than {most} MiB"));
        }
        let together = others + bytes;
        let average = together / self.used.parsers.load(Ordering::Relaxed).max(1);
        if together > MOST_BYTES_TOGETHER && bytes >= average {
            return Err(
                "grammar is too complex: the parsers of all requests have no more memory, and this one \
                        uses more than most"
                    .into(),
            );
        }
        Ok(())
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.used.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        self.used.parsers.fetch_sub(1, Ordering::Relaxed);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parsers_share_the_memory_and_give_it_back() {
        let memory = ParserMemory::default();
        let mut large = memory.share();
        assert!(large.set(MOST_BYTES + 1).is_err());
        let mut shares: Vec<Share> = (0..40).map(|_| memory.share()).collect();
        let results: Vec<_> = shares.iter_mut().map(|share| share.set(MOST_BYTES / 2)).collect();
        let refused = results.iter().filter(|result| result.is_err()).count();
        assert!(refused > 0 && refused < 20, "{refused}");
        // A small one is not at fault.
        let mut small = memory.share();
        assert_eq!(small.set(1 << 20), Ok(()));
        drop((large, shares));
        assert_eq!(memory.bytes(), 1 << 20);
        assert_eq!(small.set(0), Ok(()));
    }
}
