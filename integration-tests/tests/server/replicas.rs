//! Tests of several groups of shards behind one router (`--replicas`): requests move when a group
//! is lost or restarted, and no text changes.

use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use millrace_integration_tests::{Server, binary, post, shards_of, signal};
use serde_json::{Value, json};

use crate::recovery::{requests, texts};

const ADMIN: [&str; 2] = ["--admin-key", "an-admin-key"];

/// Runs these requests as concurrent streams, each again and again, until `disturb` is over, which
/// gets the number of tokens so far. Checks that each text is the one of a server with one group.
fn texts_stay_the_same(server: &Server, disturb: impl FnOnce(&AtomicUsize) + Send) {
    let (requests, seen, over) = (requests(12), AtomicUsize::new(0), AtomicBool::new(false));
    let expected = texts(&Server::start(&[]), &requests, &seen);
    seen.store(0, Ordering::Relaxed);
    std::thread::scope(|scope| {
        let (seen, over) = (&seen, &over);
        for (request, expected) in requests.chunks(1).zip(&expected) {
            scope.spawn(move || {
                // The others must not wait for a stream that has failed.
                let ended = End(over);
                while !over.load(Ordering::Relaxed) {
                    assert_eq!(texts(server, request, seen)[0], *expected);
                }
                std::mem::forget(ended);
            });
        }
        let ended = End(over);
        disturb(seen);
        drop(ended);
    });
    idle(server);
}

/// Ends all streams after the disturbances, or when something fails.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Checks that no request waits or runs in any group.
fn idle(server: &Server) {
    let gauges = ["tgi_batch_current_size", "tgi_queue_size", "millrace_kv_blocks_used"];
    server.wait_until("nothing is left", |server| {
        gauges.iter().all(|name| server.metric(name) + server.metric_of_all(name) == 0.0)
    });
}

/// Returns the shard of a group that runs requests. A shard that hangs without work is noticed
/// late.
fn busy_shard(server: &Server) -> u32 {
    let is_busy = |group: usize| {
        let line = format!("tgi_batch_current_size{{group=\"{group}\"}} ");
        server.get("/metrics").1.lines().any(|text| text.strip_prefix(&line).is_some_and(|size| size != "0"))
    };
    let busy = || {
        let shards = shards_of(server.pid());
        shards.into_iter().find(|&shard| group_of(shard).is_some_and(is_busy))
    };
    server.wait_until("a group runs requests", |_| busy().is_some());
    busy().expect("a stream runs in one group or the other")
}

/// Returns the group of a shard, as its options say.
fn group_of(shard: u32) -> Option<usize> {
    let arguments = std::fs::read_to_string(format!("/proc/{shard}/cmdline")).ok()?;
    let (_, replica) = arguments.split_once(r#""replica":{"index":"#)?;
    replica.split_once(',')?.0.parse().ok()
}

/// Sends a shard of a busy group this signal, four times in the middle of streams.
///
/// A stream that runs alone in quarantine when its shard is lost is blamed and fails. The signals
/// are no fault of a stream, so each waits until no stream is in quarantine.
fn streams_survive(name: &str, flags: &[&str]) {
    let server = Server::start(&[&["--replicas", "2"], flags].concat());
    assert_eq!(shards_of(server.pid()).len(), 2);
    texts_stay_the_same(&server, |seen| {
        for _ in 0..4 {
            let before = (server.metric("millrace_shard_restarts_total"), seen.load(Ordering::Relaxed));
            server.wait_until("tokens flow and no stream is in quarantine", |server| {
                seen.load(Ordering::Relaxed) > before.1 + 500
                    && server.metric_of_all("millrace_quarantined_sequences") == 0.0
            });
            signal(busy_shard(&server), name);
            server.wait_until("the shard is back", |server| {
                assert_eq!(server.get("/ready").0, 200, "the other group serves");
                server.metric("millrace_shard_restarts_total") > before.0
            });
        }
    });
    assert_eq!(server.metric("millrace_shard_restarts_total"), 4.0);
}

#[test]
fn killing_shards_of_two_groups_changes_no_text() {
    streams_survive("KILL", &[]);
}

#[test]
fn stopping_shards_of_two_groups_changes_no_text() {
    let timeout = millrace_integration_tests::seconds(millrace_test_patience::patience(
        std::time::Duration::from_millis(1500),
    ));
    streams_survive("STOP", &["--step-timeout", &timeout, "--heartbeat-timeout", "600"]);
}

/// Runs `millrace restart-groups` with this key.
fn restart_groups(server: &Server, key: &str) -> Output {
    let url = format!("http://{}", server.address());
    let mut command = Command::new(binary());
    command.args(["restart-groups", "--url", &url, "--admin-key", key]).output().unwrap()
}

#[test]
fn groups_are_restarted_one_by_one_and_no_text_changes() {
    for replicas in [2, 1] {
        let count = replicas.to_string();
        let server = Server::start(&[&["--replicas", &count][..], &ADMIN].concat());
        let first = shards_of(server.pid());
        texts_stay_the_same(&server, |seen| {
            for turn in 1..3 {
                let before = seen.load(Ordering::Relaxed);
                server.wait_until("tokens flow", |_| seen.load(Ordering::Relaxed) > before + 300);
                let output = restart_groups(&server, ADMIN[1]);
                let text = String::from_utf8(output.stdout).unwrap();
                assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
                assert_eq!(text.lines().count(), replicas, "{text}");
                assert!(text.starts_with(&format!("group 1 of {replicas}: ready after ")), "{text}");
                assert_eq!(server.metric("millrace_shard_restarts_total"), (turn * replicas) as f64);
            }
        });
        let last = shards_of(server.pid());
        assert!(last.len() == replicas && last.iter().all(|shard| !first.contains(shard)), "{last:?}");
        assert!(!server.log().contains("lost the shards"), "{}", server.log());
    }
}

#[test]
fn only_the_admin_key_restarts_groups() {
    let server = Server::start(&[&["--replicas", "2", "--api-key", "client"][..], &ADMIN].concat());
    let shards = shards_of(server.pid());
    for wrong in ["client", "wrong"] {
        let output = restart_groups(&server, wrong);
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && error.contains("/v1/restart_groups: 401"), "{error}");
    }
    assert_eq!(shards_of(server.pid()), shards);
    let server = Server::start(&[]);
    let answer = post(&server.url("/v1/restart_groups"), &json!({}));
    let text = answer.body.to_string();
    assert!(answer.status == 403 && text.contains("--admin-key"), "{text}");
}

