//! The dispatching task: sends the results of steps to their requests. The event loop sends it one
//! batch per step, so it never spends time on waking the tasks of requests.

use std::collections::HashMap;

use millrace_proto::{self as proto, TokenLogprob};
use millrace_scheduler::{DraftCounts, Finish, SeqId, SequenceEvent, SequenceOutput};
use tokio::sync::mpsc;

use super::active_request::MovedRequest;
use super::command::EngineCommand;
use super::event::{GeneratedToken, GenerationEvent, GenerationFailure, GenerationStart, PromptToken};

/// Everything that happened since the last batch. The parts are sent in the order of the fields.
#[derive(Debug, Default)]
pub(super) struct EventBatch {
    /// New requests, and the senders of their events.
    pub(super) opened: Vec<(SeqId, mpsc::UnboundedSender<GenerationEvent>)>,
    /// Results of steps.
    pub(super) outputs: Vec<SequenceOutput>,
    /// Requests that left the queue.
    pub(super) started: Vec<(SeqId, GenerationStart)>,
    /// Requests that failed.
    pub(super) failed: Vec<(SeqId, GenerationFailure)>,
    /// Requests whose receivers have been dropped. They get no more events.
    pub(super) abandoned: Vec<SeqId>,
    /// Requests that go to other groups of shards, and the event loops of these. They are sent
    /// last, so that no event of the other group overtakes one of this group.
    pub(super) moved: Vec<(SeqId, mpsc::UnboundedSender<EngineCommand>, Box<MovedRequest>)>,
}

impl EventBatch {
    pub(super) fn is_empty(&self) -> bool {
        let EventBatch { opened, outputs, started, failed, abandoned, moved } = self;
        opened.is_empty()
            && outputs.is_empty()
            && started.is_empty()
            && failed.is_empty()
            && abandoned.is_empty()
            && moved.is_empty()
    }
}

/// Runs the task until the sender of `batches` has been dropped.
pub(super) async fn run(mut batches: mpsc::UnboundedReceiver<EventBatch>) {
    let mut open: HashMap<SeqId, mpsc::UnboundedSender<GenerationEvent>> = HashMap::new();
    while let Some(batch) = batches.recv().await {
        // Sending fails if the receiver has been dropped. The event loop notices that by itself.
        let send =
            |open: &HashMap<_, mpsc::UnboundedSender<GenerationEvent>>, id: SeqId, event: GenerationEvent| {
                if let Some(events) = open.get(&id) {
                    let _ = events.send(event);
                }
            };
        open.extend(batch.opened);
        for SequenceOutput { sequence, event, drafts, finish } in batch.outputs {
            if let Some(event) = to_generation_event(event, drafts, finish) {
                send(&open, sequence, event);
            }
            if finish.is_some() {
                open.remove(&sequence);
            }
        }
        for (id, started) in batch.started {
            send(&open, id, GenerationEvent::Started(started));
        }
        for (id, failure) in batch.failed {
            send(&open, id, GenerationEvent::Failed(failure));
            open.remove(&id);
        }
        for id in batch.abandoned {
            open.remove(&id);
        }
        for (id, commands, request) in batch.moved {
            open.remove(&id);
            if let Err(mpsc::error::SendError(EngineCommand::Adopt(request))) =
                commands.send(EngineCommand::Adopt(request))
            {
                request.fail("Server is shutting down");
            }
        }
    }
}

/// The event for a result of the scheduler; `None` for failures, which the event loop reports
/// itself.
fn to_generation_event(
    event: SequenceEvent,
    drafts: DraftCounts,
    finish: Option<Finish>,
) -> Option<GenerationEvent> {
    Some(match event {
        SequenceEvent::Prompt(tokens) => {
            let token =
                |proto::PromptToken { logprob, rank, top }| PromptToken { logprob, rank, top: pairs(top) };
            GenerationEvent::Prompt(tokens.into_iter().map(token).collect(), finish)
        }
        SequenceEvent::Token(proto::Sampled { token: id, logprob, top, .. }) => {
            GenerationEvent::Token(GeneratedToken { id, logprob, top: pairs(top), drafts }, finish)
        }
        SequenceEvent::Vector(values) => GenerationEvent::Vector(values),
        SequenceEvent::Failed(_) => return None,
    })
}

fn pairs(top: Vec<TokenLogprob>) -> Vec<(u32, f32)> {
    top.into_iter().map(|top| (top.token, top.logprob)).collect()
}
