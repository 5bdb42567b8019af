//! Requests that go to other groups of shards, because this group is lost or restarted.

use std::time::Duration;

use millrace_scheduler::SeqId;

use super::engine_loop::EngineLoop;
use crate::engine::active_request::{ActiveRequest, MovedRequest};
use crate::engine::command::RestartReply;
use crate::engine::event::{GenerationEvent, GenerationFailure};
use crate::engine::groups::{Candidate, Chosen};

/// The time after which a group that could not be started is tried again, while others serve.
const LATER: Duration = Duration::from_secs(60);

impl EngineLoop<'_> {
    /// Moves the requests of a lost group to others, if there are any that are ready. The requests
    /// that stay wait for the next shards: those in quarantine, and those whose masks are being
    /// computed, which are moved when they have them.
    pub(super) fn move_if_lost(&mut self) {
        // While the server drains, other groups may have ended.
        let is_lost = !self.shards.is_running() && self.drain_deadline.is_none();
        if !is_lost || self.requests.is_empty() {
            return;
        }
        let Some(groups) = self.groups.upgrade().filter(|groups| groups.has_other(self.group)) else {
            return;
        };
        self.cancel_abandoned();
        let mut ids: Vec<SeqId> = self.requests.keys().copied().collect();
        // The order of the queue is kept.
        ids.sort_unstable();
        let group = self.group;
        for id in ids {
            self.move_to(id, |candidate| groups.choose_other(group, candidate));
        }
    }

    /// Moves requests that have not started to groups where they have less to wait for, if another
    /// group has none at all, as after its restart.
    pub(super) fn share_queue(&mut self) {
        let Some(groups) = self.groups.upgrade().filter(|groups| groups.has_idle(self.group)) else {
            return;
        };
        let waiting = self.requests.iter().filter(|(_, request)| !request.started);
        let mut ids: Vec<SeqId> = waiting.map(|(&id, _)| id).collect();
        // The last ones would wait for the longest time.
        ids.sort_unstable_by(|one, other| other.cmp(one));
        let group = self.group;
        for id in ids {
            self.move_to(id, |candidate| groups.choose_better(group, candidate));
        }
    }

    /// Moves a request to the group that `choose` returns, if it returns one and the request can be
    /// taken out.
    fn move_to(&mut self, id: SeqId, choose: impl FnOnce(&Candidate<'_>) -> Option<Chosen>) {
        let chosen = self
            .scheduler
            .can_take(id)
            .and_then(|(tokens, hashes)| choose(&Candidate { tokens, hashes: Some(hashes) }));
        let Some(chosen) = chosen else { return };
        let (Some(sequence), Some(mut request)) = (self.scheduler.take(id), self.requests.remove(&id)) else {
            return;
        };
        request.permit.move_to(chosen.place);
        let moved = Box::new(MovedRequest { request, sequence });
        self.batch.moved.push((id, chosen.commands, moved));
    }

    /// Continues a request that another group had.
    pub(super) fn adopt(&mut self, moved: MovedRequest) {
        let MovedRequest { request, sequence } = moved;
        if request.events.is_closed() {
            return;
        }
        let adapter = sequence.adapter();
        if adapter.is_some_and(|id| !self.adapters.has(id)) {
            let reason = "The adapter of the request has been unloaded".to_owned();
            return request.fail(GenerationFailure::Refused(reason));
        }
        match self.scheduler.adopt(sequence) {
            Ok(id) => {
                self.batch.opened.push((id, request.events.clone()));
                if !request.started {
                    self.arrivals.push_back((id, request.queued));
                }
                self.requests.insert(id, request);
            }
            Err(infeasible) => request.fail(GenerationFailure::Broken(infeasible.to_string())),
        }
    }

    /// Begins to restart the shards: no further step is sent, and new requests go to other groups.
    pub(super) fn begin_restart(&mut self, reply: RestartReply) {
        if self.drain_deadline.is_some() {
            return;
        }
        if let Some(groups) = self.groups.upgrade() {
            groups.leave(self.group);
        }
        self.restart = Some(reply);
    }

    /// Ends the shards that are to be restarted as soon as they have answered all steps.
    pub(super) fn end_for_restart(&mut self) {
        if self.restart.is_some() && self.shards.is_running() && self.scheduler.in_flight() == 0 {
            self.shards.restart_group(self.config.shutdown_grace);
            self.on_loss();
        }
    }

    /// Reports the result of the restart, if one was asked for.
    pub(super) fn end_restart(&mut self, result: Result<(), String>) {
        if let Some(reply) = self.restart.take() {
            // Whoever asked may have left.
            let _ = reply.send(result);
        }
    }

    /// Handles shards that could not be replaced: they are tried again later if another group
    /// serves meanwhile.
    ///
    /// # Errors
    /// The reason, if no other group serves.
    pub(super) fn try_later_or_give_up(&mut self, reason: String) -> Result<(), String> {
        self.end_restart(Err(reason.clone()));
        if !self.groups.upgrade().is_some_and(|groups| groups.has_other(self.group)) {
            return Err(reason);
        }
        tracing::error!(
            "group {} of the shards is out of service: {reason}; it is tried again in {} s, and other groups serve",
            self.group + 1,
            LATER.as_secs()
        );
        self.shards.pause(LATER);
        Ok(())
    }

    /// Tells the groups that this one has lost its prefix cache.
    pub(super) fn forget_prefixes(&self) {
        if let Some(groups) = self.groups.upgrade() {
            groups.forget_prefixes(self.group);
        }
    }
}

impl ActiveRequest {
    /// Ends the request with an error, before a scheduler has it.
    fn fail(self, failure: GenerationFailure) {
        let _ = self.events.send(GenerationEvent::Failed(failure));
    }
}
