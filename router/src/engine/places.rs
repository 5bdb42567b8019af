//! Places that tenants share: of the requests in flight, of the queue, and of the way to it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use millrace_scheduler::Tenant;

/// How many times the limit tenants below their share may take together.
const MOST: usize = 2;

/// Places, and who holds them.
///
/// Anybody gets a place while fewer than a limit are held. Beyond it, a tenant still gets one while
/// it holds less than its share, which is the limit divided by the number of tenants that hold
/// places. So a tenant that comes late is not locked out by those that came before.
#[derive(Debug, Default)]
pub(crate) struct Places(Mutex<Held>);

#[derive(Debug, Default)]
struct Held {
    all: usize,
    by_tenant: HashMap<Tenant, usize>,
}

impl Held {
    /// Whether a tenant may take so many more places one after the other.
    fn allows(&self, tenant: &Tenant, more: usize, limit: usize) -> bool {
        let all = self.all.saturating_add(more);
        if more == 0 || all <= limit {
            return true;
        }
        let own = self.by_tenant.get(tenant).copied();
        let tenants = self.by_tenant.len() + usize::from(own.is_none());
        let share = (limit / tenants.max(1)).max(usize::from(limit > 0));
        own.unwrap_or(0).saturating_add(more) <= share && all <= limit.saturating_mul(MOST)
    }
}

impl Places {
    /// Takes a place for a tenant. Returns `None` if it may not have one.
    pub(crate) fn enter(self: &Arc<Self>, tenant: &Tenant, limit: usize) -> Option<Place> {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !held.allows(tenant, 1, limit) {
            return None;
        }
        held.all += 1;
        *held.by_tenant.entry(tenant.clone()).or_default() += 1;
        Some(Place { places: self.clone(), tenant: tenant.clone() })
    }

    /// Whether [`enter`](Self::enter) would accept the tenant so many times one after the other.
    pub(crate) fn has_room_for(&self, tenant: &Tenant, more: usize, limit: usize) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).allows(tenant, more, limit)
    }

    /// The number of places that are held.
    pub(crate) fn count(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).all
    }
}

/// A place that is held. It is given back when this is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    places: Arc<Places>,
    tenant: Tenant,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut held = self.places.0.lock().unwrap_or_else(PoisonError::into_inner);
        held.all -= 1;
        if let Some(own) = held.by_tenant.get_mut(&self.tenant) {
            *own -= 1;
            if *own == 0 {
                held.by_tenant.remove(&self.tenant);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tenant(number: u8) -> Tenant {
        Tenant::named(format!("key {number}"))
    }

    #[test]
    fn a_single_tenant_has_the_limit_exactly() {
        let places = Arc::new(Places::default());
        let held: Vec<_> = (0..20).filter_map(|_| places.enter(&tenant(0), 10)).collect();
        assert_eq!((held.len(), places.count()), (10, 10));
        assert!(places.enter(&tenant(0), 0).is_none());
    }

    #[test]
    fn a_tenant_that_comes_late_gets_its_share() {
        let places = Arc::new(Places::default());
        let enter = |number: u8| places.enter(&tenant(number), 10);
        let first: Vec<_> = (0..20).filter_map(|_| enter(0)).collect();
        let second: Vec<_> = (0..20).filter_map(|_| enter(1)).collect();
        assert_eq!((first.len(), second.len()), (10, 5));
        let third: Vec<_> = (0..20).filter_map(|_| enter(2)).collect();
        assert_eq!(third.len(), 3);
        // A tenant above its share waits until others have left.
        drop((first, second));
        assert_eq!(places.count(), 3);
        let again: Vec<_> = (0..20).filter_map(|_| enter(0)).collect();
        assert_eq!(again.len(), 7);
        drop((third, again));
        assert!(places.0.lock().unwrap().by_tenant.is_empty(), "tenants that have left take no memory");
    }

    proptest! {
        #[test]
        fn places_are_bounded_and_nobody_is_locked_out(
            limit in 1usize..12,
            steps in prop::collection::vec((0u8..40, any::<bool>(), 1usize..4), 1..200),
        ) {
            let places = Arc::new(Places::default());
            let mut held: Vec<(u8, Place)> = Vec::new();
            for (number, enters, more) in steps {
                if !enters {
                    held.retain(|(holder, _)| *holder != number);
                    continue;
                }
                let fits = places.has_room_for(&tenant(number), more, limit);
                let own = held.iter().filter(|(holder, _)| *holder == number).count();
                let before = held.len();
                held.extend((0..more).filter_map(|_| Some((number, places.enter(&tenant(number), limit)?))));
                prop_assert_eq!(fits, held.len() == before + more);
                prop_assert!(places.count() == held.len() && held.len() <= 2 * limit);
                // A tenant without a place gets one unless tenants below their shares have all.
                prop_assert!(own > 0 || held.len() > before || before == 2 * limit);
            }
        }
    }
}
