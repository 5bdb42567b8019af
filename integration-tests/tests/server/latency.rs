//! Tests how the server divides its work into steps, on a modelled device.
//!
//! `--device null` computes nothing: a step takes a modelled time, and the shard logs which rows
//! each step had. The tests add up modelled times, so that they do not depend on the speed of the
//! machine.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use millrace_integration_tests::{JsonResponse, LoggedStep, ModelCopy, Server, StepLogFile, post, stream};
use serde_json::{Value, json};

/// The number of tokens of a long prompt.
const LONG_PROMPT: u64 = 4000;

/// The number of tokens that each stream has received when the test goes on.
const STARTED: usize = 4;

/// Costs of a device on which a decode step of one sequence takes about 10 ms, one of 16 sequences
/// 14 ms, and a step with 512 tokens of a prompt 140 ms.
const COSTS: [&str; 6] =
    ["--null-step-micros", "10000", "--null-token-nanos", "250000", "--null-key-nanos", "5"];

/// A server on a modelled device, and the log of its steps.
struct ModelledServer {
    server: Server,
    log: StepLogFile,
    _model: ModelCopy,
}

impl ModelledServer {
    /// Starts the server. `name` must be unique within this process.
    fn start(name: &str) -> ModelledServer {
        let model = ModelCopy::new(name);
        model.edit("config.json", |config| config["max_position_embeddings"] = json!(8192));
        let log = StepLogFile::new(name);
        let device = ["--model-id", model.path(), "--device", "null", "--null-step-log", log.path()];
        let server = Server::start(&[&device[..], &COSTS].concat());
        ModelledServer { server, log, _model: model }
    }

    /// Runs streams that do not end by themselves, and calls `during` when all of them have tokens.
    fn with_streams(&self, count: usize, during: impl FnOnce()) {
        let (started, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for number in 0..count {
                let (started, is_over, url) = (&started, &is_over, self.server.url("/v1/completions"));
                let body = json!({"prompt": format!("{number} foxes"), "max_tokens": 6000,
                                  "ignore_eos": true, "stream": true});
                scope.spawn(move || {
                    for (index, _) in stream(&url, &body).enumerate() {
                        started.fetch_add(usize::from(index + 1 == STARTED), Ordering::Relaxed);
                        if is_over.load(Ordering::Relaxed) {
                            return;
                        }
                    }
                });
            }
            let _end = SetOnDrop(&is_over);
            self.server.wait_until("all streams run", |_| started.load(Ordering::Relaxed) == count);
            during();
        });
    }

    /// Sends a prompt of [`LONG_PROMPT`] tokens that begins like no other one.
    fn long_prompt(&self, number: u64, parameters: Value) -> JsonResponse {
        let ids: Vec<u64> = (0..LONG_PROMPT).map(|index| 300 + (index * 7 + number) % 200).collect();
        let mut body = json!({"prompt": ids, "max_tokens": 2, "ignore_eos": true});
        body.as_object_mut().unwrap().extend(parameters.as_object().unwrap().clone());
        let answer = post(&self.server.url("/v1/completions"), &body);
        assert_eq!(answer.status, 200, "{}", answer.body);
        assert_eq!(answer.body["usage"]["prompt_tokens"], LONG_PROMPT);
        answer
    }
}

/// Ends the streams, also if the test fails in the meantime.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Returns the number of tokens of long prompts that the steps computed.
fn computed_prompt_tokens(steps: &[LoggedStep]) -> u64 {
    let mut prompts = BTreeMap::new();
    let mut computed = 0;
    for step in steps {
        prompts.extend(step.admitted.iter().copied());
        for row in &step.rows {
            let prompt = prompts[&row.slot];
            if prompt == LONG_PROMPT {
                computed += (row.start + row.count).min(prompt).saturating_sub(row.start);
            }
        }
    }
    computed
}

/// Returns the slot of the last long prompt, and the steps from its admission to its last chunk.
fn steps_of_last_prompt(steps: &[LoggedStep]) -> (u64, &[LoggedStep]) {
    let is_long =
        |step: &LoggedStep| step.admitted.iter().find(|(_, prompt)| *prompt == LONG_PROMPT).copied();
    let first = steps.iter().rposition(|step| is_long(step).is_some()).unwrap();
    let (slot, _) = is_long(&steps[first]).unwrap();
    let is_chunk =
        |step: &LoggedStep| step.rows.iter().any(|row| row.slot == slot && row.start < LONG_PROMPT);
    let last = steps.iter().rposition(is_chunk).unwrap();
    (slot, &steps[first..=last])
}

