//! Requests from their submission to their end.

use millrace_answers::Constraint;
use millrace_scheduler::{Request, RowFailure, SeqId};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::engine_loop::{EngineLoop, SHUTTING_DOWN};
use crate::engine::active_request::ActiveRequest;
use crate::engine::constraint::TrackedConstraint;
use crate::engine::event::{GenerationEvent, GenerationFailure, GenerationStart};
use crate::engine::metrics;
use crate::engine::occupancy::Permit;

impl EngineLoop<'_> {
    /// Adds a request to the scheduler.
    pub(super) fn submit(
        &mut self,
        request: Request,
        constraint: Option<Box<dyn Constraint>>,
        events: mpsc::UnboundedSender<GenerationEvent>,
        permit: Permit,
    ) {
        // The signal of this departure may have come before the request.
        if events.is_closed() {
            return;
        }
        let unloaded = request.adapter.filter(|&id| !self.adapters.has(id));
        let failure = match self.drain_deadline {
            None if unloaded.is_some() => {
                GenerationFailure::Refused("The adapter of the request has been unloaded".to_owned())
            }
            Some(_) => GenerationFailure::NotStarted(SHUTTING_DOWN.to_owned()),
            None => match self.scheduler.add(request) {
                Ok(id) => {
                    self.batch.opened.push((id, events.clone()));
                    let queued = Instant::now();
                    let constraint = constraint.map(TrackedConstraint::from);
                    self.arrivals.push_back((id, queued));
                    let (started, generated) = (false, 0);
                    let active = ActiveRequest { events, queued, started, permit, constraint, generated };
                    self.requests.insert(id, active);
                    return;
                }
                Err(infeasible) => GenerationFailure::Refused(infeasible.to_string()),
            },
        };
        let _ = events.send(GenerationEvent::Failed(failure));
    }

    /// Notes that a request has left the queue. A preempted sequence leaves the queue more than
    /// once; only the first time counts.
    pub(super) fn note_start(&mut self, id: SeqId, cached_tokens: usize) {
        if let Some(request) = self.requests.get_mut(&id).filter(|request| !request.started) {
            let now = Instant::now();
            request.started = true;
            request.permit.start();
            self.start_rate.note_start(request.queued.into_std(), now.into_std());
            let start = GenerationStart { queued: now - request.queued, cached_tokens };
            self.batch.started.push((id, start));
        }
    }

    /// Cancels the requests whose readers have left. Their permits are returned at once, and they
    /// hold nothing in the next step.
    pub(super) fn cancel_abandoned(&mut self) {
        let EngineLoop { requests, scheduler, batch, .. } = self;
        requests.retain(|&id, request| {
            let abandoned = request.events.is_closed();
            if abandoned {
                scheduler.cancel(id);
                batch.abandoned.push(id);
            }
            !abandoned
        });
    }

    /// Fails requests that have been queued for too long.
    pub(super) fn expire_queued(&mut self) {
        let Some(limit) = self.config.queue_timeout else {
            self.arrivals.clear();
            return;
        };
        while let Some(&(id, queued)) = self.arrivals.front() {
            let waits = self.requests.get(&id).is_some_and(|request| !request.started);
            if waits && queued.elapsed() < limit {
                return;
            }
            self.arrivals.pop_front();
            if waits {
                metrics::queue_timeout();
                let reason = format!("No place was free within {} s (--queue-timeout)", limit.as_secs_f32());
                self.fail(id, GenerationFailure::NotStarted(reason));
            }
        }
    }

    /// Fails all requests.
    pub(super) fn fail_all(&mut self, reason: &str) {
        let ids: Vec<SeqId> = self.requests.keys().copied().collect();
        for id in ids {
            let reason = reason.to_owned();
            let started = self.requests.get(&id).is_some_and(|request| request.started);
            let failure = match started {
                true => GenerationFailure::Broken(reason),
                false => GenerationFailure::NotStarted(reason),
            };
            self.fail(id, failure);
        }
    }

    /// Fails a request for which the shards have no result. The shards continue.
    pub(super) fn fail_row(&mut self, id: SeqId, failure: RowFailure) {
        metrics::row_failed(&failure);
        let failure = match failure {
            RowFailure::Refused(reason) => {
                tracing::warn!("the shards refuse a request: {reason}");
                GenerationFailure::Refused(reason)
            }
            RowFailure::NotFinite(reason) => {
                tracing::error!(
                    "{reason}; the request fails. If it happens often, check the checkpoint, or try another --dtype or --quantize"
                );
                GenerationFailure::Broken(reason)
            }
        };
        self.fail(id, failure);
    }

    /// Fails a request that caused the loss of the shards: they were lost at least three times
    /// while it was in flight, the last time while it ran alone. The server continues.
    pub(super) fn fail_blamed(&mut self, id: SeqId) {
        metrics::blamed();
        tracing::error!(
            "a request has ended the shards three times, the last time while it ran alone: it fails, and the server goes on"
        );
        self.fail(id, GenerationFailure::Broken("this request ended the shards three times".to_owned()));
    }

    /// Ends a request with an error.
    pub(super) fn fail(&mut self, id: SeqId, failure: GenerationFailure) {
        self.requests.remove(&id);
        self.scheduler.cancel(id);
        self.batch.failed.push((id, failure));
    }
}
