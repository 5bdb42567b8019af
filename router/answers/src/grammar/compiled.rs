//! Compiled grammars.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use llguidance::TokenParser;

use super::parser_memory::ParserMemory;
use super::repeated_keys::QuoteTokens;
use super::schema::UnenforcedKeywords;
use crate::Mask;

/// A compiled grammar. Any number of requests can use it.
pub struct CompiledGrammar {
    /// A parser that is never advanced. Each request gets a copy.
    prototype: Mutex<TokenParser>,
    first: Mask,
    vocab_size: u32,
    bytes: usize,
    /// The counter for the memory of the parsers of requests.
    memory: ParserMemory,
    unenforced: UnenforcedKeywords,
    /// Set if objects of the answer may have keys that the grammar does not list.
    quotes: Option<Arc<QuoteTokens>>,
    /// The moving average over all requests of the CPU time of one mask, in nanoseconds.
    mask_cost: AtomicU64,
}

impl fmt::Debug for CompiledGrammar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Compiled").field("vocab_size", &self.vocab_size).finish_non_exhaustive()
    }
}

impl CompiledGrammar {
    /// Returns the tokens that may come first.
    pub fn first(&self) -> Mask {
        self.first.clone()
    }

    /// Returns the keywords of its schemas that it does not enforce.
    pub fn unenforced(&self) -> &UnenforcedKeywords {
        &self.unenforced
    }

    /// Returns the tokens that may complete a key, if keys may repeat in the grammar.
    pub(super) fn quotes(&self) -> Option<&QuoteTokens> {
        self.quotes.as_deref()
    }

    pub(super) fn vocab_size(&self) -> u32 {
        self.vocab_size
    }

    /// Returns the memory of the parser, which is about the initial memory of each request that
    /// uses the grammar.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn memory(&self) -> &ParserMemory {
        &self.memory
    }

    /// Returns a parser at the beginning of the grammar that shares no state with others.
    pub(super) fn parser(&self) -> TokenParser {
        self.prototype.lock().unwrap_or_else(PoisonError::into_inner).deep_clone()
    }

    /// Returns the expected CPU time of one mask.
    pub(super) fn mask_cost(&self) -> Duration {
        Duration::from_nanos(self.mask_cost.load(Ordering::Relaxed))
    }

    /// Records the CPU time of one mask.
    pub(super) fn observe(&self, cost: Duration) {
        let cost = cost.as_nanos() as u64;
        // Two concurrent requests may lose one observation, which is harmless.
        let before = self.mask_cost.load(Ordering::Relaxed);
        self.mask_cost.store(before - before / 8 + cost / 8, Ordering::Relaxed);
    }

    /// Creates a compiled grammar from a parser that has not consumed any token.
    pub(super) fn new(parser: TokenParser, parts: CompiledParts) -> Self {
        let CompiledParts { first, vocab_size, bytes, memory, unenforced, quotes, mask_cost } = parts;
        let mask_cost = AtomicU64::new(mask_cost.as_nanos() as u64);
        let prototype = Mutex::new(parser);
        CompiledGrammar { prototype, first, vocab_size, bytes, memory, unenforced, quotes, mask_cost }
    }
}

/// The properties of a compiled grammar besides its parser.
pub(super) struct CompiledParts {
    /// The tokens that may come first.
    pub(super) first: Mask,
    /// The number of tokens of the model.
    pub(super) vocab_size: u32,
    /// The memory of the parser.
    pub(super) bytes: usize,
    /// The counter of the memory of all requests' parsers.
    pub(super) memory: ParserMemory,
    /// Keywords of the grammar's schemas that the grammar does not enforce.
    pub(super) unenforced: UnenforcedKeywords,
    /// The tokens that may complete a key, if keys may repeat in the grammar.
    pub(super) quotes: Option<Arc<QuoteTokens>>,
    /// CPU time that the first mask took.
    pub(super) mask_cost: Duration,
}
