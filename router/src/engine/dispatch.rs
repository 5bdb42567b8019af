//! Passes what came of a step on to the requests it is for. The engine's task hands over one batch per step and does
//! not wake a request itself.

use std::collections::HashMap;

use millrace_proto::{self as proto, TokenLogprob};
use tokio::sync::mpsc;

use super::handle::{Event, Failure, Finish, PromptToken, Started, Token};
use crate::scheduler::{News, Output, SeqId};

/// What has happened since the last batch. The parts are passed on in the order of the fields.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// Requests that are new, and where their events go.
    pub(super) opened: Vec<(SeqId, mpsc::UnboundedSender<Event>)>,
    /// What came back of steps.
    pub(super) outputs: Vec<Output>,
    /// Requests that left the queue.
    pub(super) started: Vec<(SeqId, Started)>,
    /// Requests that end with an error.
    pub(super) failed: Vec<(SeqId, Failure)>,
    /// Requests that end without a word, because nobody listens.
    pub(super) abandoned: Vec<SeqId>,
}

impl Batch {
    pub(super) fn is_empty(&self) -> bool {
        let Batch { opened, outputs, started, failed, abandoned } = self;
        opened.is_empty()
            && outputs.is_empty()
            && started.is_empty()
            && failed.is_empty()
            && abandoned.is_empty()
    }
}

/// The task. It ends when the engine has dropped its end of `batches`.
pub(super) async fn run(mut batches: mpsc::UnboundedReceiver<Batch>) {
    let mut open: HashMap<SeqId, mpsc::UnboundedSender<Event>> = HashMap::new();
    while let Some(batch) = batches.recv().await {
        // A failing send is a request that nobody listens to any more; the engine sees that by itself.
        let send = |open: &HashMap<_, mpsc::UnboundedSender<Event>>, id: SeqId, event: Event| {
            if let Some(events) = open.get(&id) {
                let _ = events.send(event);
            }
        };
        open.extend(batch.opened);
        for Output { sequence, news, finish } in batch.outputs {
            if let Some(event) = event(news, finish) {
                send(&open, sequence, event);
            }
            if finish.is_some() {
                open.remove(&sequence);
            }
        }
        for (id, started) in batch.started {
            send(&open, id, Event::Started(started));
        }
        for (id, why) in batch.failed {
            send(&open, id, Event::Failed(why));
            open.remove(&id);
        }
        for id in batch.abandoned {
            open.remove(&id);
        }
    }
}

/// What a request is told; failures are passed on as such.
fn event(news: News, finish: Option<Finish>) -> Option<Event> {
    Some(match news {
        News::Prompt(tokens) => {
            let token =
                |proto::PromptToken { logprob, rank, top }| PromptToken { logprob, rank, top: pairs(top) };
            Event::Prompt(tokens.into_iter().map(token).collect(), finish)
        }
        News::Token(proto::Sampled { token: id, logprob, top, .. }) => {
            Event::Token(Token { id, logprob, top: pairs(top) }, finish)
        }
        News::Vector(values) => Event::Vector(values),
        News::Failed(_) => return None,
    })
}

fn pairs(top: Vec<TokenLogprob>) -> Vec<(u32, f32)> {
    top.into_iter().map(|top| (top.token, top.logprob)).collect()
}
