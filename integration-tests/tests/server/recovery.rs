//! Tests what clients see when shards die or hang, when the server is full, and when it shuts down.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use millrace_integration_tests::{ModelCopy, Server, post, private_bytes, seconds, stream};
use millrace_test_patience::patience;
use serde_json::{Value, json};

/// Returns alternating greedy and seeded requests, long enough for a shard to die in the middle.
pub(crate) fn requests(count: usize) -> Vec<Value> {
    let request = |i: usize| {
        let mut parameters = json!({"max_new_tokens": 420, "stop": ["\u{1}"], "details": true});
        if i % 2 == 1 {
            parameters["do_sample"] = json!(true);
            parameters["temperature"] = json!(0.9);
            parameters["seed"] = json!(i);
        }
        json!({"inputs": format!("Once upon a time there were {i} foxes"), "parameters": parameters})
    };
    (0..count).map(request).collect()
}

/// A request that runs until the model's context is full, for tests that must find it unfinished.
fn long_request() -> Value {
    json!({"prompt": "Once upon a time", "max_tokens": 1000, "ignore_eos": true, "temperature": 0, "stream": true})
}

/// Flags of a server that waits for stopped shards, and for requests that run while it drains.
const PATIENT: [&str; 4] = ["--heartbeat-timeout", "86400", "--graceful-termination-timeout", "86400"];

/// Runs all requests as concurrent streams. `seen` counts their tokens.
pub(crate) fn texts(server: &Server, requests: &[Value], seen: &AtomicUsize) -> Vec<String> {
    std::thread::scope(|scope| {
        let clients: Vec<_> = requests
            .iter()
            .map(|request| {
                scope.spawn(move || {
                    let mut text = String::new();
                    for (index, event) in stream(&server.url("/generate_stream"), request).enumerate() {
                        assert_eq!(event["index"], index + 1, "a token is lost or doubled: {event}");
                        // A special token is reported as a token and is not part of the text.
                        if event["token"]["special"] == false {
                            text += event["token"]["text"].as_str().unwrap();
                        }
                        seen.fetch_add(1, Ordering::Relaxed);
                        if let Some(whole) = event["generated_text"].as_str() {
                            assert_eq!(whole, text);
                        }
                    }
                    text
                })
            })
            .collect();
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    })
}

/// Sends the shard this signal three times in the middle of 16 streams.
///
/// A stream that runs alone in quarantine when the shard is lost is blamed and fails. The signals
/// are no fault of a stream, so each waits until the quarantine of the loss before is over.
fn streams_survive(name: &str, flags: &[&str]) {
    let server = Server::start(flags);
    let requests = requests(16);
    let seen = AtomicUsize::new(0);
    let expected = texts(&server, &requests, &seen);
    let total = seen.swap(0, Ordering::Relaxed);
    assert!(total > 1600, "only {total} tokens");

    let got = std::thread::scope(|scope| {
        let (server, seen) = (&server, &seen);
        scope.spawn(move || {
            for part in [10, 30, 50] {
                server.wait_until("tokens flow and no stream is in quarantine", |server| {
                    seen.load(Ordering::Relaxed) > total * part / 100
                        && server.metric("millrace_quarantined_sequences") == 0.0
                });
                let before = server.metric("millrace_shard_restarts_total");
                server.signal_shards(name);
                let since = Instant::now();
                server.wait_until("the shard is back", |server| {
                    assert_eq!(server.get("/health").0, 200);
                    server.metric("millrace_shard_restarts_total") > before
                });
                println!(
                    "{name} at {part}%: a new shard after {:.0} ms",
                    since.elapsed().as_secs_f64() * 1e3
                );
            }
        });
        texts(server, &requests, seen)
    });
    for (index, (got, expected)) in got.iter().zip(&expected).enumerate() {
        assert_eq!(got, expected, "stream {index} differs");
    }
    assert_eq!(seen.load(Ordering::Relaxed), total);
    assert!(server.metric("millrace_shard_restarts_total") >= 3.0);
    let seconds =
        server.metric("millrace_recovery_duration_sum") / server.metric("millrace_recovery_duration_count");
    println!("from a loss to the first new token: {:.0} ms", seconds * 1e3);
    idle(&server);
}

/// Checks that no request waits or runs.
fn idle(server: &Server) {
    server.wait_until("nothing is left", |server| {
        server.metric("tgi_batch_current_size") == 0.0 && server.metric("tgi_queue_size") == 0.0
    });
}

#[test]
fn killing_the_shard_three_times_changes_no_text() {
    streams_survive("KILL", &[]);
}

#[test]
fn stopping_the_shard_three_times_changes_no_text() {
    // The test waits for this time at each stop. A busy machine may not use it up.
    let timeout = seconds(patience(Duration::from_millis(1500)));
    streams_survive("STOP", &["--step-timeout", &timeout, "--heartbeat-timeout", "600"]);
}

