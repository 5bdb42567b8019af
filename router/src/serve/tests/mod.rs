//! Tests of the server: slow clients, clients that break off, and many clients.

mod bodies;
mod ending;
mod in_memory;
mod probes;
mod slow_clients;
mod streams;

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use millrace_test_patience::patience;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, pem::PemObject};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto::ring};

use super::{ConnectionLimits, LastResort, ServeOptions, Tls, serve};
use crate::http::HttpConfig;
use crate::service::{ModelInfo, PayloadLimit, RequestLimits, Service};
use crate::test_support::{self, FakeEngine, Script};

/// A limit that a test exceeds on purpose. Work that must be done within it runs on a paused clock.
const SHORT_TIMEOUT: Duration = Duration::from_millis(200);

/// Returns the longest time that a test waits.
fn test_timeout() -> Duration {
    patience(Duration::from_secs(30))
}

/// RequestLimits that a test exceeds only if it sets its own.
fn generous_limits() -> ConnectionLimits {
    ConnectionLimits {
        header_timeout: test_timeout() * 2,
        body_timeout: test_timeout() * 2,
        idle_timeout: test_timeout() * 2,
        write_timeout: test_timeout() * 2,
        ..ConnectionLimits::default()
    }
}

struct TestServer {
    address: SocketAddr,
    _engine: FakeEngine,
    stop: oneshot::Sender<()>,
    /// Completes when the server has ended.
    ended: JoinHandle<io::Result<()>>,
}

async fn start(script: Script, connections: ConnectionLimits, tls: Option<Tls>) -> TestServer {
    let options = ServeOptions { connections, tls, grace: Duration::from_secs(1), ..default_options() };
    start_with(script, RequestLimits::default(), options).await
}

/// Options of a server that must not be ended by force.
fn default_options() -> ServeOptions {
    let last_resort =
        LastResort::new(|reason| tracing::error!("a test's server was ended by force: {reason}"));
    ServeOptions { last_resort, ..ServeOptions::default() }
}

async fn start_with(script: Script, limits: RequestLimits, options: ServeOptions) -> TestServer {
    let engine = FakeEngine::new(script, 64);
    let model = ModelInfo { id: "m".into(), ..ModelInfo::default() };
    let service = Service::new(&test_support::assets(), engine.engine.clone(), limits, model).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let asked = futures::stream::once(async { drop(stopped.await) });
    let ended = tokio::spawn(serve(listener, service, HttpConfig::default(), options, asked));
    TestServer { address, _engine: engine, stop, ended }
}

