//! The state of one request in its grammar.

use std::sync::Arc;
use std::time::Duration;

use llguidance::TokenParser;

use super::compiled::CompiledGrammar;
use super::llguidance_support::{catch_panics, error_summary, mask_of, next_mask, parser_bytes};
use super::parser_memory::ParserMemoryShare;
use super::repeated_keys::KeyTracker;
use crate::{Constraint, Mask};
use millrace_text::thread_time;

/// The size of an item of the parser's table in bytes.
const BYTES_PER_ITEM: usize = 16;

/// Follows the tokens of one request in its grammar.
pub struct GrammarMatcher {
    grammar: Arc<CompiledGrammar>,
    /// Created with the first token, off the path of admission. It shares no state with other
    /// requests, so that expensive work of one request does not slow down the others.
    parser: Option<TokenParser>,
    memory: ParserMemoryShare,
    /// The keys of the answer's objects.
    keys: KeyTracker,
    /// The number of items that the request's tokens have added to the parser's table.
    items: usize,
}

impl GrammarMatcher {
    /// Creates a matcher at the beginning of the grammar.
    pub fn new(grammar: Arc<CompiledGrammar>) -> Self {
        let memory = grammar.memory().share();
        GrammarMatcher { grammar, parser: None, memory, keys: KeyTracker::default(), items: 0 }
    }

    fn next(&mut self, token: u32) -> anyhow::Result<toktrie::SimpleVob> {
        let parser = self.parser.get_or_insert_with(|| self.grammar.parser());
        catch_panics(|| {
            let before = parser.parser.stats().all_items;
            let backtracked = parser.consume_token(token)?;
            anyhow::ensure!(backtracked == 0, "the parser went back");
            parser.check_stop()?;
            self.items += parser.parser.stats().all_items.saturating_sub(before);
            let mut allowed = next_mask(parser)?;
            if let Some(quotes) = self.grammar.quotes() {
                let trie = parser.token_env.tok_trie();
                self.keys.push(trie.token(token));
                self.keys.exclude_repeated(&mut allowed, quotes, trie);
            }
            Ok(allowed)
        })
    }
}

impl Constraint for GrammarMatcher {
    fn advance(&mut self, token: u32) -> Result<Mask, String> {
        let since = thread_time();
        let advanced = self.next(token);
        self.grammar.observe(thread_time().saturating_sub(since));
        let mask = advanced.map_err(|error| error_summary(&error))?;
        let bytes = self.parser.as_ref().map_or(0, parser_bytes) + self.items * BYTES_PER_ITEM;
        self.memory.set(bytes)?;
        mask_of(&mask, self.grammar.vocab_size())
            .ok_or_else(|| "grammar has no way on in this vocabulary".into())
    }

    fn expected_cost(&self) -> Duration {
        self.grammar.mask_cost()
    }
}
