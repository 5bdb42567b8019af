//! The requests that the engine has taken: from the queue to their end.

use millrace_proto::rules::is_mask;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::{GATHER, SHUTTING_DOWN, Server};
use crate::engine::admission::Permit;
use crate::engine::constraint::{Advanced, Constraint, Followed};
use crate::engine::handle::{Event, Failure, Request, Started};
use crate::engine::meter;
use crate::scheduler::{Impossible, RowFailure, SeqId};

/// A request that the scheduler knows.
pub(super) struct Open {
    events: mpsc::UnboundedSender<Event>,
    queued: Instant,
    started: bool,
    permit: Permit,
    /// What it may generate; nothing while that is worked out.
    constraint: Option<Followed>,
    /// Tokens that have come back, if it is constrained.
    generated: usize,
}

impl Server<'_> {
    pub(super) fn started(&mut self, id: SeqId, cached_tokens: usize) {
        // A sequence that was preempted starts more than once.
        if let Some(open) = self.open.get_mut(&id).filter(|open| !open.started) {
            let now = Instant::now();
            open.started = true;
            open.permit.start();
            self.pace.started(open.queued.into_std(), now.into_std());
            self.batch.started.push((id, Started { queued: now - open.queued, cached_tokens }));
        }
    }

    /// A request whose receiver was dropped holds nothing in the next step, wherever it was.
    pub(super) fn cancel_abandoned(&mut self) {
        let Server { open, scheduler, batch, .. } = self;
        open.retain(|&id, open| {
            let abandoned = open.events.is_closed();
            if abandoned {
                scheduler.cancel(id);
                batch.abandoned.push(id);
            }
            !abandoned
        });
    }

    /// Ends requests that have waited for too long.
    pub(super) fn expire(&mut self) {
        let Some(limit) = self.config.queue_timeout else {
            self.waiting.clear();
            return;
        };
        while let Some(&(id, queued)) = self.waiting.front() {
            let waits = self.open.get(&id).is_some_and(|open| !open.started);
            if waits && queued.elapsed() < limit {
                return;
            }
            self.waiting.pop_front();
            if waits {
                meter::queue_timeout();
                let why = format!("No place was free within {} s (--queue-timeout)", limit.as_secs_f32());
                self.end(id, Failure::NotStarted(why));
            }
        }
    }

    pub(super) fn submit(
        &mut self,
        request: Request,
        constraint: Option<Box<dyn Constraint>>,
        events: mpsc::UnboundedSender<Event>,
        permit: Permit,
    ) {
        let failure = match self.draining {
            Some(_) => Failure::NotStarted(SHUTTING_DOWN.to_owned()),
            None => match self.scheduler.add(request) {
                Ok(id) => {
                    self.batch.opened.push((id, events.clone()));
                    let queued = Instant::now();
                    let constraint = constraint.map(Followed::from);
                    self.waiting.push_back((id, queued));
                    let open = Open { events, queued, started: false, permit, constraint, generated: 0 };
                    self.open.insert(id, open);
                    return;
                }
                Err(impossible) => Failure::Refused(impossible.to_string()),
            },
        };
        let _ = events.send(Event::Failed(failure));
    }

    /// A token of a sequence has come back: if it is constrained, what may follow is worked out.
    pub(super) fn constrain(&mut self, id: SeqId, token: u32) {
        let Some(open) = self.open.get_mut(&id) else { return };
        if let Some(constraint) = open.constraint.take() {
            open.generated += 1;
            self.masks.advance(id, open.generated, token, constraint);
        }
    }

    /// It is known what may follow a token.
    pub(super) fn release(&mut self, advanced: Advanced) {
        let Advanced { id, generated, result, .. } = advanced;
        // It may have been cancelled meanwhile.
        let Some(open) = self.open.get_mut(&id) else { return };
        match result {
            Ok((_, mask)) if !is_mask(&mask, self.limits.vocab_size) => {
                self.end(id, Failure::Constraint(Impossible::Mask.to_string()));
            }
            Ok((constraint, mask)) => {
                open.constraint = Some(constraint);
                self.scheduler.release(id, generated, mask);
            }
            Err(why) => self.end(id, Failure::Constraint(why)),
        }
    }

    /// Some constrained sequences can go on. Free ones are in steps already, so nobody else waits.
    pub(super) fn gather(&mut self) {
        match self.masks.is_busy() {
            true => _ = self.gathering.get_or_insert_with(|| Instant::now() + GATHER),
            false => self.gathering = None,
        }
    }

    /// Ends all requests with an error.
    pub(super) fn fail_all(&mut self, why: &str) {
        let ids: Vec<SeqId> = self.open.keys().copied().collect();
        for id in ids {
            let why = why.to_owned();
            let started = self.open.get(&id).is_some_and(|open| open.started);
            self.end(id, if started { Failure::Broken(why) } else { Failure::NotStarted(why) });
        }
    }

    /// The shards go on, but not with this request.
    pub(super) fn row_failed(&mut self, id: SeqId, failure: RowFailure) {
        meter::row_failed(&failure);
        let failure = match failure {
            RowFailure::Refused(why) => {
                tracing::warn!("the shards refuse a request: {why}");
                Failure::Refused(why)
            }
            RowFailure::NotFinite(why) => {
                tracing::error!(
                    "{why}; the request fails. If it happens often, check the checkpoint, or try another --dtype or --quantize"
                );
                Failure::Broken(why)
            }
        };
        self.end(id, failure);
    }

    /// The shards were lost while this request ran alone, for the third time that it was in flight. It fails; the server goes on.
    pub(super) fn blame(&mut self, id: SeqId) {
        meter::blamed();
        tracing::error!(
            "a request has ended the shards three times, at last while it ran alone: it fails, and the server goes on"
        );
        self.end(id, Failure::Broken("this request ended the shards three times".to_owned()));
    }

    /// Ends a request with an error.
    pub(super) fn end(&mut self, id: SeqId, failure: Failure) {
        self.open.remove(&id);
        self.scheduler.cancel(id);
        self.batch.failed.push((id, failure));
    }
}
