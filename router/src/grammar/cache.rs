//! What is known of the grammars that were compiled last: the parsers, and the refusals.
//!
//! A refused grammar may have cost seconds. It is remembered, so that it costs nothing when it comes again.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Compiled, GrammarError};

/// Parsers that are kept.
const MOST_PARSERS: usize = 64;
/// Bytes of the parsers that are kept.
const MOST_PARSER_BYTES: usize = 256 << 20;
/// What a parser counts for at least: its grammar, and what is not measured.
const LEAST_PARSER_BYTES: usize = 256 << 10;
/// Refusals that are remembered. Each holds a text of some hundred bytes at most.
const MOST_REFUSALS: usize = 4096;
/// How long a refusal is remembered.
const REFUSED_FOR: Duration = Duration::from_secs(600);
/// How long it is remembered where the reason may have been a busy machine.
const UNLUCKY_FOR: Duration = Duration::from_secs(30);

/// Stands for a grammar. Nobody can find two grammars with the same key, because the hash is keyed with random
/// numbers of this process.
pub(super) type Key = u128;

/// Makes keys.
#[derive(Debug, Default)]
pub(super) struct Keys(RandomState, RandomState);

impl Keys {
    /// The key of a grammar that is written like this.
    pub(super) fn of(&self, text: &[u8]) -> Key {
        u128::from(self.0.hash_one(text)) << 64 | u128::from(self.1.hash_one(text))
    }
}

/// What a grammar came to.
pub(super) type Outcome = Result<Arc<Compiled>, GrammarError>;

/// The last outcomes by key, in bounded memory.
#[derive(Debug, Default)]
pub(super) struct Cache {
    parsers: Recent<Arc<Compiled>>,
    refusals: Recent<(GrammarError, Instant)>,
    parser_bytes: usize,
}

impl Cache {
    /// What is known of a grammar.
    pub(super) fn get(&mut self, key: Key) -> Option<Outcome> {
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

    /// Keeps a parser, and forgets those that were used longest ago.
    pub(super) fn keep(&mut self, key: Key, compiled: &Arc<Compiled>) {
        self.parser_bytes += cost(compiled);
        if let Some(before) = self.parsers.insert(key, compiled.clone()) {
            self.parser_bytes -= cost(&before);
        }
        while self.parsers.len() > MOST_PARSERS || self.parser_bytes > MOST_PARSER_BYTES {
            let Some(oldest) = self.parsers.pop_oldest() else { break };
            self.parser_bytes -= cost(&oldest);
        }
    }

    /// Remembers a refusal; for a short time only if another attempt may come out otherwise.
    pub(super) fn refuse(&mut self, key: Key, error: &GrammarError, unlucky: bool) {
        let until = Instant::now() + if unlucky { UNLUCKY_FOR } else { REFUSED_FOR };
        self.refusals.insert(key, (error.clone(), until));
        while self.refusals.len() > MOST_REFUSALS {
            self.refusals.pop_oldest();
        }
    }
}

fn cost(compiled: &Compiled) -> usize {
    compiled.bytes().max(LEAST_PARSER_BYTES)
}

/// Values by key, in the order of their last use.
#[derive(Debug)]
struct Recent<T> {
    values: HashMap<Key, (u64, T)>,
    by_use: BTreeMap<u64, Key>,
    clock: u64,
}

impl<T> Default for Recent<T> {
    fn default() -> Self {
        Recent { values: HashMap::new(), by_use: BTreeMap::new(), clock: 0 }
    }
}

impl<T> Recent<T> {
    fn len(&self) -> usize {
        self.values.len()
    }

    fn get(&mut self, key: Key) -> Option<&T> {
        let (used, value) = self.values.get_mut(&key)?;
        self.by_use.remove(used);
        self.clock += 1;
        *used = self.clock;
        self.by_use.insert(self.clock, key);
        Some(value)
    }

    fn insert(&mut self, key: Key, value: T) -> Option<T> {
        self.clock += 1;
        self.by_use.insert(self.clock, key);
        let (used, before) = self.values.insert(key, (self.clock, value))?;
        self.by_use.remove(&used);
        Some(before)
    }

    fn remove(&mut self, key: Key) -> Option<T> {
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
    fn the_value_that_was_used_longest_ago_goes_first() {
        let mut recent = Recent::default();
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
        let mut cache = Cache::default();
        let error = GrammarError::Invalid("no".into());
        for key in 0..2 * MOST_REFUSALS as Key {
            cache.refuse(key, &error, false);
        }
        assert_eq!(cache.refusals.len(), MOST_REFUSALS);
        assert!(cache.get(0).is_none());
        assert_eq!(cache.get(2 * MOST_REFUSALS as Key - 1).unwrap().unwrap_err(), error);
    }
}
