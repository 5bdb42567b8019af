//! The number of requests queued and running. The handles use it to refuse requests, and the event
//! loop updates it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use millrace_scheduler::{AdapterId, Tenant};

use super::account::AccountPermit;
use super::adapter_load::{AdapterLoad, AdapterPermit};
use super::adapters::HeldAdapter;
use super::groups::GroupPlace;
use super::places::{Place, Places};

/// Bounds on the requests that the engine accepts. A tenant below its share of the places may
/// exceed the first two, as [`Places`] describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdmissionBounds {
    /// Maximum number of requests queued or running.
    pub in_flight: usize,
    /// Maximum number of queued requests beyond those that could start at once.
    pub queued: usize,
    /// Maximum number of prompt tokens of all queued requests if none could start at once. An empty
    /// queue accepts any request that can run.
    pub queued_tokens: usize,
}

/// Maximum time that a refused client is told to wait.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(600);

/// Weight of a new interval in the moving average.
const NEW_WEIGHT: f64 = 0.1;

/// The requests queued and running.
#[derive(Debug)]
pub(super) struct Occupancy {
    bounds: AdmissionBounds,
    in_flight: Arc<Places>,
    queued: Arc<Places>,
    queued_tokens: AtomicUsize,
    /// The last report of each group of shards.
    groups: Box<[GroupPace]>,
    /// The requests with each adapter.
    pub(super) adapters: Arc<AdapterLoad>,
}

/// How fast a group of shards takes requests.
#[derive(Debug, Default)]
struct GroupPace {
    /// Number of sequences that could start at once, after the last plan.
    free_places: AtomicUsize,
    /// Mean time in microseconds between two requests that leave the queue; 0 if it is not known
    /// yet.
    interval_micros: AtomicU64,
}

impl Occupancy {
    /// The bounds are for all `groups` of shards together.
    pub(super) fn new(bounds: AdmissionBounds, groups: usize) -> Arc<Self> {
        Arc::new(Occupancy {
            bounds,
            in_flight: Arc::default(),
            queued: Arc::default(),
            queued_tokens: AtomicUsize::new(0),
            groups: (0..groups).map(|_| GroupPace::default()).collect(),
            adapters: Arc::default(),
        })
    }

    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.count()
    }

    /// Whether a tenant may have another request in flight.
    pub(super) fn has_place_for(&self, tenant: &Tenant) -> bool {
        self.in_flight.has_room_for(tenant, 1, self.bounds.in_flight)
    }

    /// Whether [`enter`](Self::enter) would accept so many requests of a tenant one after the
    /// other, if their prompts are short.
    pub(super) fn has_room_for(&self, tenant: &Tenant, requests: usize) -> bool {
        self.queued.has_room_for(tenant, requests, self.queue_limit())
            && self.in_flight.has_room_for(tenant, requests, self.bounds.in_flight)
    }

    /// Counts a request with a prompt of this many tokens. Returns `None` if the request exceeds
    /// the bounds. Handles on several threads may exceed the bound of the queue's tokens by as many
    /// requests as there are threads; the bounds of the requests are exact.
    pub(super) fn enter(self: &Arc<Self>, tenant: &Tenant, prompt: usize) -> Option<Permit> {
        let queued = self.queued.count();
        let tokens = self.queued_tokens.load(Ordering::Acquire).saturating_add(prompt);
        let too_long = queued > 0 && tokens > self.bounds.queued_tokens;
        if queued >= self.free_places() && too_long {
            return None;
        }
        let place = self.in_flight.enter(tenant, self.bounds.in_flight)?;
        let in_queue = self.queued.enter(tenant, self.queue_limit())?;
        self.queued_tokens.fetch_add(prompt, Ordering::AcqRel);
        let queued = Some(QueuePlace { _place: in_queue, tokens: prompt });
        Some(Permit {
            occupancy: self.clone(),
            queued,
            account: None,
            adapter: None,
            _held: None,
            group: None,
            _place: place,
        })
    }

    /// The number of requests that may be queued: those that could start at once, and those that
    /// may wait behind them.
    fn queue_limit(&self) -> usize {
        self.free_places().saturating_add(self.bounds.queued)
    }

    /// Estimated time until all queued requests have started, at the recent rate. A refused request
    /// may try again then.
    pub(super) fn retry_after(&self) -> Duration {
        let ahead = u32::try_from(self.queued.count()).unwrap_or(u32::MAX).saturating_add(1);
        self.start_interval().saturating_mul(ahead).clamp(Duration::from_secs(1), MAX_RETRY_AFTER)
    }

    /// Mean time between two requests that leave the queue, of all groups; zero if it is not known
    /// yet.
    fn start_interval(&self) -> Duration {
        let intervals = self.groups.iter().map(|group| group.interval_micros.load(Ordering::Relaxed));
        let rate: f64 = intervals.filter(|&micros| micros > 0).map(|micros| 1.0 / micros as f64).sum();
        if rate > 0.0 { Duration::from_micros((1.0 / rate).round() as u64) } else { Duration::ZERO }
    }

    /// Number of sequences that could start at once.
    pub(super) fn free_places(&self) -> usize {
        self.groups.iter().map(|group| group.free_places.load(Ordering::Acquire)).sum()
    }

    /// Sets the number of sequences that a group could start at once.
    pub(super) fn set_free_places(&self, group: usize, places: usize) {
        self.groups[group].free_places.store(places, Ordering::Release);
    }
}