#[test]
fn shards_that_never_come_back_end_the_server_with_a_clear_error() {
    let model = ModelCopy::new("gone");
    let failures = ["--max-shard-failures", "4", "--shard-failure-window", "1"];
    let server = Server::start(&[&["--model-id", model.path()], failures.as_slice()].concat());
    let mut events = stream(&server.url("/v1/completions"), &long_request());
    assert!(events.next().is_some());
    // The stopped shards generate nothing while the file is removed.
    server.signal_shards("STOP");
    std::fs::remove_file(Path::new(model.path()).join("model.safetensors")).unwrap();
    server.signal_shards("KILL");
    let last = events.last().unwrap();
    assert!(last["error"]["message"].as_str().unwrap().contains("safetensors"), "{last}");
    server.wait_for_log("started again in");
    assert_eq!(server.wait().code(), Some(1));
}

#[test]
fn an_overfull_server_refuses_and_loses_nothing() {
    const CLIENTS: usize = 400;
    const EACH: usize = 5;
    let limits = ["--max-concurrent-requests", "200", "--max-queue-requests", "100"];
    let server = Server::start(&[limits, PATIENT].concat());
    let memory = || private_bytes(server.pid()) >> 10;
    // The stopped shards answer no request until the server has refused one.
    server.signal_shards("STOP");
    let (done, half, refused) = (AtomicUsize::new(0), AtomicUsize::new(0), Once::new());
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let (server, done, half, memory, refused) = (&server, &done, &half, &memory, &refused);
                scope.spawn(move || {
                    let ask = |round: usize| {
                        let tokens = 1 + (client * 7 + round * 3) % 20;
                        let body = json!({"inputs": format!("{client} foxes and {round} hens"),
                                          "parameters": {"max_new_tokens": tokens, "stop": ["\u{1}"], "details": true}});
                        let answer = post(&server.url("/generate"), &body);
                        if answer.status == 200 {
                            let details = &answer.body["details"];
                            let ended = details["finish_reason"] != "length" || details["generated_tokens"] == tokens;
                            assert!(ended, "{}", answer.body);
                        } else {
                            refused.call_once(|| server.signal_shards("CONT"));
                            let seconds: u64 = answer.header("retry-after").unwrap().parse().unwrap();
                            assert!((1..=600).contains(&seconds), "{seconds}");
                        }
                        if done.fetch_add(1, Ordering::Relaxed) == CLIENTS * EACH / 2 {
                            half.store(memory() as usize, Ordering::Relaxed);
                        }
                        answer.status
                    };
                    (0..EACH).map(ask).collect::<Vec<u16>>()
                })
            })
            .collect();
        clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
    });
    let mut counts = BTreeMap::new();
    statuses.iter().for_each(|&status| *counts.entry(status).or_insert(0) += 1);
    let (half, end) = (half.into_inner() as u64, memory());
    println!("answers by status: {counts:?}; memory after half {half} KiB, in the end {end} KiB");
    assert_eq!(statuses.len(), CLIENTS * EACH);
    assert!(counts.keys().all(|status| [200, 429, 503].contains(status)), "{counts:?}");
    assert!(counts[&200] >= 200 && counts.contains_key(&429), "{counts:?}");
    assert_eq!(server.metric("tgi_request_success"), f64::from(counts[&200]));
    assert!(end < half + (32 << 10), "memory grows from {half} to {end} KiB");
    idle(&server);
}

#[test]
fn a_draining_server_reports_that_it_is_draining() {
    let server = Server::start(&PATIENT);
    let mut running: Vec<_> =
        (0..12).map(|_| stream(&server.url("/v1/completions"), &long_request())).collect();
    assert!(running.iter_mut().all(|events| events.next().is_some()));
    // The stopped shards keep the server draining until the test has seen it.
    server.signal_shards("STOP");
    server.signal("TERM");
    server.wait_until("it is not ready", |server| server.get("/ready").0 == 503);
    assert_eq!(server.get("/health").0, 200);
    for path in ["/generate", "/generate_stream"] {
        let refused = post(&server.url(path), &json!({"inputs": "a"}));
        assert_eq!(
            (refused.status, refused.header("retry-after").is_some()),
            (503, true),
            "{}",
            refused.body
        );
    }
    server.signal_shards("CONT");
    for events in running {
        let last = events.last().unwrap();
        assert_eq!(last["choices"][0]["finish_reason"], "length", "the stream ended early: {last}");
    }
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn draining_ends_with_error_events_when_time_is_up() {
    // Nothing but the grace period ends the requests: they would wait for the stopped shards longer
    // than the test waits.
    let flags =
        ["--graceful-termination-timeout", "1", "--max-batch-size", "2", "--heartbeat-timeout", "86400"];
    let server = Server::start(&flags);
    let mut held: Vec<_> = (0..2).map(|_| stream(&server.url("/v1/completions"), &long_request())).collect();
    assert!(held.iter_mut().all(|events| events.next().is_some()));
    // The stopped shards keep all requests unfinished.
    server.signal_shards("STOP");
    server.signal("TERM");
    for events in held {
        let last = events.last().unwrap();
        assert!(last["error"]["message"].as_str().unwrap().contains("shutting down"), "{last}");
    }
    assert_eq!(server.wait().code(), Some(0));
}
