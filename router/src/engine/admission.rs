//! How full the engine is, shared by its handles, which refuse what is too much, and its loop, which knows better.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How much may be asked of the engine at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Requests queued or running.
    pub in_flight: usize,
    /// Requests queued beyond the places that are free.
    pub queued: usize,
    /// Prompt tokens of all queued requests, if no place is free. An empty queue takes any request that can run.
    pub queued_tokens: usize,
}

/// The longest time that a refused client is told to wait.
const LONGEST_RETRY: Duration = Duration::from_secs(600);

/// How much the next interval counts in the mean.
const NEWEST: f64 = 0.1;

/// What is queued and running.
#[derive(Debug)]
pub(super) struct Occupancy {
    bounds: Bounds,
    in_flight: AtomicUsize,
    queued: AtomicUsize,
    queued_tokens: AtomicUsize,
    /// Sequences that could start at once, after the last plan.
    room: AtomicUsize,
    /// Mean microseconds between two requests that leave a queue; 0 if that has not been seen yet.
    interval_micros: AtomicU64,
}

impl Occupancy {
    pub(super) fn new(bounds: Bounds) -> Arc<Self> {
        Arc::new(Occupancy {
            bounds,
            in_flight: AtomicUsize::new(0),
            queued: AtomicUsize::new(0),
            queued_tokens: AtomicUsize::new(0),
            room: AtomicUsize::new(0),
            interval_micros: AtomicU64::new(0),
        })
    }

    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Acquire)
    }

    /// Whether another request may be in flight.
    pub(super) fn is_full(&self) -> bool {
        self.in_flight() >= self.bounds.in_flight
    }

    /// Whether [`enter`](Self::enter) would now count so many requests one after the other, if their prompts are short.
    pub(super) fn has_room_for(&self, requests: usize) -> bool {
        let queued = self.queued.load(Ordering::Acquire).saturating_add(requests);
        let may_queue = self.room.load(Ordering::Acquire).saturating_add(self.bounds.queued);
        queued <= may_queue && self.in_flight().saturating_add(requests) <= self.bounds.in_flight
    }

    /// Counts a request with a prompt of this many tokens; `None` if it is one too many. Handles on several threads may
    /// pass the bounds of the queue by as many requests as there are threads; the bound of those in flight is exact.
    pub(super) fn enter(self: &Arc<Self>, prompt: usize) -> Option<Permit> {
        let queued = self.queued.load(Ordering::Acquire);
        let room = self.room.load(Ordering::Acquire);
        let tokens = self.queued_tokens.load(Ordering::Acquire).saturating_add(prompt);
        let too_long = queued > 0 && tokens > self.bounds.queued_tokens;
        if queued >= room && (queued - room >= self.bounds.queued || too_long) {
            return None;
        }
        self.in_flight
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| {
                (n < self.bounds.in_flight).then_some(n + 1)
            })
            .ok()?;
        self.queued.fetch_add(1, Ordering::AcqRel);
        self.queued_tokens.fetch_add(prompt, Ordering::AcqRel);
        Some(Permit { occupancy: self.clone(), waiting: Some(prompt) })
    }

    /// When a refused request may come again: when all that waits now will have started, at the rate of late.
    pub(super) fn retry_after(&self) -> Duration {
        let interval = Duration::from_micros(self.interval_micros.load(Ordering::Relaxed));
        let ahead = u32::try_from(self.queued.load(Ordering::Acquire)).unwrap_or(u32::MAX).saturating_add(1);
        interval.saturating_mul(ahead).clamp(Duration::from_secs(1), LONGEST_RETRY)
    }

    /// Says how many sequences could start at once.
    pub(super) fn set_room(&self, room: usize) {
        self.room.store(room, Ordering::Release);
    }
}

/// Counts one request in flight until dropped, and among the queued until it starts.
#[derive(Debug)]
pub struct Permit {
    occupancy: Arc<Occupancy>,
    /// Tokens of its prompt, while it is queued.
    waiting: Option<usize>,
}