/// Counts one request as in flight until it is dropped, and as queued until the request starts.
#[derive(Debug)]
pub struct Permit {
    occupancy: Arc<Occupancy>,
    /// The place in the queue, while the request is queued.
    queued: Option<QueuePlace>,
    /// Counts the request for its account, if it has one.
    account: Option<AccountPermit>,
    /// Counts the request for its adapter, if it has one.
    adapter: Option<AdapterPermit>,
    /// Keeps the adapter loaded.
    _held: Option<Arc<HeldAdapter>>,
    /// Counts the request as work of its group of shards.
    group: Option<GroupPlace>,
    _place: Place,
}

/// The place of a request in the queue, and the number of tokens of its prompt.
#[derive(Debug)]
struct QueuePlace {
    _place: Place,
    tokens: usize,
}

impl Permit {
    /// The same permit, which also counts for an account.
    pub(super) fn on_account(mut self, account: Option<AccountPermit>) -> Self {
        self.account = account;
        self
    }

    /// The same permit, which also counts for an adapter and keeps it loaded.
    pub(super) fn with_adapter(mut self, adapter: Option<AdapterId>, held: Option<Arc<HeldAdapter>>) -> Self {
        self._held = held;
        self.adapter = adapter.map(|adapter| self.occupancy.adapters.enter(adapter));
        self
    }

    /// Counts the request as work of a group, and no more of the group before.
    pub(super) fn move_to(&mut self, group: GroupPlace) {
        self.group = Some(group);
    }

    /// The adapter of the request.
    pub(super) fn adapter(&self) -> Option<AdapterId> {
        self.adapter.as_ref().map(AdapterPermit::adapter)
    }

    /// Notes that the request has left the queue.
    pub(super) fn start(&mut self) {
        if let Some(adapter) = &mut self.adapter {
            adapter.start();
        }
        if let Some(account) = &mut self.account {
            account.start();
        }
        if let Some(group) = &mut self.group {
            group.start();
        }
        if let Some(QueuePlace { tokens, .. }) = self.queued.take() {
            self.occupancy.queued_tokens.fetch_sub(tokens, Ordering::AcqRel);
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.start();
    }
}

/// Measures the rate at which requests leave the queue. Time in which the queue was empty does not
/// count.
#[derive(Debug)]
pub(super) struct StartRate {
    occupancy: Arc<Occupancy>,
    group: usize,
    last: Option<Instant>,
    mean_micros: f64,
}

impl StartRate {
    pub(super) fn new(occupancy: Arc<Occupancy>, group: usize) -> Self {
        StartRate { occupancy, group, last: None, mean_micros: 0.0 }
    }

