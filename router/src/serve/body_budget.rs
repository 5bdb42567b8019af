//! The memory for the request bodies of all requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// The time limit of a body when all memory for bodies is in use, unless its own limit is shorter.
const MIN_TIME_LIMIT: Duration = Duration::from_secs(1);

/// Counts the bytes of the request bodies that are read or processed.
#[derive(Debug)]
pub(super) struct BodyBudget {
    total: usize,
    used: AtomicUsize,
}

impl BodyBudget {
    pub(super) fn new(total: usize) -> Arc<Self> {
        Arc::new(BodyBudget { total, used: AtomicUsize::new(0) })
    }

    /// Whether a body of this many bytes would fit now.
    pub(super) fn has_room_for(&self, bytes: usize) -> bool {
        bytes <= self.total.saturating_sub(self.used.load(Ordering::Relaxed))
    }

    /// Returns the current time limit of a body whose configured limit is `limit`. The time shrinks
    /// when more than half of the memory is in use, so that slow clients cannot hold all of it.
    pub(super) fn time_limit(&self, limit: Duration) -> Duration {
        let half = self.total / 2;
        let beyond = self.used.load(Ordering::Relaxed).saturating_sub(half) as f64;
        let free = 1.0 - (beyond / (self.total - half).max(1) as f64).min(1.0);
        limit.mul_f64(free).max(MIN_TIME_LIMIT.min(limit))
    }
}

/// The share of one request. It is returned when this is dropped.
#[derive(Debug)]
pub(super) struct BodyCharge {
    budget: Arc<BodyBudget>,
    bytes: AtomicUsize,
}

impl BodyCharge {
    pub(super) fn new(budget: Arc<BodyBudget>) -> Self {
        BodyCharge { budget, bytes: AtomicUsize::new(0) }
    }

    pub(super) fn budget(&self) -> &BodyBudget {
        &self.budget
    }

    /// Takes this many more bytes. Returns false if fewer are free.
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

impl Drop for BodyCharge {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(*self.bytes.get_mut(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_is_bounded_and_returned() {
        let budget = BodyBudget::new(100);
        let (first, second) = (BodyCharge::new(budget.clone()), BodyCharge::new(budget.clone()));
        assert!(first.grow(40) && first.grow(20) && second.grow(40));
        assert!(!second.grow(1) && !budget.has_room_for(1));
        drop(first);
        assert!(budget.has_room_for(60) && !budget.has_room_for(61));
        assert!(second.grow(60) && !second.grow(usize::MAX));
    }

    #[test]
    fn time_limits_shrink_as_the_budget_fills() {
        let (budget, limit) = (BodyBudget::new(100), Duration::from_secs(30));
        let charge = BodyCharge::new(budget.clone());
        for (more, seconds) in [(0, 30), (50, 30), (25, 15), (25, 1)] {
            assert!(charge.grow(more));
            assert_eq!(budget.time_limit(limit), Duration::from_secs(seconds));
        }
        assert_eq!(budget.time_limit(Duration::from_millis(5)), Duration::from_millis(5));
    }
}