impl TestServer {
    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// Waits until the server accepts another connection.
    async fn serves_one_more(&self) {
        let serves = async {
            loop {
                let mut client = self.connect().await;
                let _ = client.write_all(HEALTH.as_bytes()).await;
                let mut status = [0; 12];
                if client.read_exact(&mut status).await.is_ok() && &status == b"HTTP/1.1 200" {
                    break;
                }
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(test_timeout(), serves).await.expect("a place becomes free");
    }
}

/// Reads everything until the server closes. A reset counts as closing.
async fn read_to_close(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut bytes = Vec::new();
    let _ = timeout(test_timeout(), stream.read_to_end(&mut bytes)).await.expect("the server closes");
    String::from_utf8_lossy(&bytes).into_owned()
}

async fn write(stream: &mut (impl AsyncWrite + Unpin), text: &str) {
    stream.write_all(text.as_bytes()).await.unwrap();
}

/// Returns a request for a stream, with these additional headers.
fn stream_request(headers: &str) -> String {
    let body = r#"{"inputs":"a"}"#;
    format!(
        "POST /generate_stream HTTP/1.1\r\nhost: x\r\n{headers}content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

const HEALTH: &str = "GET /health HTTP/1.1\r\nhost: x\r\n\r\n";

async fn read_headers(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut text = String::new();
    while !text.ends_with("\r\n\r\n") {
        let mut byte = [0];
        let read = timeout(test_timeout(), stream.read_exact(&mut byte)).await.expect("in time");
        read.unwrap();
        text.push(byte[0].into());
    }
    text
}

#[tokio::test]
async fn an_idle_connection_of_probes_is_closed() {
    let limits = ConnectionLimits { idle_timeout: SHORT_TIMEOUT, ..generous_limits() };
    let server = start(Script::Say("x".into()), limits, None).await;
    let mut idle = server.connect().await;
    write(&mut idle, HEALTH).await;
    assert!(read_headers(&mut idle).await.starts_with("HTTP/1.1 200"));
    assert_eq!(read_to_close(&mut idle).await, "");
}

#[tokio::test]
async fn headers_are_bounded_in_size_and_number() {
    let limits = ConnectionLimits { header_bytes: 8 << 10, headers: 10, ..generous_limits() };
    let server = start(Script::Say("x".into()), limits, None).await;
    for headers in [format!("x: {}\r\n", "a".repeat(10_000)), "x: y\r\n".repeat(11)] {
        let mut client = server.connect().await;
        write(&mut client, &format!("GET /health HTTP/1.1\r\nhost: x\r\n{headers}\r\n")).await;
        let text = read_to_close(&mut client).await;
        assert!(text.starts_with("HTTP/1.1 431"), "{text}");
    }
}

#[tokio::test]
async fn a_connection_beyond_the_limit_gets_status_503() {
    let server =
        start(Script::Say("x".into()), ConnectionLimits { max_connections: 2, ..generous_limits() }, None)
            .await;
    let (mut first, mut second) = (server.connect().await, server.connect().await);
    for client in [&mut first, &mut second] {
        write(client, HEALTH).await;
        assert!(read_headers(client).await.starts_with("HTTP/1.1 200"));
    }
    let text = read_to_close(&mut server.connect().await).await;
    assert!(text.starts_with("HTTP/1.1 503") && text.contains("retry-after: 1"), "{text}");
    drop(first);
    // The permit is free as soon as the server has seen that the client has disconnected.
    server.serves_one_more().await;
}

/// Writes a self-signed certificate for `localhost` and its key to files.
fn certificate() -> (tempfile::TempDir, PathBuf, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let (cert, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    write_certificate(&cert, &key);
    (folder, cert, key)
}

fn write_certificate(cert: &Path, key: &Path) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(cert, made.cert.pem()).unwrap();
    std::fs::write(key, made.signing_key.serialize_pem()).unwrap();
}

/// Returns the configuration of a client that trusts this certificate alone.
fn trusting(cert: &Path) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(cert).unwrap()).unwrap();
    ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth()
}

#[tokio::test]
async fn certificates_are_replaced_while_the_server_runs() {
    let (_folder, cert, key) = certificate();
    let tls = Tls::from_files(&cert, &key).unwrap();
    let server = start(Script::Say("x".into()), generous_limits(), Some(tls.clone())).await;
    let connect = async |config: &ClientConfig| {
        let name = ServerName::try_from("localhost").unwrap();
        TlsConnector::from(Arc::new(config.clone())).connect(name, server.connect().await).await
    };
    let first = trusting(&cert);
    let mut open = connect(&first).await.unwrap();
    write_certificate(&cert, &key);
    let second = trusting(&cert);
    assert!(connect(&second).await.is_err());
    tls.reload().unwrap();
    assert!(connect(&first).await.is_err() && connect(&second).await.is_ok());
    write(&mut open, HEALTH).await;
    assert!(read_headers(&mut open).await.starts_with("HTTP/1.1 200"), "an open connection goes on");
    // The former certificate stays if the new one cannot be used.
    std::fs::write(&key, "no key").unwrap();
    assert!(tls.reload().is_err());
    assert!(connect(&second).await.is_ok());
}

#[tokio::test]
async fn tls_serves_both_http_versions_and_drops_incomplete_handshakes() {
    let (_folder, cert, key) = certificate();
    let tls = || Some(Tls::from_files(&cert, &key).unwrap());
    let server = start(Script::Say("x".into()), generous_limits(), tls()).await;
    let config = trusting(&cert);
    let connect = async |protocol: &[u8]| {
        let mut config = config.clone();
        config.alpn_protocols = vec![protocol.to_vec()];
        let name = ServerName::try_from("localhost").unwrap();
        let stream =
            TlsConnector::from(Arc::new(config)).connect(name, server.connect().await).await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(protocol));
        stream
    };
    let mut old = connect(b"http/1.1").await;
    write(&mut old, HEALTH).await;
    assert!(read_headers(&mut old).await.starts_with("HTTP/1.1 200"));

    let io = hyper_util::rt::TokioIo::new(connect(b"h2").await);
    let executor = hyper_util::rt::TokioExecutor::new();
    let (mut sender, connection) = hyper::client::conn::http2::handshake(executor, io).await.unwrap();
    tokio::spawn(connection);
    let request = axum::http::Request::post("https://localhost/generate")
        .header("content-type", "application/json")
        .body(axum::body::Body::from(r#"{"inputs":"a"}"#))
        .unwrap();
    let response = sender.send_request(request).await.unwrap();
    assert_eq!(response.status(), 200);
    let body = axum::body::to_bytes(axum::body::Body::new(response.into_body()), 1000).await.unwrap();
    assert_eq!(body, r#"{"generated_text":"x"}"#);

    let limits = ConnectionLimits { header_timeout: SHORT_TIMEOUT, ..generous_limits() };
    let impatient = start(Script::Say("x".into()), limits, tls()).await;
    let mut silent = impatient.connect().await;
    assert_eq!(read_to_close(&mut silent).await, "");
    let mut plain = server.connect().await;
    write(&mut plain, HEALTH).await;
    assert!(!read_to_close(&mut plain).await.contains("200"));
}

#[test]
fn tls_files_that_cannot_be_used_are_named() {
    let (folder, cert, key) = certificate();
    let nothing = folder.path().join("nothing.pem");
    let empty = folder.path().join("empty.pem");
    std::fs::write(&empty, "").unwrap();
    let (_other, _, other_key) = certificate();
    for (cert, key, part) in [
        (&nothing, &key, "nothing.pem"),
        (&empty, &key, "no certificate"),
        (&cert, &empty, "empty.pem"),
        (&cert, &other_key, "cannot be used"),
    ] {
        let error = Tls::from_files(cert, key).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
}
