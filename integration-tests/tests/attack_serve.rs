//! Tests connections, bodies and signals that are meant to keep the server from responding or from
//! ending.
#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

use std::cell::RefCell;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use millrace_integration_tests::{
    Attack, AttackOutcome, Server, attack, post, raw_post, resident_bytes, shards_of, signal, stream,
};
use serde_json::json;

/// Longer than anything here takes on a busy machine, and shorter than the default grace period of
/// 90 s.
const TIMEOUT: Duration = Duration::from_secs(40);

const POST: &str = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n";

fn connect(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(server.address()).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream
}

/// Reads until the server closes the connection.
fn rest(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    String::from_utf8(bytes).unwrap()
}

fn is_alive(pid: u32) -> bool {
    let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The state follows the name. A zombie has ended.
    state.rsplit(')').next().is_some_and(|state| !state.is_empty() && !state.trim_start().starts_with('Z'))
}

#[test]
fn a_body_with_an_excessive_content_length_is_refused_before_it_is_sent() {
    let server = Server::start(&["--payload-limit", "1000"]);
    for head in ["", "expect: 100-continue\r\n"] {
        let mut client = connect(&server);
        client.write_all(format!("{POST}{head}content-length: 1000000000000\r\n\r\n").as_bytes()).unwrap();
        let text = rest(&mut client);
        assert!(text.starts_with("HTTP/1.1 413") && text.contains("connection: close"), "{text}");
        assert!(
            text.contains(r#"{"error":{"message":"Failed to buffer the request body: length limit"#),
            "{text}"
        );
    }
    // Everything is written before the response is read.
    let mut client = connect(&server);
    client.write_all(&raw_post("/v1/completions", &[b' '; 3 << 20])).unwrap();
    assert!(rest(&mut client).starts_with("HTTP/1.1 413"));
}

#[test]
fn bodies_that_never_end_take_bounded_memory() {
    const CROWD: usize = 300;
    let limits = ["--max-body-bytes-in-flight", "20000000", "--body-timeout", "8"];
    let server = Server::start(&limits);
    let begin = resident_bytes(server.pid());
    let part = vec![b' '; 1_900_000];
    // All bodies together would have 570 MB.
    let refused = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CROWD)
            .map(|_| {
                scope.spawn(|| {
                    let mut client = connect(&server);
                    let head = format!("{POST}content-length: 2000000\r\n\r\n");
                    let _ = client.write_all(head.as_bytes()).and_then(|()| client.write_all(&part));
                    let mut status = [0; 12];
                    client.read_exact(&mut status).is_ok_and(|()| &status == b"HTTP/1.1 503")
                })
            })
            .collect();
        clients.into_iter().map(|client| client.join().unwrap()).filter(|refused| *refused).count()
    });
    let grown = resident_bytes(server.pid()).saturating_sub(begin);
    println!("{refused} of {CROWD} bodies were refused; {} MiB more", grown >> 20);
    assert!(refused >= CROWD * 9 / 10, "all that did not fit: {refused}");
    assert!(grown < 200 << 20, "{grown} bytes");
    assert!(server.metric("millrace_bodies_refused_total") >= refused as f64);
    let short = json!({"inputs": "a", "parameters": {"max_new_tokens": 1}});
    assert_eq!(post(&server.url("/generate"), &short).status, 200);
}

#[test]
fn an_incomplete_body_does_not_delay_the_shutdown() {
    let server = Server::start(&[]);
    let mut client = connect(&server);
    client.write_all(format!("{POST}content-length: 100\r\n\r\n{{").as_bytes()).unwrap();
    // A later response shows that the route waits for the body.
    assert_eq!(server.get("/v1/models").0, 200);
    let since = Instant::now();
    server.signal("TERM");
    let text = rest(&mut client);
    assert!(text.starts_with("HTTP/1.1 503") && text.contains("shutting down"), "{text}");
    assert_eq!(server.wait().code(), Some(0));
    assert!(since.elapsed() < TIMEOUT, "{:?}", since.elapsed());
}

