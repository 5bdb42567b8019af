//! A scripted engine without a model.

use std::sync::Arc;
use std::time::Duration;

use millrace_answers::Constraint;
use millrace_proto::Ready;
use millrace_scheduler::DraftCounts;
use millrace_text::test_support::EOS;
use tokio::sync::{mpsc, watch};

use crate::engine::adapters::AdapterCommand;
use crate::engine::command::EngineCommand;
use crate::engine::{
    AdapterSource, AdmissionBounds, Engine, EngineState, Finish, GeneratedToken, GenerationEvent,
    GenerationFailure, GenerationStart, LoadError, PromptToken, Request,
};

/// Answers every request by the same script and records the requests and the cancellations.
pub(crate) struct FakeEngine {
    pub(crate) engine: Engine,
    pub(crate) state: watch::Sender<EngineState>,
    /// The submitted requests.
    pub(crate) requests: mpsc::UnboundedReceiver<Request>,
    /// One message for each request whose reader left before its end.
    pub(crate) cancelled: mpsc::UnboundedReceiver<()>,
}

/// The behavior of the engine.
#[derive(Debug, Clone)]
pub(crate) enum Script {
    /// Generates this text, one token per byte, and then end tokens until the answer ends.
    Say(String),
    /// Generates this text like `Say`, except for tokens that the request's constraint forces:
    /// where exactly one token is allowed and it is not the next one of the text, it is generated
    /// first.
    Obey(String),
    /// Generates this text and then fails.
    Fail(String),
    /// Repeats this text until the reader leaves.
    Forever(String),
    /// Generates this text and then nothing more.
    Silence(String),
    /// Generates this text and then closes the channel.
    Vanish(String),
}

/// Loads every adapter except those in folders that are called `damaged`, `full` and `lost`.
fn answer_to_load(source: &AdapterSource) -> Result<(), LoadError> {
    let AdapterSource::Folder(folder) = source else { panic!("{source:?}") };
    match folder.as_str() {
        "/damaged" => Err(LoadError::Refused("the file is damaged".into())),
        "/full" => Err(LoadError::NoPlace { places: 2 }),
        "/lost" => Err(LoadError::Unavailable("the shards are being restarted")),
        _ => Ok(()),
    }
}

impl FakeEngine {
    /// Creates an engine that is ready, for sequences of up to 1024 tokens.
    pub(crate) fn new(script: Script, limit: usize) -> Self {
        let ready = Ready {
            model_type: "fake".into(),
            dtype: "float32".into(),
            device: "cpu".into(),
            vocab_size: 258,
            hidden_size: 4,
            max_sequence_tokens: 1024,
            max_step_tokens: 64,
            max_sequences: 8,
            block_size: 16,
            num_blocks: 512,
            classes: 1,
            ..Ready::default()
        };
        let (state, states) = watch::channel(EngineState::Ready(Arc::new(ready)));
        let (commands, mut receiver) = mpsc::unbounded_channel();
        let bounds = AdmissionBounds { in_flight: limit, queued: usize::MAX, queued_tokens: usize::MAX };
        let (seen, requests) = mpsc::unbounded_channel();
        let (left, cancelled) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Some(command) = receiver.recv().await {
                let (request, events, permit, constraint) = match command {
                    EngineCommand::Submit { request, events, permit, constraint } => {
                        (request, events, permit, constraint)
                    }
                    EngineCommand::Adapter(AdapterCommand::Load(load)) => {
                        let _ = load.reply.send(answer_to_load(&load.source));
                        continue;
                    }
                    EngineCommand::Adapter(AdapterCommand::Free(_)) => continue,
                    EngineCommand::Restart(reply) => {
                        let _ = reply.send(Ok(()));
                        continue;
                    }
                    EngineCommand::Adopt(_) => unreachable!("there is one group"),
                    EngineCommand::Drain => break,
                };
                let _ = seen.send(request.clone());
                let (script, left) = (script.clone(), left.clone());
                tokio::spawn(async move {
                    if !play(script, &request, constraint, &events).await {
                        let _ = left.send(());
                    }
                    drop(permit);
                });
            }
        });
        FakeEngine { engine: Engine::new(commands, states, bounds, true), state, requests, cancelled }
    }

    /// Returns the properties that the engine announces.
    pub(crate) fn ready(&self) -> Arc<Ready> {
        match &*self.state.borrow() {
            EngineState::Ready(ready) => ready.clone(),
            other => panic!("{other:?}"),
        }
    }
}

