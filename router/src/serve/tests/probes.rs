//! Tests probes and signals while the threads that answer requests are blocked.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc;

use futures::channel::mpsc::UnboundedSender;
use tokio::runtime::Runtime;

use super::*;
use crate::serve::ForcedEnd;

/// The number of threads of the main runtime.
const THREADS: usize = 2;

/// A server on its own runtime, whose threads the test can block.
struct BlockableServer {
    runtime: Runtime,
    address: SocketAddr,
    probes: SocketAddr,
    signals: UnboundedSender<()>,
    forced: mpsc::Receiver<ForcedEnd>,
    _engine: FakeEngine,
}

impl BlockableServer {
    /// Starts a server whose runtime counts as stuck after `watchdog_timeout`.
    fn start(watchdog_timeout: Duration) -> BlockableServer {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(THREADS).enable_all().build().unwrap();
        let (signals, heard) = futures::channel::mpsc::unbounded();
        let (told, forced) = mpsc::channel();
        let server = runtime.block_on(async {
            let engine = FakeEngine::new(Script::Silence("x".into()), 64);
            let model = ModelInfo { id: "m".into(), ..ModelInfo::default() };
            let assets = test_support::assets();
            let service =
                Service::new(&assets, engine.engine.clone(), RequestLimits::default(), model).unwrap();
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let probe_listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let (address, probes) = (listener.local_addr().unwrap(), probe_listener.local_addr().unwrap());
            let options = ServeOptions {
                connections: ConnectionLimits { max_connections: 3, ..generous_limits() },
                probe_listener: Some(probe_listener),
                grace: test_timeout() * 4,
                watchdog_timeout,
                last_resort: LastResort::new(move |reason| told.send(reason).unwrap_or_default()),
                ..ServeOptions::default()
            };
            tokio::spawn(serve(listener, service, HttpConfig::default(), options, heard));
            (address, probes, engine)
        });
        let (address, probes, engine) = server;
        BlockableServer { runtime, address, probes, signals, forced, _engine: engine }
    }

    /// Blocks all threads until the returned senders are dropped.
    fn block(&self) -> Vec<mpsc::Sender<()>> {
        let (blocked, wait) = mpsc::channel();
        let block = |_| {
            let (held, free) = mpsc::channel::<()>();
            let blocked = blocked.clone();
            self.runtime.spawn(async move {
                blocked.send(()).unwrap();
                let _ = free.recv();
            });
            held
        };
        let held = (0..THREADS).map(block).collect();
        (0..THREADS).for_each(|_| wait.recv_timeout(test_timeout()).expect("a thread takes the task"));
        held
    }
}

/// The longest time that one attempt waits. A request that arrives in parts because its client had
/// no CPU is passed to the main runtime, which may be blocked.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(2);

/// Returns the status and the text of a GET request on a new connection. The status is 0 without an
/// answer.
fn get(address: SocketAddr, path: &str) -> (u16, String) {
    let mut client = TcpStream::connect(address).unwrap();
    client.set_read_timeout(Some(ATTEMPT_TIMEOUT)).unwrap();
    let question = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    let mut text = String::new();
    // A server at its limit closes the connection before it has read the request.
    let _ = client.write_all(question.as_bytes());
    let _ = client.read_to_string(&mut text);
    let status = text.get(9..12).and_then(|status| status.parse().ok()).unwrap_or(0);
    (status, text)
}

/// Repeats a GET request until it has this status. Returns the answer.
fn wait_for(address: SocketAddr, path: &str, status: u16) -> String {
    let since = Instant::now();
    loop {
        let (got, text) = get(address, path);
        if got == status {
            return text;
        }
        assert!(since.elapsed() < test_timeout(), "{path}: {got}, {text}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn health_reports_a_stuck_server() {
    let server = BlockableServer::start(SHORT_TIMEOUT);
    wait_for(server.address, "/health", 200);
    let held = server.block();
    for address in [server.address, server.probes] {
        for path in ["/health", "/ping", "/ready", "/v2/health/live"] {
            let text = wait_for(address, path, 503);
            assert!(text.contains("threads are stuck") && text.contains("--watchdog-timeout"), "{text}");
        }
    }
    drop(held);
    for path in ["/health", "/ready"] {
        wait_for(server.address, path, 200);
    }
    assert!(server.forced.try_recv().is_err(), "no end was requested");
}

#[test]
fn a_connection_may_send_several_probes_and_then_other_requests() {
    let server = BlockableServer::start(test_timeout());
    let mut client = TcpStream::connect(server.address).unwrap();
    client.set_read_timeout(Some(test_timeout())).unwrap();
    let mut ask = |request: &str| {
        // The request arrives in two packets, which networks may do.
        let (begin, end) = request.split_at(7);
        client.write_all(begin.as_bytes()).unwrap();
        std::thread::sleep(Duration::from_millis(5));
        client.write_all(end.as_bytes()).unwrap();
        let mut text = Vec::new();
        while !text.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            client.read_exact(&mut byte).unwrap();
            text.push(byte[0]);
        }
        String::from_utf8(text).unwrap()
    };
    for _ in 0..3 {
        let text = ask(HEALTH);
        // Every response has this header.
        assert!(text.starts_with("HTTP/1.1 200") && text.contains("x-request-id: "), "{text}");
    }
    assert!(ask("GET /v1/models/nothing HTTP/1.1\r\nhost: x\r\n\r\n").starts_with("HTTP/1.1 404"));
    // Probes are answered although no other request is.
    let _held = server.block();
    wait_for(server.address, "/health", 200);
}

#[test]
fn the_probe_port_accepts_connections_when_the_main_port_is_full() {
    let server = BlockableServer::start(test_timeout());
    let _held: Vec<_> = (0..3).map(|_| TcpStream::connect(server.address).unwrap()).collect();
    assert_ne!(get(server.address, "/health").0, 200);
    for path in ["/health", "/health?ready", "/ping", "/ready"] {
        wait_for(server.probes, path, 200);
    }
    for path in ["/metrics", "/generate", "/"] {
        let (status, text) = get(server.probes, path);
        assert!(status == 404 && text.ends_with("only"), "{text}");
    }
}

#[test]
fn a_stuck_server_is_ended_by_a_signal() {
    let server = BlockableServer::start(SHORT_TIMEOUT);
    let _held = server.block();
    server.signals.unbounded_send(()).unwrap();
    assert_eq!(server.forced.recv_timeout(test_timeout()), Ok(ForcedEnd::Stuck));
}

#[test]
fn a_second_signal_ends_a_server_at_once() {
    let server = BlockableServer::start(test_timeout());
    server.signals.unbounded_send(()).unwrap();
    server.signals.unbounded_send(()).unwrap();
    assert_eq!(server.forced.recv_timeout(test_timeout()), Ok(ForcedEnd::AskedTwice));
}
