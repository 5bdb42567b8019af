//! Tests connections, bodies and signals that are meant to keep the server from responding or from
//! ending.

use std::cell::RefCell;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use millrace_integration_tests::{
    Attack, AttackOutcome, Server, attack, post, private_bytes, raw_post, seconds, shards_of, signal, stream,
    wait_for_end_of, wait_limit,
};
use millrace_test_patience::patience;
use serde_json::json;

/// Flags of a server that ends within the time of a test only if it does not wait for its requests.
const GRACE: [&str; 2] = ["--graceful-termination-timeout", "86400"];

const POST: &str = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n";

fn connect(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(server.address()).unwrap();
    stream.set_read_timeout(Some(wait_limit())).unwrap();
    stream
}

/// Reads until the server closes the connection.
fn rest(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    String::from_utf8(bytes).unwrap()
}

#[test]
fn a_body_with_an_excessive_content_length_is_refused_before_it_is_sent() {
    let server = Server::start(&["--payload-limit", "1000"]);
    for head in ["", "expect: 100-continue\r\n"] {
        let mut client = connect(&server);
        client.write_all(format!("{POST}{head}content-length: 1000000000000\r\n\r\n").as_bytes()).unwrap();
        let text = rest(&mut client);
        assert!(text.starts_with("HTTP/1.1 413") && text.contains("connection: close"), "{text}");
        let message = "Failed to buffer the request body: length limit exceeded. The body has 1000000000000 bytes \
                       and may have at most 1000 bytes, before and after it is unpacked (--payload-limit)";
        assert!(text.contains(&format!(r#"{{"error":{{"message":"{message}""#)), "{text}");
    }
    // Everything is written before the response is read.
    let mut client = connect(&server);
    client.write_all(&raw_post("/v1/completions", &[b' '; 3 << 20])).unwrap();
    assert!(rest(&mut client).starts_with("HTTP/1.1 413"));
}

#[test]
fn bodies_that_never_end_take_bounded_memory() {
    const CROWD: usize = 300;
    /// The number of bodies that fit.
    const FIT: usize = 10;
    // No body is given up before the test has counted the refusals.
    let limits = ["--max-body-bytes-in-flight", "20000000", "--body-timeout", "86400"];
    let server = Server::start(&limits);
    let begin = private_bytes(server.pid());
    let part = vec![b' '; 1_900_000];
    // All bodies together would have 570 MB.
    let clients: Vec<TcpStream> = std::thread::scope(|scope| {
        let send = || {
            let mut client = connect(&server);
            let head = format!("{POST}content-length: 2000000\r\n\r\n");
            let _ = client.write_all(head.as_bytes()).and_then(|()| client.write_all(&part));
            client
        };
        let clients: Vec<_> = (0..CROWD).map(|_| scope.spawn(send)).collect();
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    });
    server.wait_until("all bodies that do not fit are refused", |server| {
        server.metric("millrace_bodies_refused_total") >= (CROWD - FIT) as f64
    });
    let grown = private_bytes(server.pid()).saturating_sub(begin);
    println!("{} MiB more", grown >> 20);
    assert!(grown < 200 << 20, "{grown} bytes");
    // Bodies that grow at the same time may refuse each other, so that fewer than FIT are left.
    let refused = server.metric("millrace_bodies_refused_total");
    assert!(((CROWD - FIT) as f64..CROWD as f64).contains(&refused), "{refused}");
    drop(clients);
    let short = json!({"inputs": "a", "parameters": {"max_new_tokens": 1}});
    server.wait_until("there is room again", |server| post(&server.url("/generate"), &short).status == 200);
}

#[test]
fn an_incomplete_body_does_not_delay_the_shutdown() {
    let server = Server::start(&[&GRACE[..], &["--body-timeout", "86400"]].concat());
    let mut client = connect(&server);
    client.write_all(format!("{POST}content-length: 100\r\n\r\n{{").as_bytes()).unwrap();
    // A later response shows that the route waits for the body.
    assert_eq!(server.get("/v1/models").0, 200);
    server.signal("TERM");
    let text = rest(&mut client);
    assert!(text.starts_with("HTTP/1.1 503") && text.contains("shutting down"), "{text}");
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn a_second_signal_ends_a_server_that_waits_for_its_requests() {
    for second in ["TERM", "INT"] {
        let server = Server::start(&[&GRACE[..], &["--heartbeat-timeout", "86400"]].concat());
        let body = json!({"inputs": "Once upon a time", "parameters": {"max_new_tokens": 100}});
        let mut events = stream(&server.url("/generate_stream"), &body);
        assert!(events.next().is_some());
        let shards = shards_of(server.pid());
        // The stopped shards keep the request from ending.
        shards.iter().for_each(|&shard| signal(shard, "STOP"));
        server.signal("TERM");
        // Supervisors send the signal twice, to the process and to its group.
        server.signal("TERM");
        server.wait_until("it drains", |server| server.get("/ready").0 == 503);
        // The time in which another signal is the same request to end.
        std::thread::sleep(Duration::from_millis(1100));
        assert_eq!(server.get("/ready").0, 503, "the signals at once were one");
        server.signal(second);
        assert_eq!(server.wait().code(), Some(1));
        shards.iter().for_each(|&shard| signal(shard, "CONT"));
        wait_for_end_of(&shards);
    }
}

#[test]
fn a_server_that_was_paused_is_not_stuck() {
    // A busy machine may not use up the timeout.
    let timeout = patience(Duration::from_secs(2));
    let server = Server::start(&["--watchdog-timeout", &seconds(timeout)]);
    server.signal("STOP");
    std::thread::sleep(timeout * 3 / 2);
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

/// Sends `count` requests over HTTP/2 whose streams' windows stay closed, and waits for the end of
/// the connection. Returns the number of responses that began before.
async fn read_nothing(server: &Server, count: usize) -> usize {
    let socket = tokio::net::TcpStream::connect(server.address()).await.unwrap();
    let (mut client, connection) =
        h2::client::Builder::new().initial_window_size(0).handshake::<_, &[u8]>(socket).await.unwrap();
    let connection = tokio::spawn(connection);
    let mut responses = Vec::new();
    for _ in 0..count {
        let request = http::Request::post("http://x/generate_stream")
            .header("content-type", "application/json")
            .body(())
            .unwrap();
        // The server may close the connection as soon as one stream has waited long enough.
        let Ok(ready) = client.ready().await else { break };
        client = ready;
        let Ok((response, mut body)) = client.send_request(request, false) else { break };
        let text: &[u8] = br#"{"inputs":"Once","parameters":{"max_new_tokens":900,"stop":["\u0001"]}}"#;
        if body.send_data(text, true).is_err() {
            break;
        }
        responses.push((response, body));
    }
    // The bodies are kept and not read.
    let mut held = Vec::new();
    for (response, _) in responses {
        let Ok(response) = response.await else { break };
        assert_eq!(response.status(), 200);
        held.push(response);
    }
    let closed = tokio::time::timeout(wait_limit(), connection).await;
    assert!(closed.is_ok(), "the connection is closed after --write-timeout");
    held.len()
}

/// An HTTP/2 client that reads nothing of its streams' responses, and the requests that it causes.
#[test]
fn streams_whose_windows_stay_closed_are_cancelled() {
    let timeout = seconds(patience(Duration::from_secs(1)));
    let server = Server::start(&["--write-timeout", &timeout, "--max-batch-size", "32"]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let held = runtime.block_on(read_nothing(&server, 20));
    assert!(held > 0, "no response began");
    server.wait_until("nothing runs", |server| server.metric("tgi_batch_current_size") == 0.0);
}
