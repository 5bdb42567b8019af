//! Tests of the engine with fake shards: in this process over a connection in memory, and as real
//! processes.

mod adapters;
mod constrained;
mod failure;
mod fake;
mod groups;
mod nodes;
mod preparation;
mod processes;
mod recovery;
mod serving;

use std::sync::Arc;
use std::time::Duration;

use millrace_proto::Ready;
use millrace_scheduler::SchedulerLimits;
use millrace_scheduler::test_support::sampling;
use millrace_scheduler::test_support::{alone, scored_alone, vector_alone};
use millrace_test_patience::patience;

use super::{
    AdmissionBounds, Engine, EngineConfig, EngineState, Finish, Generation, GenerationEvent, Priority,
    PromptToken, Request, Tenant,
};

/// The announcement of the fake shards.
fn ready() -> Ready {
    Ready {
        model_type: "pretend".into(),
        vocab_size: 1000,
        max_sequence_tokens: 400,
        block_size: 16,
        num_blocks: 40,
        max_sequences: 8,
        max_step_tokens: 64,
        adapters: 2,
        ..Default::default()
    }
}

pub(super) fn limits() -> SchedulerLimits {
    SchedulerLimits::new(&ready()).unwrap()
}

fn config() -> EngineConfig {
    EngineConfig {
        bounds: AdmissionBounds { in_flight: 64, queued: usize::MAX, queued_tokens: usize::MAX },
        // The first loss ends the engine, unless a test sets another maximum.
        max_failures: 1,
        // Only the number of losses counts, so tests of giving up are short.
        failure_window: Duration::ZERO,
        // Fake shards answer a ping only while they wait for a step.
        heartbeat_timeout: patience(Duration::from_secs(60)),
        shutdown_grace: patience(Duration::from_secs(20)),
        startup_silence: patience(Duration::from_secs(20)),
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
        tenant: Tenant::default(),
        adapter: None,
        cache_salt: None,
        block_hashes: None,
        mask: None,
        prompt_logprobs: None,
        pooling: None,
        pooling_start: 0,
        second_type_start: None,
    }
}

/// Waits for `future` with a timeout, so that no test hangs.
async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    let limit = patience(Duration::from_secs(30));
    tokio::time::timeout(limit, future).await.unwrap_or_else(|_| panic!("timeout: {what}"))
}

async fn until(engine: &Engine, what: &str, wanted: impl FnMut(&EngineState) -> bool) -> EngineState {
    soon(what, engine.state().wait_for(wanted)).await.expect("the engine is running").clone()
}

async fn until_ready(engine: &Engine) {
    until(engine, "loading", |state| matches!(state, EngineState::Ready(_))).await;
}

/// The events of a generation.
#[derive(Debug, Default, PartialEq)]
struct Received {
    started: usize,
    prompt: Vec<PromptToken>,
    vector: Vec<f32>,
    tokens: Vec<u32>,
    finish: Option<Finish>,
    failed: Option<String>,
}

async fn listen(mut generation: Generation) -> Received {
    let mut received = Received::default();
    while let Some(event) = soon("an event", generation.next()).await {
        assert!(received.finish.is_none() && received.failed.is_none(), "{event:?} after the end");
        match event {
            GenerationEvent::Started(_) => received.started += 1,
            GenerationEvent::Prompt(tokens, finish) => {
                assert!(
                    received.started == 1 && received.tokens.is_empty(),
                    "the prompt comes before its answer"
                );
                received.prompt.extend(tokens);
                received.finish = finish;
            }
            GenerationEvent::Vector(values) => {
                received.vector = values;
                received.finish = Some(Finish::Length);
            }
            GenerationEvent::Token(token, finish) => {
                assert_eq!(received.started, 1, "a token before the start");
                received.tokens.push(token.id);
                received.finish = finish;
            }
            GenerationEvent::Failed(reason) => received.failed = Some(reason.to_string()),
        }
    }
    received
}

/// The events of a request that runs alone.
fn received_alone(request: &Request) -> Received {
    let (tokens, finish) = alone(request, limits().vocab_size);
    let prompt = scored_alone(request, limits().vocab_size).into_iter().map(|token| PromptToken {
        logprob: token.logprob,
        rank: token.rank,
        top: token.top.iter().map(|top| (top.token, top.logprob)).collect(),
    });
    Received {
        started: 1,
        prompt: prompt.collect(),
        vector: vector_alone(request),
        tokens,
        finish: Some(finish),
        failed: None,
    }
}

/// Submits all requests at once, and compares their events with those of runs alone.
async fn assert_results_equal_runs_alone(engine: &Engine, requests: &[Request]) {
    let listeners: Vec<_> = requests
        .iter()
        .map(|request| tokio::spawn(listen(engine.submit(request.clone()).unwrap())))
        .collect();
    for (request, listener) in requests.iter().zip(listeners) {
        assert_eq!(listener.await.unwrap(), received_alone(request));
    }
    assert_eq!(engine.in_flight(), 0);
}
