//! Tests HTTP/2 streams whose windows stay closed. The clock is paused.

use axum::body::Body;
use axum::http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};

use super::in_memory::InMemoryServer;
use super::*;

/// Opens a connection with this initial window for each stream. The task completes when the server
/// has closed the connection.
async fn connect(server: &InMemoryServer, window: u32) -> (SendRequest<Body>, JoinHandle<()>) {
    let io = TokioIo::new(server.connect());
    let mut builder = Builder::new(TokioExecutor::new());
    let (sender, connection) = builder.initial_stream_window_size(window).handshake(io).await.unwrap();
    (sender, tokio::spawn(async { drop(connection.await) }))
}

async fn ask(sender: &mut SendRequest<Body>) -> Response<Incoming> {
    let request = Request::post("http://x/generate_stream")
        .header("content-type", "application/json")
        .body(Body::from(r#"{"inputs":"a"}"#))
        .unwrap();
    let response = sender.send_request(request).await.unwrap();
    assert_eq!(response.status(), 200);
    response
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_is_not_read_is_cancelled_beside_one_that_is() {
    let limits = ConnectionLimits { write_timeout: SHORT_TIMEOUT, ..generous_limits() };
    // The answer is longer than the window, and then the model generates nothing more.
    let mut server = InMemoryServer::start(Script::Silence("abcdefgh".into()), limits);
    let (mut sender, closed) = connect(&server, 16).await;
    let mut read = ask(&mut sender).await.into_body();
    let mut stalled = Vec::new();
    for _ in 0..3 {
        stalled.push(ask(&mut sender).await);
    }
    let reader = tokio::spawn(async move {
        let mut bytes = 0;
        while let Ok(Some(Ok(frame))) = timeout(SHORT_TIMEOUT * 5, read.frame()).await {
            bytes += frame.into_data().unwrap().len();
        }
        (bytes, read)
    });
    for _ in 0..3 {
        timeout(test_timeout(), server.engine.cancelled.recv())
            .await
            .expect("a stalled request is cancelled")
            .unwrap();
    }
    let (bytes, read) = reader.await.unwrap();
    assert!(bytes > 500, "the other stream goes on: {bytes}");
    // This stream has waited for the model for longer than the write timeout.
    assert!(server.engine.cancelled.try_recv().is_err(), "and is not cancelled");
    assert!(!closed.is_finished());
    // Without this stream, only stalled streams are left.
    drop(read);
    timeout(test_timeout(), closed).await.expect("the connection is closed").unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_connection_with_closed_windows_is_dropped() {
    let limits = ConnectionLimits { write_timeout: SHORT_TIMEOUT, ..generous_limits() };
    let mut server = InMemoryServer::start(Script::Silence("abcdefgh".into()), limits);
    let (mut sender, closed) = connect(&server, 0).await;
    let _unread = [ask(&mut sender).await, ask(&mut sender).await];
    for _ in 0..2 {
        timeout(test_timeout(), server.engine.cancelled.recv())
            .await
            .expect("a stalled request is cancelled")
            .unwrap();
    }
    timeout(test_timeout(), closed).await.expect("the connection is closed").unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_body_that_is_too_long_is_refused_at_once() {
    let server = InMemoryServer::start(Script::Say("x".into()), generous_limits());
    let (mut sender, _closed) = connect(&server, 65535).await;
    // The body is announced and never sent.
    let body = Body::from_stream(futures::stream::pending::<Result<&[u8], io::Error>>());
    let request = Request::post("http://x/v1/completions")
        .header("content-type", "application/json")
        .header("content-length", "2000001")
        .body(body)
        .unwrap();
    let response = timeout(test_timeout(), sender.send_request(request)).await.expect("at once").unwrap();
    assert_eq!(response.status(), 413);
    let text = response.into_body().collect().await.unwrap().to_bytes();
    assert!(String::from_utf8_lossy(&text).contains("length limit exceeded"), "{text:?}");
    // The connection continues.
    let request = Request::get("http://x/health").body(Body::empty()).unwrap();
    assert_eq!(sender.send_request(request).await.unwrap().status(), 200);
}
