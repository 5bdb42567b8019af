//! Compressed bodies.

use std::io::Write;

use axum::body::Body;
use axum::http::Request;
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::json;

use super::rows::posts;
use super::{HttpConfig, Reply, RequestLimits, Script, Server, post};
use crate::service::PayloadLimit;
use crate::test_support::assets;

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    ::zstd::encode_all(bytes, 3).unwrap()
}

async fn send(server: &Server, path: &str, encoding: &str, body: Vec<u8>) -> Reply {
    let mut request: Request<Body> = post(path, body);
    request.headers_mut().insert("content-encoding", encoding.parse().unwrap());
    server.send(request).await
}

#[tokio::test]
async fn compressed_bodies_are_read_on_every_route() {
    let server = Server::saying("x");
    for (path, body) in posts() {
        let plain = body.to_string().into_bytes();
        for (encoding, packed) in [
            ("gzip", gzip(&plain)),
            ("X-Gzip", gzip(&plain)),
            ("zstd", zstd(&plain)),
            ("identity", plain.clone()),
        ] {
            let reply = send(&server, path, encoding, packed).await;
            assert_eq!(reply.status.as_u16(), 200, "{path} {encoding}: {}", reply.body);
        }
    }
}

#[tokio::test]
async fn unknown_encodings_are_refused() {
    let server = Server::saying("x");
    for encoding in ["br", "deflate", "gzip, zstd", "gzip, gzip", "\u{7f}"] {
        let Ok(_) = encoding.parse::<axum::http::HeaderValue>() else { continue };
        for path in ["/generate", "/v1/chat/completions", "/v1/messages"] {
            let reply = send(&server, path, encoding, b"x".to_vec()).await;
            assert_eq!(
                (reply.status.as_u16(), reply.header("accept-encoding")),
                (415, "gzip, zstd"),
                "{encoding}"
            );
            assert!(reply.body.contains("must be gzip, zstd or identity"), "{}", reply.body);
        }
    }
}

#[tokio::test]
async fn the_limit_applies_to_the_packed_and_the_unpacked_body() {
    let limits = RequestLimits { payload_limit: PayloadLimit::Fixed(1000), ..RequestLimits::default() };
    let server = Server::serving(&assets(), Script::Say("x".into()), limits, HttpConfig::default());
    let body = |length: usize| format!("{{\"inputs\":\"{}\"}}", "a".repeat(length - 13)).into_bytes();
    for pack in [gzip, zstd] {
        let encoding = if pack(b"") == gzip(b"") { "gzip" } else { "zstd" };
        let reply = send(&server, "/generate", encoding, pack(&body(1000))).await;
        assert_eq!(reply.status.as_u16(), 200, "{encoding}: {}", reply.body);
        // Some hundred bytes that unpack to more than the limit.
        for packed in [pack(&body(1001)), pack(&vec![b' '; 500_000])] {
            assert!(packed.len() < 1000, "{}", packed.len());
            let reply = send(&server, "/v1/completions", encoding, packed).await;
            assert_eq!(reply.status.as_u16(), 413, "{encoding}");
            let message = reply.json()["error"]["message"].as_str().unwrap().to_owned();
            assert!(
                message.ends_with("The body has more than 1000 bytes and may have at most 1000 bytes, before and after it is unpacked (--payload-limit)"),
                "{message}"
            );
        }
        // A packed body that is too long is not unpacked.
        let reply = send(&server, "/generate", encoding, vec![b'x'; 1001]).await;
        assert_eq!(reply.status.as_u16(), 413);
        assert_eq!(
            reply.body,
            "Failed to buffer the request body: length limit exceeded. The body has more than 1000 bytes and may have at most \
             1000 bytes, before and after it is unpacked (--payload-limit)"
        );
    }
}

#[tokio::test]
async fn data_that_cannot_be_unpacked_are_refused() {
    let server = Server::saying("x");
    let plain = json!({"inputs": "a"}).to_string().into_bytes();
    let cut = |mut packed: Vec<u8>| {
        packed.truncate(packed.len() / 2);
        packed
    };
    for (encoding, packed) in [
        ("gzip", plain.clone()),
        ("gzip", cut(gzip(&plain))),
        ("gzip", [gzip(&plain), b"trailing".to_vec()].concat()),
        ("zstd", plain.clone()),
        ("zstd", cut(zstd(&plain))),
        ("zstd", gzip(&plain)),
    ] {
        let reply = send(&server, "/generate", encoding, packed).await;
        assert_eq!(reply.status.as_u16(), 400, "{encoding}: {}", reply.body);
        assert!(reply.body.contains("Failed to unpack the request body"), "{}", reply.body);
    }
    // An empty file unpacks to an empty body.
    assert_eq!(send(&server, "/generate", "gzip", gzip(b"")).await.status, 400);
}

/// A frame of zstd may declare a window of any size, for which the decoder would allocate memory.
#[tokio::test]
async fn zstd_windows_are_bounded() {
    let server = Server::saying("x");
    let mut encoder = ::zstd::stream::write::Encoder::new(Vec::new(), 3).unwrap();
    encoder.window_log(27).unwrap();
    encoder.write_all(b"{\"inputs\": \"a\"}").unwrap();
    let reply = send(&server, "/generate", "zstd", encoder.finish().unwrap()).await;
    assert_eq!(reply.status.as_u16(), 400, "{}", reply.body);
}
