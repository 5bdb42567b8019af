//! The number of requests with each adapter, for routers that send a request to a server on which
//! its adapter is in use.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millrace_scheduler::AdapterId;

/// Counts the requests with each adapter.
#[derive(Debug, Default)]
pub(super) struct AdapterLoad(Mutex<BTreeMap<AdapterId, Requests>>);

/// The requests with one adapter.
#[derive(Debug, Default)]
struct Requests {
    waiting: usize,
    running: usize,
}

/// The adapters that requests have, in the order of their numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AdaptersInUse {
    /// Adapters of running requests.
    pub running: Vec<AdapterId>,
    /// Adapters of requests that wait for their first step.
    pub waiting: Vec<AdapterId>,
}

impl AdapterLoad {
    /// Counts a request as waiting until it starts, and as running from then on until the result is
    /// dropped.
    pub(super) fn enter(self: &Arc<Self>, adapter: AdapterId) -> AdapterPermit {
        self.requests().entry(adapter).or_default().waiting += 1;
        AdapterPermit { load: self.clone(), adapter, runs: false }
    }

    /// Returns the adapters of the requests.
    pub(super) fn in_use(&self) -> AdaptersInUse {
        let requests = self.requests();
        let with = |is_counted: fn(&Requests) -> bool| {
            let counted = requests.iter().filter(|(_, requests)| is_counted(requests));
            counted.map(|(&adapter, _)| adapter).collect()
        };
        AdaptersInUse { running: with(|one| one.running > 0), waiting: with(|one| one.waiting > 0) }
    }

    fn requests(&self) -> MutexGuard<'_, BTreeMap<AdapterId, Requests>> {
        // Nothing panics while it holds the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts one request for its adapter until it is dropped.
#[derive(Debug)]
pub(super) struct AdapterPermit {
    load: Arc<AdapterLoad>,
    adapter: AdapterId,
    runs: bool,
}

impl AdapterPermit {
    /// The adapter.
    pub(super) fn adapter(&self) -> AdapterId {
        self.adapter
    }

    /// Notes that the request has left the queue.
    pub(super) fn start(&mut self) {
        if !std::mem::replace(&mut self.runs, true)
            && let Some(requests) = self.load.requests().get_mut(&self.adapter)
        {
            requests.waiting -= 1;
            requests.running += 1;
        }
    }
}

impl Drop for AdapterPermit {
    fn drop(&mut self) {
        let mut requests = self.load.requests();
        if let Some(one) = requests.get_mut(&self.adapter) {
            let count = if self.runs { &mut one.running } else { &mut one.waiting };
            *count -= 1;
            // Numbers of adapters are never used again.
            if one.waiting + one.running == 0 {
                requests.remove(&self.adapter);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_wait_then_run_then_leave() {
        let load = Arc::new(AdapterLoad::default());
        let in_use = |running: &[u32], waiting: &[u32]| {
            let [running, waiting] =
                [running, waiting].map(|ids| ids.iter().map(|&id| AdapterId(id)).collect());
            AdaptersInUse { running, waiting }
        };
        let mut first = load.enter(AdapterId(2));
        let second = load.enter(AdapterId(2));
        let third = load.enter(AdapterId(0));
        assert_eq!(load.in_use(), in_use(&[], &[0, 2]));
        first.start();
        first.start();
        assert_eq!(load.in_use(), in_use(&[2], &[0, 2]));
        drop(second);
        assert_eq!(load.in_use(), in_use(&[2], &[0]));
        drop((first, third));
        assert_eq!(load.in_use(), in_use(&[], &[]));
    }
}
