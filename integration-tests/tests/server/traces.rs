//! Tests exported spans.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::mpsc;

use millrace_integration_tests::{Attack, AttackOutcome, Server, attack};

const TRACE: [u8; 16] =
    [0x0a, 0xf7, 0x65, 0x19, 0x16, 0xcd, 0x43, 0xdd, 0x84, 0x48, 0xeb, 0x21, 0x1c, 0x80, 0x31, 0x9c];
const PARENT: [u8; 8] = [0xb7, 0xad, 0x6b, 0x71, 0x69, 0x20, 0x33, 0x31];

/// Sends a request with a trace context.
fn ask(server: &Server) {
    let body = r#"{"inputs":"Once upon a time","parameters":{"max_new_tokens":8}}"#;
    let request = format!(
        "POST /generate HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n\
         x-request-id: my-request\r\ntraceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    assert_eq!(attack(server.address(), &Attack::Write(request.into_bytes())), AttackOutcome::Status(200));
}

/// Counts the occurrences of `part` in `bytes`.
fn count(bytes: &[u8], part: &[u8]) -> usize {
    bytes.windows(part.len()).filter(|window| *window == part).count()
}

/// Checks the spans of one request with its phases.
fn check(spans: &[u8]) {
    for name in [
        "POST /generate",
        "validation",
        "queue",
        "prefill",
        "decode",
        "my-service",
        "my-request",
        "http.response.status_code",
        "gen_ai.usage.output_tokens",
    ] {
        assert!(count(spans, name.as_bytes()) > 0, "{name} is missing");
    }
    assert_eq!(count(spans, &TRACE), 5, "the request and its four phases belong to the client's trace");
    assert_eq!(
        count(spans, &PARENT),
        1,
        "the request belongs to the client's span, the phases to the request"
    );
    assert_eq!(count(spans, b"Once upon"), 0, "no text leaves the server");
}

#[test]
fn spans_go_out_as_protobuf_over_http() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let (found, posts) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut bytes = Vec::new();
            let (head, length) = loop {
                let mut buffer = [0; 4096];
                let read = stream.read(&mut buffer).unwrap_or(0);
                if read == 0 {
                    break (String::new(), 0);
                }
                bytes.extend(&buffer[..read]);
                let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else { continue };
                let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
                let length =
                    head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
                bytes.drain(..end + 4);
                break (head, length.unwrap_or(0));
            };
            while bytes.len() < length {
                let mut buffer = [0; 4096];
                match stream.read(&mut buffer).unwrap_or(0) {
                    0 => break,
                    read => bytes.extend(&buffer[..read]),
                }
            }
            // The spans are reported before the response is sent. When the server has ended, all of
            // them are available.
            let _ = found.send((head, bytes));
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
        }
    });
    let flags = [
        "--otlp-endpoint",
        &endpoint,
        "--otlp-protocol",
        "http/protobuf",
        "--otlp-service-name",
        "my-service",
    ];
    let server = Server::start(&flags);
    ask(&server);
    server.signal("TERM");
    assert!(server.wait().success());
    let mut spans = Vec::new();
    for (head, bytes) in posts.try_iter() {
        assert!(head.starts_with("post /v1/traces ") && head.contains("application/x-protobuf"), "{head}");
        spans.extend(bytes);
    }
    // The test's probes are requests with traces of their own.
    check(&spans);
}

#[test]
fn spans_go_out_as_grpc() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let (found, exports) = mpsc::channel();
    runtime.spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let found = found.clone();
            tokio::spawn(async move {
                let mut connection = h2::server::handshake(stream).await.unwrap();
                while let Some(Ok((request, mut respond))) = connection.accept().await {
                    let (path, mut body) = (request.uri().path().to_owned(), request.into_body());
                    let found = found.clone();
                    tokio::spawn(async move {
                        let mut bytes = Vec::new();
                        while let Some(Ok(data)) = body.data().await {
                            body.flow_control().release_capacity(data.len()).unwrap();
                            bytes.extend(data);
                        }
                        let _ = found.send((path, bytes));
                        let response = http::Response::builder().header("content-type", "application/grpc");
                        let mut send = respond.send_response(response.body(()).unwrap(), false).unwrap();
                        // An empty message, followed by the status.
                        send.send_data(vec![0; 5].into(), false).unwrap();
                        let status = [(
                            http::HeaderName::from_static("grpc-status"),
                            http::HeaderValue::from_static("0"),
                        )];
                        send.send_trailers(status.into_iter().collect()).unwrap();
                    });
                }
            });
        }
    });
    let server = Server::start(&["--otlp-endpoint", &endpoint, "--otlp-service-name", "my-service"]);
    ask(&server);
    server.signal("TERM");
    assert!(server.wait().success());
    let mut spans = Vec::new();
    for (path, bytes) in exports.try_iter() {
        assert_eq!(path, "/opentelemetry.proto.collector.trace.v1.TraceService/Export");
        spans.extend(bytes);
    }
    check(&spans);
}

#[test]
fn an_unreachable_collector_delays_no_request() {
    let server = Server::start(&["--otlp-endpoint", "http://127.0.0.1:9"]);
    ask(&server);
    server.signal("TERM");
    assert!(server.wait().success());
}