/// Runs the script. Returns false if the reader left.
async fn play(
    script: Script,
    request: &Request,
    mut constraint: Option<Box<dyn Constraint>>,
    events: &mpsc::UnboundedSender<GenerationEvent>,
) -> bool {
    let (text, forever) = match &script {
        Script::Vanish(text) if text.is_empty() => return true,
        Script::Say(text)
        | Script::Obey(text)
        | Script::Fail(text)
        | Script::Silence(text)
        | Script::Vanish(text) => (text.bytes().collect(), false),
        Script::Forever(text) => (text.bytes().collect::<Vec<_>>(), true),
    };
    let started = GenerationStart { queued: Duration::from_millis(2), cached_tokens: 3 };
    if events.send(GenerationEvent::Started(started)).is_err() {
        return false;
    }
    if request.pooling.is_some() {
        // The length of the vector is 5 times the length of the prompt.
        let n = request.prompt.len() as f32;
        return events.send(GenerationEvent::Vector(vec![3.0 * n, 0.0, -4.0 * n, 0.0])).is_ok();
    }
    if !send_prompt_logprobs(request, events) {
        return false;
    }
    if request.max_new_tokens == 0 {
        let end = GenerationEvent::Prompt(Vec::new(), Some(Finish::Length));
        return request.prompt_logprobs.is_some() || events.send(end).is_ok();
    }
    let script_ids = text.into_iter().map(u32::from);
    let ids: Box<dyn Iterator<Item = u32> + Send> = match &script {
        Script::Forever(_) => Box::new(script_ids.collect::<Vec<_>>().into_iter().cycle()),
        // The end token repeats because not every request stops at it.
        Script::Say(_) | Script::Obey(_) => Box::new(script_ids.chain(std::iter::repeat(EOS))),
        _ => Box::new(script_ids),
    };
    let mut ids = ids.peekable();
    let obeys = matches!(script, Script::Obey(_));
    let mut mask = request.mask.clone();
    for i in 0.. {
        let forced = mask.as_ref().filter(|_| obeys).and_then(|mask| only_token(mask));
        let Some(id) = forced.filter(|forced| ids.peek() != Some(forced)).or_else(|| ids.next()) else {
            break;
        };
        if obeys && let Some(constraint) = &mut constraint {
            mask = constraint.advance(id).ok();
        }
        let top = (0..request.sampling.top_n).map(|n| (id ^ n, -0.25 - n as f32)).collect();
        let finish = if i + 1 == request.max_new_tokens as usize {
            Some(Finish::Length)
        } else {
            request.stop_tokens.contains(&id).then_some(Finish::StopToken)
        };
        // The seed changes the logprobs, so that the best of several sequences is known.
        let logprob = -0.25 - (request.sampling.seed % 7) as f32;
        let drafts = DraftCounts::default();
        if events.send(GenerationEvent::Token(GeneratedToken { id, logprob, top, drafts }, finish)).is_err() {
            return false;
        }
        if finish.is_some() {
            return true;
        }
        // The readers run between two tokens, as with a real engine.
        tokio::task::yield_now().await;
        if forever && i % 16 == 15 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    if matches!(script, Script::Silence(_)) {
        events.closed().await;
        return false;
    }
    if matches!(script, Script::Fail(_)) {
        return events
            .send(GenerationEvent::Failed(GenerationFailure::Broken("the shard has died".into())))
            .is_ok();
    }
    true
}

/// Returns the token that a mask allows if it allows exactly one.
fn only_token(mask: &[u32]) -> Option<u32> {
    let count: u32 = mask.iter().map(|word| word.count_ones()).sum();
    let word = mask.iter().position(|word| *word != 0).filter(|_| count == 1)?;
    Some(word as u32 * 32 + mask[word].trailing_zeros())
}

/// Sends the logprobs of the prompt if they are requested. Returns false if the reader left.
fn send_prompt_logprobs(request: &Request, events: &mpsc::UnboundedSender<GenerationEvent>) -> bool {
    let Some(top_n) = request.prompt_logprobs else { return true };
    // The logprobs arrive in two parts, as from two steps.
    let (half, all) = (request.prompt.len() / 2, request.prompt.len());
    for part in [1..half.max(1), half.max(1)..all] {
        let token = |at: usize| PromptToken {
            logprob: -1.0 - at as f32,
            rank: 7,
            top: (0..top_n).map(|n| (request.prompt[at] ^ n, -0.5 - n as f32)).collect(),
        };
        let finish = (request.max_new_tokens == 0 && part.end == all).then_some(Finish::Length);
        if events.send(GenerationEvent::Prompt(part.map(token).collect(), finish)).is_err() {
            return false;
        }
    }
    true
}
