//! HTTP/2 streams whose windows stay closed.

use axum::body::Body;
use axum::http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};

use super::*;

/// A connection whose streams may be sent so many bytes until their client reads. Done when the server has closed it.
async fn connect(server: &Running, window: u32) -> (SendRequest<Body>, JoinHandle<()>) {
    let io = TokioIo::new(server.connect().await);
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

#[tokio::test]
async fn a_stream_that_is_not_read_is_cancelled_beside_one_that_is() {
    let limits = Connections { write_timeout: QUICK, ..patient() };
    // What is said is longer than the window, and then the model says nothing for ever.
    let mut server = start(Script::Silence("abcdefgh".into()), limits, None).await;
    let (mut sender, closed) = connect(&server, 16).await;
    let mut read = ask(&mut sender).await.into_body();
    let mut stalled = Vec::new();
    for _ in 0..3 {
        stalled.push(ask(&mut sender).await);
    }
    let reader = tokio::spawn(async move {
        let mut bytes = 0;
        while let Ok(Some(Ok(frame))) = timeout(QUICK * 5, read.frame()).await {
            bytes += frame.into_data().unwrap().len();
        }
        (bytes, read)
    });
    for _ in 0..3 {
        timeout(PATIENCE, server.engine.cancelled.recv())
            .await
            .expect("a stalled request is cancelled")
            .unwrap();
    }
    let (bytes, read) = reader.await.unwrap();
    assert!(bytes > 500, "the other stream goes on: {bytes}");
    // It has waited for the model much longer than a reader may be waited for.
    assert!(server.engine.cancelled.try_recv().is_err(), "and is not cancelled");
    assert!(!closed.is_finished());
    // Without it nothing is left but streams that have stalled.
    drop(read);
    timeout(PATIENCE, closed).await.expect("the connection is closed").unwrap();
}

#[tokio::test]
async fn a_connection_of_closed_windows_is_dropped() {
    let limits = Connections { write_timeout: QUICK, most: 1, ..patient() };
    let mut server = start(Script::Silence("abcdefgh".into()), limits, None).await;
    let (mut sender, closed) = connect(&server, 0).await;
    let _unread = [ask(&mut sender).await, ask(&mut sender).await];
    for _ in 0..2 {
        timeout(PATIENCE, server.engine.cancelled.recv())
            .await
            .expect("a stalled request is cancelled")
            .unwrap();
    }
    timeout(PATIENCE, closed).await.expect("the connection is closed").unwrap();
    server.serves_one_more().await;
}

#[tokio::test]
async fn a_body_that_is_too_long_is_refused_at_once() {
    let server = start(Script::Say("x".into()), patient(), None).await;
    let (mut sender, _closed) = connect(&server, 65535).await;
    // Announced, and never sent.
    let body = Body::from_stream(futures::stream::pending::<Result<&[u8], io::Error>>());
    let request = Request::post("http://x/v1/completions")
        .header("content-type", "application/json")
        .header("content-length", "2000001")
        .body(body)
        .unwrap();
    let response = timeout(PATIENCE, sender.send_request(request)).await.expect("at once").unwrap();
    assert_eq!(response.status(), 413);
    let text = response.into_body().collect().await.unwrap().to_bytes();
    assert!(String::from_utf8_lossy(&text).contains("length limit exceeded"), "{text:?}");
    // The connection goes on.
    let request = Request::get("http://x/health").body(Body::empty()).unwrap();
    assert_eq!(sender.send_request(request).await.unwrap().status(), 200);
}
