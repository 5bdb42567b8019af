//! The engine against shards that are no models: in this process over a socket pair, and as real processes.

mod constrained;
mod failure;
mod fake;
mod nodes;
mod processes;
mod recovery;
mod serving;

use std::sync::Arc;
use std::time::Duration;

use millrace_proto::Ready;

use super::{Bounds, Engine, EngineConfig, Event, Finish, Generation, Priority, PromptToken, Request, State};
use crate::scheduler::Limits;
use crate::scheduler::tests::pretend::{alone, scored_alone, vector_alone};
use crate::scheduler::tests::sampling;

/// What the fake shards announce.
fn ready() -> Ready {
    Ready {
        model_type: "pretend".into(),
        vocab_size: 1000,
        max_sequence_tokens: 400,
        block_size: 16,
        num_blocks: 40,
        max_sequences: 8,
        max_step_tokens: 64,
        ..Default::default()
    }
}

fn limits() -> Limits {
    Limits::new(&ready()).unwrap()
}

fn config() -> EngineConfig {
    EngineConfig {
        bounds: Bounds { in_flight: 64, queued: usize::MAX, queued_tokens: usize::MAX },
        // What is lost is lost, where nothing else is said.
        max_failures: 1,
        // Losses alone are counted, so that tests of giving up are short.
        failure_window: Duration::ZERO,
        // Fake shards answer a ping only where they wait for a step.
        heartbeat_timeout: Duration::from_secs(60),
        shutdown_grace: Duration::from_secs(20),
        startup_silence: Duration::from_secs(20),
        ..Default::default()
    }
}

fn request(seed: u64, prompt: usize, max_new_tokens: u32) -> Request {
    Request {
        prompt: (0..prompt as u32).map(|i| (i * 31 + seed as u32) % 1000).collect(),
        max_new_tokens,
        stop_tokens: Arc::from((0..10).collect::<Vec<u32>>()),
        sampling: sampling(seed),
        priority: Priority::default(),
        cache_salt: None,
        mask: None,
        prompt_logprobs: None,
        pooling: None,
    }
}

/// Nothing in these tests may hang.
async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    let limit = Duration::from_secs(30);
    tokio::time::timeout(limit, future).await.unwrap_or_else(|_| panic!("{what} takes for ever"))
}

async fn until(engine: &Engine, what: &str, wanted: impl FnMut(&State) -> bool) -> State {
    soon(what, engine.state().wait_for(wanted)).await.expect("the engine is there").clone()
}

async fn until_ready(engine: &Engine) {
    until(engine, "loading", |state| matches!(state, State::Ready(_))).await;
}

/// What a generation said.
#[derive(Debug, Default, PartialEq)]
struct Told {
    started: usize,
    prompt: Vec<PromptToken>,
    vector: Vec<f32>,
    tokens: Vec<u32>,
    finish: Option<Finish>,
    failed: Option<String>,
}

async fn listen(mut generation: Generation) -> Told {
    let mut told = Told::default();
    while let Some(event) = soon("an event", generation.next()).await {
        assert!(told.finish.is_none() && told.failed.is_none(), "{event:?} after the end");
        match event {
            Event::Started(_) => told.started += 1,
            Event::Prompt(tokens, finish) => {
                assert!(told.started == 1 && told.tokens.is_empty(), "the prompt comes before its answer");
                told.prompt.extend(tokens);
                told.finish = finish;
            }
            Event::Vector(values) => {
                told.vector = values;
                told.finish = Some(Finish::Length);
            }
            Event::Token(token, finish) => {
                assert_eq!(told.started, 1, "a token before the start");
                told.tokens.push(token.id);
                told.finish = finish;
            }
            Event::Failed(why) => told.failed = Some(why.to_string()),
        }
    }
    told
}

/// What a request is told if nothing else is going on.
fn told_alone(request: &Request) -> Told {
    let (tokens, finish) = alone(request, limits().vocab_size);
    let prompt = scored_alone(request, limits().vocab_size).into_iter().map(|token| PromptToken {
        logprob: token.logprob,
        rank: token.rank,
        top: token.top.iter().map(|top| (top.token, top.logprob)).collect(),
    });
    Told {
        started: 1,
        prompt: prompt.collect(),
        vector: vector_alone(request),
        tokens,
        finish: Some(finish),
        failed: None,
    }
}

/// Submits all requests at once, and compares.
async fn each_gets_what_it_gets_alone(engine: &Engine, requests: &[Request]) {
    let listeners: Vec<_> = requests
        .iter()
        .map(|request| tokio::spawn(listen(engine.submit(request.clone()).unwrap())))
        .collect();
    for (request, listener) in requests.iter().zip(listeners) {
        assert_eq!(listener.await.unwrap(), told_alone(request));
    }
    assert_eq!(engine.in_flight(), 0);
}
