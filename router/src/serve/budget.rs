//! How much memory the bodies of all requests may take together.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// The time that a body has when all the memory for bodies is taken, if its own limit is not shorter.
const SHORTEST: Duration = Duration::from_secs(1);

/// Bytes for the bodies of all requests that are being read or looked into.
#[derive(Debug)]
pub(super) struct BodyBudget {
    total: usize,
    used: AtomicUsize,
}

impl BodyBudget {
    pub(super) fn new(total: usize) -> Arc<Self> {
        Arc::new(BodyBudget { total, used: AtomicUsize::new(0) })
    }

    /// Whether a body of so many bytes would fit now.
    pub(super) fn has_room_for(&self, bytes: usize) -> bool {
        bytes <= self.total.saturating_sub(self.used.load(Ordering::Relaxed))
    }

    /// How long a body may take whose limit is `limit` in quiet times. When more than half of the memory is taken the time
    /// shrinks, so that slow clients cannot hold all of it.
    pub(super) fn time_limit(&self, limit: Duration) -> Duration {
        let half = self.total / 2;
        let beyond = self.used.load(Ordering::Relaxed).saturating_sub(half) as f64;
        let free = 1.0 - (beyond / (self.total - half).max(1) as f64).min(1.0);
        limit.mul_f64(free).max(SHORTEST.min(limit))
    }
}

/// One request's share, given back when dropped.
#[derive(Debug)]
pub(super) struct Charge {
    budget: Arc<BodyBudget>,
    bytes: AtomicUsize,
}

impl Charge {
    pub(super) fn new(budget: Arc<BodyBudget>) -> Self {
        Charge { budget, bytes: AtomicUsize::new(0) }
    }

    pub(super) fn budget(&self) -> &BodyBudget {
        &self.budget
    }

    /// Takes so many bytes more; false if there are not as many.
    #[must_use]
    pub(super) fn grow(&self, bytes: usize) -> bool {
        let fits = |used: usize| used.checked_add(bytes).filter(|used| *used <= self.budget.total);
        let taken = self.budget.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok();
        if taken {
            self.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        taken
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(*self.bytes.get_mut(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_is_bounded_and_given_back() {
        let budget = BodyBudget::new(100);
        let (first, second) = (Charge::new(budget.clone()), Charge::new(budget.clone()));
        assert!(first.grow(40) && first.grow(20) && second.grow(40));
        assert!(!second.grow(1) && !budget.has_room_for(1));
        drop(first);
        assert!(budget.has_room_for(60) && !budget.has_room_for(61));
        assert!(second.grow(60) && !second.grow(usize::MAX));
    }

    #[test]
    fn the_more_is_taken_the_less_time_there_is() {
        let (budget, limit) = (BodyBudget::new(100), Duration::from_secs(30));
        let charge = Charge::new(budget.clone());
        for (more, seconds) in [(0, 30), (50, 30), (25, 15), (25, 1)] {
            assert!(charge.grow(more));
            assert_eq!(budget.time_limit(limit), Duration::from_secs(seconds));
        }
        assert_eq!(budget.time_limit(Duration::from_millis(5)), Duration::from_millis(5));
    }
}
