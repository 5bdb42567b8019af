//! Tests the time limits of connections. The clock is paused.

use super::in_memory::InMemoryServer;
use super::*;

#[tokio::test(start_paused = true)]
async fn incomplete_headers_close_the_connection() {
    let limits = ConnectionLimits { header_timeout: SHORT_TIMEOUT, ..generous_limits() };
    let server = InMemoryServer::start(Script::Say("x".into()), limits);
    let mut silent = server.connect();
    assert_eq!(read_to_close(&mut silent).await, "", "a silent connection is closed too");
    let mut slow = server.connect();
    // A connection with an earlier request is treated in the same way.
    write(&mut slow, HEALTH).await;
    assert!(read_headers(&mut slow).await.starts_with("HTTP/1.1 200"));
    sleep(SHORT_TIMEOUT * 2).await;
    let since = Instant::now();
    let (mut reader, mut writer) = tokio::io::split(slow);
    let dribble = tokio::spawn(async move {
        for byte in "GET /health HTTP/1.1\r\nx: ".bytes().chain(std::iter::repeat(b'a')) {
            if writer.write_all(&[byte]).await.is_err() {
                break;
            }
            sleep(SHORT_TIMEOUT / 10).await;
        }
    });
    assert_eq!(read_to_close(&mut reader).await, "");
    let elapsed = since.elapsed();
    assert!(elapsed >= SHORT_TIMEOUT && elapsed < SHORT_TIMEOUT * 2, "{elapsed:?}");
    dribble.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn idle_connections_are_closed_and_busy_ones_are_not() {
    // The answer takes several times as long, in milliseconds between its tokens.
    let idle_timeout = Duration::from_millis(16);
    let limits = ConnectionLimits { idle_timeout, ..generous_limits() };
    let server = InMemoryServer::start(Script::Forever("abcdefgh".into()), limits);
    let mut idle = server.connect();
    write(&mut idle, HEALTH).await;
    assert!(read_headers(&mut idle).await.starts_with("HTTP/1.1 200"));
    assert_eq!(read_to_close(&mut idle).await, "");
    let mut busy = server.connect();
    write(&mut busy, &stream_request("")).await;
    let since = Instant::now();
    read_headers(&mut busy).await;
    let text = read_to_close(&mut busy).await;
    assert!(text.contains("\"index\":1022"), "all of it");
    assert!(since.elapsed() > idle_timeout * 3, "{:?}", since.elapsed());
}

#[tokio::test(start_paused = true)]
async fn an_incomplete_body_is_an_error() {
    let limits = ConnectionLimits { body_timeout: SHORT_TIMEOUT, ..generous_limits() };
    let server = InMemoryServer::start(Script::Say("x".into()), limits);
    let mut slow = server.connect();
    write(
        &mut slow,
        "POST /generate HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{",
    )
    .await;
    let text = read_to_close(&mut slow).await;
    assert!(text.starts_with("HTTP/1.1 400") && text.contains("took too long"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_stops_reading_is_dropped_without_slowing_others() {
    let limits = ConnectionLimits { write_timeout: SHORT_TIMEOUT, ..generous_limits() };
    let server = InMemoryServer::start(Script::Forever("abcdefgh".into()), limits);
    let (mut stopped, closed) = server.connect_with(4096);
    write(&mut stopped, &stream_request("")).await;
    let mut other = server.connect();
    write(&mut other, &stream_request("connection: close\r\n")).await;
    let text = read_to_close(&mut other).await;
    assert!(text.contains("\"index\":1022"), "the other stream is whole");
    timeout(test_timeout(), closed).await.expect("the connection is closed").unwrap();
}