    /// Notes that a request which was queued at `queued` has started at `now`.
    pub(super) fn note_start(&mut self, queued: Instant, now: Instant) {
        let since = self.last.map_or(queued, |last| last.max(queued));
        let micros = now.saturating_duration_since(since).as_micros() as f64;
        match self.last.replace(now) {
            None => self.mean_micros = micros,
            Some(_) => self.mean_micros += NEW_WEIGHT * (micros - self.mean_micros),
        }
        let pace = &self.occupancy.groups[self.group];
        pace.interval_micros.store(self.mean_micros as u64, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: AdmissionBounds = AdmissionBounds { in_flight: 10, queued: 2, queued_tokens: 100 };

    #[test]
    fn the_queue_is_bounded_beyond_the_free_places() {
        let occupancy = Occupancy::new(BOUNDS, 1);
        occupancy.set_free_places(0, 3);
        let mut held: Vec<_> = (0..5).map(|_| occupancy.enter(&Tenant::default(), 10).unwrap()).collect();
        assert!(occupancy.enter(&Tenant::default(), 10).is_none());
        occupancy.set_free_places(0, 0);
        held[0].start();
        assert!(occupancy.enter(&Tenant::default(), 10).is_none(), "four wait, two may");
        held.drain(..3);
        assert_eq!((occupancy.in_flight(), held.len()), (2, 2));
        held[0].start();
        assert!(occupancy.enter(&Tenant::default(), 91).is_none(), "101 tokens would wait");
        held.push(occupancy.enter(&Tenant::default(), 90).unwrap());
        drop(held);
        assert!(occupancy.enter(&Tenant::default(), 1000).is_some(), "an empty queue takes any request");
        assert_eq!(occupancy.in_flight(), 0);
    }

    #[test]
    fn room_for_several_requests_is_room_for_each() {
        for (places, in_flight) in [(0, 10), (3, 10), (3, 4), (20, 10)] {
            for queued in 0..8 {
                let occupancy = Occupancy::new(AdmissionBounds { in_flight, ..BOUNDS }, 1);
                occupancy.set_free_places(0, places);
                let mut held: Vec<_> =
                    (0..queued).filter_map(|_| occupancy.enter(&Tenant::default(), 1)).collect();
                let fits =
                    (0..20).take_while(|&more| occupancy.has_room_for(&Tenant::default(), more)).last();
                let entered = held.len();
                held.extend(std::iter::from_fn(|| occupancy.enter(&Tenant::default(), 1)));
                assert_eq!(fits, Some(held.len() - entered), "{places} places, {queued} queued");
            }
        }
    }

    #[test]
    fn requests_in_flight_are_bounded_exactly() {
        let occupancy =
            Occupancy::new(AdmissionBounds { queued: usize::MAX, queued_tokens: usize::MAX, ..BOUNDS }, 1);
        let held: Vec<_> = (0..20).filter_map(|_| occupancy.enter(&Tenant::default(), 1)).collect();
        assert_eq!(held.len(), 10);
        assert!(!occupancy.has_place_for(&Tenant::default()));
        // Another tenant has nothing, and gets its share of each of the bounds.
        let other = Tenant::named("late");
        assert!(occupancy.has_place_for(&other) && occupancy.has_room_for(&other, 5));
        assert!(!occupancy.has_room_for(&other, 6));
        assert_eq!((0..20).filter_map(|_| occupancy.enter(&other, 1)).collect::<Vec<_>>().len(), 5);
    }

    #[test]
    fn a_refused_client_waits_for_the_whole_queue() {
        let occupancy = Occupancy::new(BOUNDS, 1);
        assert_eq!(occupancy.retry_after(), Duration::from_secs(1), "the rate is not known yet");
        let mut rate = StartRate::new(occupancy.clone(), 0);
        let begin = Instant::now();
        // All requests were queued at the beginning, and one left every four seconds.
        (1..200).for_each(|i| rate.note_start(begin, begin + Duration::from_secs(4 * i)));
        let held = [occupancy.enter(&Tenant::default(), 1), occupancy.enter(&Tenant::default(), 1)];
        assert!(held.iter().all(Option::is_some));
        assert_eq!(occupancy.retry_after().as_secs(), 12);
        // An hour without requests does not change the rate.
        let later = begin + Duration::from_secs(5000);
        (0..200).for_each(|_| rate.note_start(later, later + Duration::from_millis(1)));
        assert_eq!(occupancy.retry_after(), Duration::from_secs(1));
    }
}