impl Permit {
    /// It has left the queue.
    pub(super) fn start(&mut self) {
        if let Some(prompt) = self.waiting.take() {
            self.occupancy.queued.fetch_sub(1, Ordering::AcqRel);
            self.occupancy.queued_tokens.fetch_sub(prompt, Ordering::AcqRel);
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.start();
        self.occupancy.in_flight.fetch_sub(1, Ordering::AcqRel);
    }
}

/// How fast requests leave the queue. Time in which none was waiting does not count.
#[derive(Debug)]
pub(super) struct Pace {
    occupancy: Arc<Occupancy>,
    last: Option<Instant>,
    mean_micros: f64,
}

impl Pace {
    pub(super) fn new(occupancy: Arc<Occupancy>) -> Self {
        Pace { occupancy, last: None, mean_micros: 0.0 }
    }

    /// A request that was queued then has started now.
    pub(super) fn started(&mut self, queued: Instant, now: Instant) {
        let since = self.last.map_or(queued, |last| last.max(queued));
        let micros = now.saturating_duration_since(since).as_micros() as f64;
        match self.last.replace(now) {
            None => self.mean_micros = micros,
            Some(_) => self.mean_micros += NEWEST * (micros - self.mean_micros),
        }
        self.occupancy.interval_micros.store(self.mean_micros as u64, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds { in_flight: 10, queued: 2, queued_tokens: 100 };

    #[test]
    fn the_queue_is_bounded_beyond_what_has_room() {
        let occupancy = Occupancy::new(BOUNDS);
        occupancy.set_room(3);
        let mut held: Vec<_> = (0..5).map(|_| occupancy.enter(10).unwrap()).collect();
        assert!(occupancy.enter(10).is_none());
        occupancy.set_room(0);
        held[0].start();
        assert!(occupancy.enter(10).is_none(), "four wait, two may");
        held.drain(..3);
        assert_eq!((occupancy.in_flight(), held.len()), (2, 2));
        held[0].start();
        assert!(occupancy.enter(91).is_none(), "101 tokens would wait");
        held.push(occupancy.enter(90).unwrap());
        drop(held);
        assert!(occupancy.enter(1000).is_some(), "an empty queue takes any request");
        assert_eq!(occupancy.in_flight(), 0);
    }

    #[test]
    fn room_for_several_is_room_for_each() {
        for (room, in_flight) in [(0, 10), (3, 10), (3, 4), (20, 10)] {
            for queued in 0..8 {
                let occupancy = Occupancy::new(Bounds { in_flight, ..BOUNDS });
                occupancy.set_room(room);
                let mut held: Vec<_> = (0..queued).filter_map(|_| occupancy.enter(1)).collect();
                let fits = (0..20).take_while(|&more| occupancy.has_room_for(more)).last();
                let entered = held.len();
                held.extend(std::iter::from_fn(|| occupancy.enter(1)));
                assert_eq!(fits, Some(held.len() - entered), "room {room}, {queued} queued");
            }
        }
    }

    #[test]
    fn requests_in_flight_are_bounded_exactly() {
        let occupancy = Occupancy::new(Bounds { queued: usize::MAX, queued_tokens: usize::MAX, ..BOUNDS });
        let held: Vec<_> = (0..20).filter_map(|_| occupancy.enter(1)).collect();
        assert_eq!(held.len(), 10);
        assert!(occupancy.is_full());
    }

    #[test]
    fn the_time_to_wait_is_that_of_the_queue() {
        let occupancy = Occupancy::new(BOUNDS);
        assert_eq!(occupancy.retry_after(), Duration::from_secs(1), "nothing is known yet");
        let mut pace = Pace::new(occupancy.clone());
        let begin = Instant::now();
        // All were there from the beginning and one left every four seconds.
        (1..200).for_each(|i| pace.started(begin, begin + Duration::from_secs(4 * i)));
        let held = [occupancy.enter(1), occupancy.enter(1)];
        assert!(held.iter().all(Option::is_some));
        assert_eq!(occupancy.retry_after().as_secs(), 12);
        // An hour without requests says nothing about the rate.
        let later = begin + Duration::from_secs(5000);
        (0..200).for_each(|_| pace.started(later, later + Duration::from_millis(1)));
        assert_eq!(occupancy.retry_after(), Duration::from_secs(1));
    }
}
