//! The newest batches, with their numbers.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use tokio::sync::watch;

/// Bounds of a [`History`]. The oldest batches are dropped first.
#[derive(Debug, Clone, Copy)]
pub(super) struct HistoryLimits {
    /// Number of batches.
    pub(super) batches: usize,
    /// Bytes of all batches.
    pub(super) bytes: usize,
}

impl Default for HistoryLimits {
    fn default() -> Self {
        HistoryLimits { batches: 10_000, bytes: 64 << 20 }
    }
}

/// An encoded batch and its number. The first batch has the number 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Batch {
    pub(super) number: u64,
    pub(super) payload: Bytes,
}

/// The newest batches. Subscribers read them at their own pace, so a slow one costs no memory of
/// its own.
pub(super) struct History {
    limits: HistoryLimits,
    kept: Mutex<Kept>,
    /// The number of the next batch.
    next: watch::Sender<u64>,
}

#[derive(Default)]
struct Kept {
    batches: VecDeque<Bytes>,
    bytes: usize,
    /// The number of the first batch of `batches`.
    first: u64,
}

impl History {
    pub(super) fn new(limits: HistoryLimits) -> Self {
        History { limits, kept: Mutex::default(), next: watch::Sender::new(0) }
    }

    /// Adds a batch, and drops old ones beyond the limits.
    pub(super) fn push(&self, payload: Bytes) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.bytes += payload.len();
        kept.batches.push_back(payload);
        while kept.batches.len() > self.limits.batches || kept.bytes > self.limits.bytes {
            let Some(oldest) = kept.batches.pop_front() else { break };
            kept.bytes -= oldest.len();
            kept.first += 1;
        }
        self.next.send_replace(kept.first + kept.batches.len() as u64);
    }

    /// The number of the next batch, and its changes.
    pub(super) fn next(&self) -> watch::Receiver<u64> {
        self.next.subscribe()
    }

    /// The oldest batch that is kept with this number or a higher one.
    pub(super) fn at_or_after(&self, number: u64) -> Option<Batch> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let index = number.saturating_sub(kept.first);
        let payload = kept.batches.get(usize::try_from(index).ok()?)?.clone();
        Some(Batch { number: kept.first + index, payload })
    }
}
