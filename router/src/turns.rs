//! Turns: the router's CPU time for long requests, shared among tenants.
//!
//! Reading a long body, validating its messages, rendering a conversation and tokenizing a text
//! take time that grows with the request. The requests of one tenant could take all threads that do
//! such work. Therefore each piece of work needs a turn, and the next turn goes to the tenant who
//! has waited for the most turns of others, and not to the request that came first.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millrace_scheduler::Tenant;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::oneshot;
use tokio::task::block_in_place;

/// Turns that several tenants share. Clones share the same turns.
#[derive(Debug, Clone)]
pub(crate) struct TenantTurns(Arc<Mutex<Queues>>);

#[derive(Debug)]
struct Queues {
    /// The number of turns that nobody has.
    free: usize,
    waiting: HashMap<Tenant, VecDeque<oneshot::Sender<Turn>>>,
    /// The tenants that wait, in the order of their next turns.
    order: VecDeque<Tenant>,
}

/// A turn. Dropping it gives it to the next tenant.
#[derive(Debug)]
pub(crate) struct Turn(Option<TenantTurns>);

impl TenantTurns {
    /// Creates this many turns, at least one.
    pub(crate) fn new(count: usize) -> Self {
        let queues = Queues { free: count.max(1), waiting: HashMap::new(), order: VecDeque::new() };
        TenantTurns(Arc::new(Mutex::new(queues)))
    }

    fn queues(&self) -> MutexGuard<'_, Queues> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a turn of a tenant.
    pub(crate) async fn take(&self, tenant: Tenant) -> Turn {
        let granted = {
            let mut queues = self.queues();
            match queues.free.checked_sub(1) {
                Some(free) => {
                    queues.free = free;
                    None
                }
                None => Some(queues.join(tenant)),
            }
        };
        match granted {
            None => Turn(Some(self.clone())),
            // A sender is dropped only with all turns, of which this future holds a clone.
            Some(granted) => granted.await.unwrap_or(Turn(None)),
        }
    }

    /// Waits for a turn of a tenant and runs `work`.
    pub(crate) async fn run<T>(&self, tenant: Tenant, work: impl FnOnce() -> T) -> T {
        self.take(tenant).await.run(work)
    }

    /// Gives a turn to the next request that still waits.
    fn pass_on(&self) {
        loop {
            let next = {
                let mut queues = self.queues();
                let next = queues.next();
                queues.free += usize::from(next.is_none());
                next
            };
            let Some(next) = next else { return };
            match next.send(Turn(Some(self.clone()))) {
                Ok(()) => return,
                // The client has left.
                Err(mut turn) => turn.0 = None,
            }
        }
    }
}

impl Turn {
    /// Runs `work` and ends the turn. Other tasks of this thread move to another thread meanwhile.
    pub(crate) fn run<T>(self, work: impl FnOnce() -> T) -> T {
        // A runtime with one thread has no other thread for them.
        match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
            Ok(RuntimeFlavor::MultiThread) => block_in_place(work),
            _ => work(),
        }
    }
}

impl Queues {
    fn join(&mut self, tenant: Tenant) -> oneshot::Receiver<Turn> {
        let (grant, granted) = oneshot::channel();
        let queue = self.waiting.entry(tenant.clone()).or_default();
        if queue.is_empty() {
            self.order.push_back(tenant);
        }
        queue.push_back(grant);
        granted
    }

    fn next(&mut self) -> Option<oneshot::Sender<Turn>> {
        while let Some(tenant) = self.order.pop_front() {
            let Some(queue) = self.waiting.get_mut(&tenant) else { continue };
            // A client that has left takes no turn.
            let next = std::iter::from_fn(|| queue.pop_front()).find(|grant| !grant.is_closed());
            if queue.is_empty() {
                self.waiting.remove(&tenant);
            } else {
                self.order.push_back(tenant);
            }
            if next.is_some() {
                return next;
            }
        }
        None
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(turns) = self.0.take() {
            turns.pass_on();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn tenants_have_turns_one_after_the_other() {
        let turns = TenantTurns::new(1);
        let tenant = |name: &str| Tenant::named(name);
        let mut held = Some(turns.take(tenant("many")).now_or_never().unwrap());
        let names = ["many", "many", "many", "few", "few"];
        let mut waiting: Vec<_> =
            names.iter().map(|name| (*name, Box::pin(turns.take(tenant(name))))).collect();
        assert!(waiting.iter_mut().all(|(_, turn)| turn.now_or_never().is_none()));
        // A client that leaves gives up its place.
        drop(waiting.remove(1));
        let mut order = Vec::new();
        while !waiting.is_empty() {
            drop(held.take());
            let next = waiting
                .iter_mut()
                .enumerate()
                .find_map(|(index, (_, turn))| Some((index, turn.now_or_never()?)));
            let (index, turn) = next.unwrap();
            order.push(waiting.remove(index).0);
            held = Some(turn);
        }
        assert_eq!(order, ["many", "few", "many", "few"]);
        drop(held);
        assert!(turns.take(tenant("few")).now_or_never().is_some(), "the turn is free again");
    }

    #[test]
    fn a_turn_that_nobody_receives_is_passed_on() {
        let turns = TenantTurns::new(1);
        let held = turns.take(Tenant::default()).now_or_never();
        let mut left = Box::pin(turns.take(Tenant::default()));
        assert!((&mut left).now_or_never().is_none());
        drop(held);
        drop(left);
        assert!(turns.take(Tenant::default()).now_or_never().is_some());
    }
}