#[test]
fn a_second_signal_ends_a_server_that_waits_for_its_requests() {
    for second in ["TERM", "INT"] {
        let server = Server::start(&[]);
        let body = json!({"inputs": "Once upon a time", "parameters": {"max_new_tokens": 100}});
        let mut events = stream(&server.url("/generate_stream"), &body);
        assert!(events.next().is_some());
        let shards = shards_of(server.pid());
        // The stopped shards keep the request from ending.
        shards.iter().for_each(|&shard| signal(shard, "STOP"));
        server.signal("TERM");
        server.wait_until("it drains", |server| server.get("/ready").0 == 503);
        let since = Instant::now();
        server.signal(second);
        assert_eq!(server.wait().code(), Some(1));
        assert!(since.elapsed() < TIMEOUT, "{:?}", since.elapsed());
        shards.iter().for_each(|&shard| signal(shard, "CONT"));
        while shards.iter().any(|&shard| is_alive(shard)) {
            assert!(since.elapsed() < TIMEOUT, "a shard outlives its server");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn a_server_that_was_paused_is_not_stuck() {
    let server = Server::start(&["--watchdog-timeout", "1"]);
    server.signal("STOP");
    std::thread::sleep(Duration::from_secs(3));
    server.signal("CONT");
    for _ in 0..50 {
        assert_eq!(server.get("/health").0, 200);
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(server.metric("millrace_runtime_stalls_total"), 0.0, "{}", server.log());
}

#[test]
fn probes_have_a_port_of_their_own() {
    let server = Server::start(&["--health-port", "0", "--max-connections", "2"]);
    server.wait_for_log("probes are answered on http://");
    let log = server.log();
    let (_, rest) = log.split_once("probes are answered on http://").unwrap();
    let address = rest.split_whitespace().next().unwrap().to_owned();
    let held = RefCell::new(Vec::new());
    server.wait_until("it is full", |server| {
        // A connection that arrived while an earlier client was still leaving was refused.
        held.borrow_mut().push(connect(server));
        server.get("/health").0 != 200
    });
    for (path, status) in [("/health", 200), ("/ready", 200), ("/ping", 200), ("/metrics", 404)] {
        let question = format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n").into_bytes();
        assert_eq!(attack(&address, &Attack::Write(question)), AttackOutcome::Status(status), "{path}");
    }
}

/// An HTTP/2 client that reads nothing of its streams' responses, and the requests that it causes.
#[test]
fn streams_whose_windows_stay_closed_are_cancelled() {
    const STREAMS: usize = 20;
    let server = Server::start(&["--write-timeout", "1", "--max-batch-size", "32"]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let hold = async {
        let socket = tokio::net::TcpStream::connect(server.address()).await.unwrap();
        let (mut client, connection) =
            h2::client::Builder::new().initial_window_size(0).handshake::<_, &[u8]>(socket).await.unwrap();
        let connection = tokio::spawn(connection);
        let mut responses = Vec::new();
        for _ in 0..STREAMS {
            let request = http::Request::post("http://x/generate_stream")
                .header("content-type", "application/json")
                .body(())
                .unwrap();
            client = client.ready().await.unwrap();
            let (response, mut body) = client.send_request(request, false).unwrap();
            let text: &[u8] = br#"{"inputs":"Once","parameters":{"max_new_tokens":900,"stop":["\u0001"]}}"#;
            body.send_data(text, true).unwrap();
            responses.push((response, body));
        }
        // The bodies are kept and not read.
        let mut held = Vec::new();
        for (response, _) in responses {
            let response = response.await.unwrap();
            assert_eq!(response.status(), 200);
            held.push(response);
        }
        let since = Instant::now();
        let closed = tokio::time::timeout(TIMEOUT, connection).await;
        assert!(closed.is_ok(), "the connection is closed after --write-timeout");
        println!("closed after {:?}", since.elapsed());
        drop(held);
    };
    runtime.block_on(hold);
    server.wait_until("nothing runs", |server| server.metric("tgi_batch_current_size") == 0.0);
}
