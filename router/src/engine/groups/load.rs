//! The work that a group of shards has.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The work of a request beside its prompt, in tokens of a prompt: how long its answer will be is
/// not known, and a step is shared by all answers.
pub(super) const ANSWER: usize = 64;

/// The work of a group.
#[derive(Debug, Default)]
pub(super) struct GroupLoad {
    requests: AtomicUsize,
    /// Tokens of the prompts of requests that have not started.
    prompt_tokens: AtomicUsize,
}

impl GroupLoad {
    /// The work, in tokens of prompts.
    pub(super) fn work(&self) -> usize {
        let answers = self.requests.load(Ordering::Relaxed).saturating_mul(ANSWER);
        answers.saturating_add(self.prompt_tokens.load(Ordering::Relaxed))
    }

    /// Counts a request of which so many tokens must be computed before its next token.
    pub(super) fn enter(self: &Arc<Self>, tokens: usize) -> GroupPlace {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.prompt_tokens.fetch_add(tokens, Ordering::Relaxed);
        GroupPlace { load: self.clone(), tokens }
    }
}

/// Counts a request as work of a group until it is dropped.
#[derive(Debug)]
pub(in crate::engine) struct GroupPlace {
    load: Arc<GroupLoad>,
    /// The tokens that count.
    tokens: usize,
}

impl GroupPlace {
    /// Notes that the request has left the queue.
    pub(in crate::engine) fn start(&mut self) {
        self.load.prompt_tokens.fetch_sub(std::mem::take(&mut self.tokens), Ordering::Relaxed);
    }

    #[cfg(test)]
    pub(super) fn is_of(&self, load: &Arc<GroupLoad>) -> bool {
        Arc::ptr_eq(&self.load, load)
    }
}

impl Drop for GroupPlace {
    fn drop(&mut self) {
        self.start();
        self.load.requests.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_counted_until_it_is_done() {
        let load = Arc::new(GroupLoad::default());
        let (mut first, second) = (load.enter(100), load.enter(7));
        assert_eq!(load.work(), 107 + 2 * ANSWER);
        first.start();
        first.start();
        assert_eq!(load.work(), 7 + 2 * ANSWER);
        drop(second);
        drop(first);
        assert_eq!(load.work(), 0);
    }
}
