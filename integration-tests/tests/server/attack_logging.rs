//! Tests a log that cannot be written. Log lines are lost, and no request fails.

use std::fs::File;
use std::process::{Command, Stdio};

use millrace_integration_tests::{Server, binary, post, shards_of, signal};
use serde_json::json;

/// The number of requests of one test. With `LOG_LEVEL=debug` they write more than the 64 KiB that
/// a pipe holds.
const REQUESTS: usize = 300;

/// Checks that a server serves requests and ends normally, whatever happens to its log.
fn serves_and_ends(stderr: impl Into<Stdio>) {
    // If the log delayed the shutdown, the server would not end within the time of the test.
    let flags = ["--env", "--log-requests", "--graceful-termination-timeout", "86400"];
    let server = Server::start_with_stderr(stderr.into(), &[("LOG_LEVEL", "debug")], &flags);
    let ask = |tokens: usize| {
        let body = json!({"inputs": "Once upon a time", "parameters": {"max_new_tokens": tokens}});
        let answer = post(&server.url("/generate"), &body);
        assert_eq!(answer.status, 200, "{}", answer.body);
    };
    (0..REQUESTS).for_each(|_| ask(1));
    for shard in shards_of(server.pid()) {
        signal(shard, "KILL");
    }
    server
        .wait_until("the shard is replaced", |server| server.metric("millrace_shard_restarts_total") >= 1.0);
    ask(20);
    assert_eq!(server.get("/health").0, 200);
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn a_full_disk_costs_no_request() {
    serves_and_ends(File::options().write(true).open("/dev/full").unwrap());
}

#[test]
fn a_closed_pipe_costs_no_request() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    serves_and_ends(writer);
}

#[test]
fn a_pipe_that_nobody_reads_costs_no_request() {
    let (reader, writer) = std::io::pipe().unwrap();
    serves_and_ends(writer);
    drop(reader);
}

#[test]
fn lost_lines_are_counted() {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let server = Server::start_with_stderr(full.into(), &[], &[]);
    let before = server.metric("millrace_log_lines_dropped_total");
    assert!(before >= 1.0, "those of the start: {before}");
    let body = json!({"inputs": "Once", "parameters": {"max_new_tokens": 1}});
    assert_eq!(post(&server.url("/generate"), &body).status, 200);
    server.wait_until("its line is counted", |server| {
        server.metric("millrace_log_lines_dropped_total") > before
    });
    let heard = Server::start(&[]);
    assert_eq!(heard.metric("millrace_log_lines_dropped_total"), 0.0);
    assert!(heard.get("/metrics").1.contains("millrace_log_lines_dropped_total 0"));
}

#[test]
fn errors_set_the_exit_code_without_a_reader() {
    let (reader, closed) = std::io::pipe().unwrap();
    drop(reader);
    for stderr in [Stdio::from(closed), File::options().write(true).open("/dev/full").unwrap().into()] {
        let status = Command::new(binary())
            .args(["serve", "--port", "0", "--model-id", "/no/such/folder"])
            .env("LOG_LEVEL", "=/=,info")
            .stdin(Stdio::null())
            .stderr(stderr)
            .status()
            .unwrap();
        assert_eq!(status.code(), Some(1));
    }
}