/// Returns the modelled time of a step in which `streams` sequences decode and nothing else
/// happens.
fn decode_step(steps: &[LoggedStep], streams: usize) -> Duration {
    let is_decode = |step: &&LoggedStep| {
        step.rows.len() == streams && step.admitted.is_empty() && step.rows.iter().all(|row| row.count == 1)
    };
    steps.iter().filter(is_decode).map(|step| step.time).max().unwrap()
}

/// Returns the longest modelled time between two tokens of one of the streams.
fn longest_gap(steps: &[LoggedStep], prompt_slot: u64) -> Duration {
    // The time since the last token of each stream that the first step has.
    let slots = steps[0].rows.iter().map(|row| row.slot).filter(|slot| *slot != prompt_slot);
    let mut since: BTreeMap<u64, Duration> = slots.map(|slot| (slot, Duration::ZERO)).collect();
    let mut longest = Duration::ZERO;
    for step in steps {
        for (slot, since) in &mut since {
            *since += step.time;
            longest = longest.max(*since);
            if step.rows.iter().any(|row| row.slot == *slot) {
                *since = Duration::ZERO;
            }
        }
    }
    longest
}

/// Runs two long prompts one after the other beside streams. Returns the longest modelled gap of a
/// stream while the second one was computed, the modelled time of a decode step, and the number of
/// steps of the second prompt. The first prompt shows the server what a chunk costs.
fn gap_beside_a_long_prompt(name: &str, streams: usize) -> (Duration, Duration, usize) {
    let modelled = ModelledServer::start(name);
    modelled.with_streams(streams, || {
        for number in 0..2 {
            modelled.long_prompt(number, json!({}));
        }
    });
    let steps = modelled.log.steps();
    let (slot, chunks) = steps_of_last_prompt(&steps);
    assert_eq!(chunks[0].rows.len(), streams + 1, "the streams run beside the prompt");
    (longest_gap(chunks, slot), decode_step(&steps, streams), chunks.len())
}

#[test]
fn every_prompt_token_is_computed_once_and_logged() {
    let modelled = ModelledServer::start("latency-log");
    let answer = modelled.long_prompt(0, json!({"max_tokens": 5}));
    assert_eq!(answer.body["usage"]["completion_tokens"], 5);
    let steps = modelled.log.steps();
    assert_eq!(computed_prompt_tokens(&steps), LONG_PROMPT);
    // The prompt's last token and each generated token but the last have been run. The sequence may
    // have a row in the step that was sent before the router knew of its end.
    let decodes = steps.iter().flat_map(|step| &step.rows).filter(|row| row.start >= LONG_PROMPT).count();
    assert!((4..=5).contains(&decodes), "{decodes}");
    for step in &steps {
        let (mut tokens, mut keys) = (0, 0);
        for row in &step.rows {
            tokens += row.count;
            keys += (row.start + 1..=row.start + row.count).sum::<u64>();
        }
        let expected = 10_000_000 + 250_000 * tokens + 5 * keys;
        assert_eq!(step.time, Duration::from_nanos(expected), "{step:?}");
    }
}

#[test]
fn a_long_prompt_delays_sixteen_streams_by_little() {
    let (gap, decode, chunks) = gap_beside_a_long_prompt("latency-sixteen", 16);
    assert!(gap <= decode.mul_f64(2.2), "a gap of {gap:?} where a decode step takes {decode:?}");
    // The prompt goes on at a useful speed: 20 tokens a step on average.
    assert!(chunks <= 200, "{chunks} chunks");
}

#[test]
fn a_long_prompt_delays_a_single_stream_by_little() {
    let (gap, decode, chunks) = gap_beside_a_long_prompt("latency-single", 1);
    assert!(gap <= decode * 6, "a gap of {gap:?} where a decode step takes {decode:?}");
    assert!(chunks <= 200, "{chunks} chunks");
}

#[test]
fn two_answers_to_a_long_prompt_compute_it_about_once() {
    let modelled = ModelledServer::start("latency-two");
    let answer = modelled.long_prompt(0, json!({"n": 2, "temperature": 1.0, "seed": 7}));
    assert_eq!(answer.body["choices"].as_array().unwrap().len(), 2);
    let computed = computed_prompt_tokens(&modelled.log.steps());
    assert!((LONG_PROMPT..LONG_PROMPT * 6 / 5).contains(&computed), "{computed} of {LONG_PROMPT}");
}