/// The next turn of a conversation goes to the group that has the turns before, and conversations
/// are spread over the groups.
#[test]
fn conversations_stay_with_their_prefixes() {
    let server = Server::start(&["--replicas", "2"]);
    let prompt = |conversation: usize| {
        let facts: Vec<String> = (0..30).map(|n| format!("Fox {conversation} has {n} lemons.")).collect();
        facts.join(" ")
    };
    let ask = |text: &str| {
        let body = json!({"inputs": text, "parameters": {"max_new_tokens": 20, "details": true}});
        let answer = post(&server.url("/generate"), &body);
        assert_eq!(answer.status, 200, "{}", answer.body);
        let cached: usize = answer.header("x-cached-tokens").unwrap().parse().unwrap();
        (answer.body["generated_text"].as_str().unwrap().to_owned(), cached)
    };
    let mut texts: Vec<String> = (0..8).map(prompt).collect();
    for turn in 0..3 {
        for text in &mut texts {
            let (said, cached) = ask(text);
            assert!(turn == 0 || cached > 100, "turn {turn}: {cached} tokens are cached");
            *text += &format!("{said} And then?");
        }
    }
    // Each group has had some of them.
    let metrics = server.get("/metrics").1;
    for group in 0..2 {
        let line = format!("millrace_prefix_cache_hit_tokens_total{{group=\"{group}\"}} ");
        let hits: f64 = metrics.lines().find_map(|text| text.strip_prefix(&line)).unwrap().parse().unwrap();
        assert!(hits > 100.0, "group {group}: {hits}");
    }
}

/// Adapters of the start are loaded on each group, and answers do not depend on the group.
#[test]
fn each_group_has_the_adapters_of_the_start() {
    let adapter = millrace_integration_tests::AdapterFolder::new("replicas", 3);
    let flags = ["--lora-adapters", &adapter.named("fox")];
    let [alone, server] = [&[][..], &["--replicas", "2", "--enable-lora"]]
        .map(|further| Server::start(&[&flags[..], &ADMIN, further].concat()));
    let body = |i: usize, model: &str| json!({"model": model, "prompt": format!("Once there were {i} foxes"), "max_tokens": 30, "temperature": 0});
    let text = |server: &Server, body: &Value| {
        let answer = post(&server.url("/v1/completions"), body);
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.body["choices"][0]["text"].clone()
    };
    for i in 0..6 {
        for model in ["fox", "tgi"] {
            assert_eq!(text(&server, &body(i, model)), text(&alone, &body(i, model)), "{i} {model}");
        }
    }
    let load = json!({"lora_name": "other", "lora_path": adapter.path()});
    let key = [("authorization", "Bearer an-admin-key")];
    let answer = millrace_integration_tests::post_with(&server.url("/v1/load_lora_adapter"), &key, &load);
    let error = answer.body.to_string();
    assert!(answer.status == 400 && error.contains("--replicas"), "{error}");
}

#[test]
fn what_several_groups_cannot_do_is_refused_by_name() {
    let folder = std::env::temp_dir().join("millrace-replicas-disk");
    let disk = format!("{},1G", folder.display());
    for (flags, named) in [
        (&["--kv-disk", &disk, "--device", "cpu"][..], "--kv-disk and --replicas cannot be combined"),
        (&["--nnodes", "2"], "--replicas and --nnodes cannot be combined"),
        (&["--gpu-memory", "1G"], "--gpu-memory and --replicas cannot be combined"),
        (
            &["--kv-events-config", r#"{"enable_kv_cache_events": true, "endpoint": "tcp://127.0.0.1:0"}"#],
            "--kv-events-config and --replicas cannot be combined",
        ),
    ] {
        let output = Command::new(binary())
            .args(["serve", "--port", "0", "--replicas", "2"])
            .args(flags)
            .env_remove("MODEL_ID")
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains(named), "{flags:?}: {error}");
    }
}
