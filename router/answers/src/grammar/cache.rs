//! A cache of compiled grammars and of refusals.
//!
//! A refused grammar may have cost seconds. The cache keeps the refusal, so that the same grammar
//! costs nothing when it is sent again.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::compiled::CompiledGrammar;
use super::error::GrammarError;

/// The number of compiled grammars that are kept.
const MAX_PARSERS: usize = 64;
/// The number of bytes of the compiled grammars that are kept.
const MAX_PARSER_BYTES: usize = 256 << 20;
/// The minimum number of bytes that a compiled grammar counts for. It covers the grammar's text and
/// memory that is not measured.
const MIN_PARSER_BYTES: usize = 256 << 10;
/// The number of refusals that are kept. Each has an error text of a few hundred bytes at most.
const MAX_REFUSALS: usize = 4096;
/// The time for which a refusal is kept.
const REFUSAL_TTL: Duration = Duration::from_secs(600);
/// The time for which a refusal is kept if its cause may have been a busy machine.
const TRANSIENT_REFUSAL_TTL: Duration = Duration::from_secs(30);

/// Identifies a grammar. Nobody can construct two grammars with the same key, because the hash is
/// keyed with random numbers of this process.
pub(super) type GrammarKey = u128;

/// Computes keys.
#[derive(Debug, Default)]
pub(super) struct GrammarKeys(RandomState, RandomState);

impl GrammarKeys {
    /// Returns the key of a grammar with this serialized form.
    pub(super) fn of(&self, text: &[u8]) -> GrammarKey {
        u128::from(self.0.hash_one(text)) << 64 | u128::from(self.1.hash_one(text))
    }
}

/// The result of compiling a grammar.
pub(super) type CompileOutcome = Result<Arc<CompiledGrammar>, GrammarError>;

/// The most recent results by key, in bounded memory.
#[derive(Debug, Default)]
pub(super) struct GrammarCache {
    parsers: LruMap<Arc<CompiledGrammar>>,
    refusals: LruMap<(GrammarError, Instant)>,
    parser_bytes: usize,
}

impl GrammarCache {
    /// Returns the result for a grammar if it is known.
    pub(super) fn get(&mut self, key: GrammarKey) -> Option<CompileOutcome> {
        if let Some(compiled) = self.parsers.get(key) {
            return Some(Ok(compiled.clone()));
        }
        let (error, until) = self.refusals.get(key)?;
        if *until > Instant::now() {
            return Some(Err(error.clone()));
        }
        self.refusals.remove(key);
        None
    }

    /// Keeps a compiled grammar and evicts the least recently used ones.
    pub(super) fn keep(&mut self, key: GrammarKey, compiled: &Arc<CompiledGrammar>) {
        self.parser_bytes += cost(compiled);
        if let Some(before) = self.parsers.insert(key, compiled.clone()) {
            self.parser_bytes -= cost(&before);
        }
        while self.parsers.len() > MAX_PARSERS || self.parser_bytes > MAX_PARSER_BYTES {
            let Some(oldest) = self.parsers.pop_oldest() else { break };
            self.parser_bytes -= cost(&oldest);
        }
    }

    /// Keeps a refusal. If another attempt may succeed, the refusal is kept for a short time only.
    pub(super) fn refuse(&mut self, key: GrammarKey, error: &GrammarError, may_succeed_later: bool) {
        let until = Instant::now() + if may_succeed_later { TRANSIENT_REFUSAL_TTL } else { REFUSAL_TTL };
        self.refusals.insert(key, (error.clone(), until));
        while self.refusals.len() > MAX_REFUSALS {
            self.refusals.pop_oldest();
        }
    }
}

fn cost(compiled: &CompiledGrammar) -> usize {
    compiled.bytes().max(MIN_PARSER_BYTES)
}

/// A map that knows the order in which its values were last used.
#[derive(Debug)]
struct LruMap<T> {
    values: HashMap<GrammarKey, (u64, T)>,
    by_use: BTreeMap<u64, GrammarKey>,
    clock: u64,
}

impl<T> Default for LruMap<T> {
    fn default() -> Self {
        LruMap { values: HashMap::new(), by_use: BTreeMap::new(), clock: 0 }
    }
}

impl<T> LruMap<T> {
    fn len(&self) -> usize {
        self.values.len()
    }

    fn get(&mut self, key: GrammarKey) -> Option<&T> {
        let (used, value) = self.values.get_mut(&key)?;
        self.by_use.remove(used);
        self.clock += 1;
        *used = self.clock;
        self.by_use.insert(self.clock, key);
        Some(value)
    }

    fn insert(&mut self, key: GrammarKey, value: T) -> Option<T> {
        self.clock += 1;
        self.by_use.insert(self.clock, key);
        let (used, before) = self.values.insert(key, (self.clock, value))?;
        self.by_use.remove(&used);
        Some(before)
    }

    fn remove(&mut self, key: GrammarKey) -> Option<T> {
        let (used, value) = self.values.remove(&key)?;
        self.by_use.remove(&used);
        Some(value)
    }

    fn pop_oldest(&mut self) -> Option<T> {
        let (_, key) = self.by_use.pop_first()?;
        self.values.remove(&key).map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_value_is_evicted_first() {
        let mut recent = LruMap::default();
        for key in 0..4 {
            assert_eq!(recent.insert(key, key), None);
        }
        assert_eq!(recent.get(0), Some(&0));
        assert_eq!(recent.insert(1, 10), Some(1));
        assert_eq!(recent.remove(3), Some(3));
        assert_eq!((recent.pop_oldest(), recent.pop_oldest()), (Some(2), Some(0)));
        assert_eq!((recent.pop_oldest(), recent.pop_oldest()), (Some(10), None));
        assert!(recent.by_use.is_empty() && recent.values.is_empty());
    }

    #[test]
    fn refusals_are_bounded_in_number() {
        let mut cache = GrammarCache::default();
        let error = GrammarError::Invalid("no".into());
        for key in 0..2 * MAX_REFUSALS as GrammarKey {
            cache.refuse(key, &error, false);
        }
        assert_eq!(cache.refusals.len(), MAX_REFUSALS);
        assert!(cache.get(0).is_none());
        assert_eq!(cache.get(2 * MAX_REFUSALS as GrammarKey - 1).unwrap().unwrap_err(), error);
    }
}
