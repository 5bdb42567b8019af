//! Tests bodies that are too long, too many or too slow. The clock is paused.

use super::in_memory::InMemoryServer;
use super::*;

const POST: &str = "POST /generate HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n";

/// Starts a server whose bodies have at most `one` bytes, and `all` bytes together.
fn start_small(one: usize, all: usize) -> InMemoryServer {
    let limits = RequestLimits { payload_limit: PayloadLimit::Fixed(one), ..RequestLimits::default() };
    let connections = ConnectionLimits { body_bytes: all, ..generous_limits() };
    InMemoryServer::start_with(Script::Say("x".into()), limits, connections)
}

/// Returns a request with a body of this length.
fn request(length: usize) -> String {
    let body = format!("{{\"inputs\":\"{}\"}}", "a".repeat(length - 13));
    assert_eq!(body.len(), length);
    format!("{POST}connection: close\r\ncontent-length: {length}\r\n\r\n{body}")
}

#[tokio::test(start_paused = true)]
async fn a_body_that_is_announced_too_long_is_refused_unread() {
    let server = start_small(1000, 1 << 20);
    for head in ["", "expect: 100-continue\r\n"] {
        let mut client = server.connect();
        // No byte of the body is sent.
        write(&mut client, &format!("{POST}{head}content-length: 1001\r\n\r\n")).await;
        let text = read_headers(&mut client).await;
        assert!(text.starts_with("HTTP/1.1 413") && text.contains("connection: close"), "{text}");
        assert!(read_to_close(&mut client).await.contains("length limit exceeded"));
    }
    let mut client = server.connect();
    write(&mut client, &format!("{POST}expect: 100-continue\r\ncontent-length: 20\r\n\r\n")).await;
    assert!(read_headers(&mut client).await.starts_with("HTTP/1.1 100"), "a body that fits is requested");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_goes_on_writing_can_read_its_refusal() {
    // The connection lingers for a second. The clock stands still, so that this suffices for a slow
    // client.
    let _still = test_support::still_clock();
    let limits = RequestLimits { payload_limit: PayloadLimit::Fixed(1000), ..RequestLimits::default() };
    let options = ServeOptions { connections: generous_limits(), ..default_options() };
    let server = start_with(Script::Say("x".into()), limits, options).await;
    let much = "x".repeat(4 << 20);
    let (announced, chunked) = (
        format!("content-length: {}\r\n\r\n{much}", much.len()),
        format!("transfer-encoding: chunked\r\n\r\n400000\r\n{much}\r\n"),
    );
    for rest_of_request in [announced, chunked] {
        let mut client = server.connect().await;
        // Simple clients send the whole request before they read the response.
        write(&mut client, &format!("{POST}{rest_of_request}")).await;
        let mut bytes = Vec::new();
        let read = timeout(test_timeout(), client.read_to_end(&mut bytes)).await.expect("the server closes");
        assert!(read.is_ok(), "the connection is not reset");
        let text = String::from_utf8_lossy(&bytes);
        assert!(text.starts_with("HTTP/1.1 413") && text.contains("length limit exceeded"), "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn bodies_share_a_bounded_memory() {
    let server = start_small(900, 1100);
    let mut first = server.connect();
    let whole = request(900);
    write(&mut first, &whole[..whole.len() - 10]).await;
    let ask = async |length: usize| {
        let mut client = server.connect();
        write(&mut client, &request(length)).await;
        read_to_close(&mut client).await
    };
    // Repeats the request until the server has read the first one this far.
    let refused = async {
        loop {
            let text = ask(700).await;
            if !text.starts_with("HTTP/1.1 200") {
                break text;
            }
        }
    };
    let text = timeout(test_timeout(), refused).await.expect("the memory is taken");
    assert!(text.starts_with("HTTP/1.1 503") && text.contains("retry-after: 1"), "{text}");
    assert!(
        text.contains("--max-body-bytes-in-flight") && text.contains(r#""error_type":"unavailable""#),
        "{text}"
    );
    assert!(ask(100).await.starts_with("HTTP/1.1 200"), "a short one still fits");
    write(&mut first, &whole[whole.len() - 10..]).await;
    assert!(read_to_close(&mut first).await.starts_with("HTTP/1.1 200"));
    assert!(ask(700).await.starts_with("HTTP/1.1 200"), "the memory is given back");
}

#[tokio::test(start_paused = true)]
async fn slow_bodies_do_not_hold_all_the_memory() {
    // The time limit of a single body is a minute.
    let server = start_small(4000, 4000);
    let mut slow = server.connect();
    let whole = request(4000);
    write(&mut slow, &whole[..whole.len() - 10]).await;
    let since = Instant::now();
    let text = read_to_close(&mut slow).await;
    assert!(text.starts_with("HTTP/1.1 503"), "{text}");
    assert!(since.elapsed() < test_timeout(), "{:?}", since.elapsed());
}

#[tokio::test(start_paused = true)]
async fn every_api_reports_exhausted_body_memory_in_its_own_format() {
    let server = start_small(4000, 4000);
    let mut held = server.connect();
    let whole = request(3900);
    write(&mut held, &whole[..whole.len() - 10]).await;
    for (path, words) in [
        ("/v1/chat/completions", r#"{"error":{"message":"The bodies of all requests"#),
        ("/v1/messages", r#"{"type":"error","error":{"type":"overloaded_error""#),
        ("/generate", r#"{"error":"The bodies of all requests"#),
    ] {
        let ask = async {
            loop {
                let mut client = server.connect();
                let head = POST.replace("/generate", path);
                write(&mut client, &format!("{head}connection: close\r\ncontent-length: 2000\r\n\r\n{{"))
                    .await;
                let mut status = [0; 12];
                let Ok(read) = timeout(SHORT_TIMEOUT, client.read_exact(&mut status)).await else { continue };
                read.unwrap();
                assert_eq!(&status, b"HTTP/1.1 503");
                break read_to_close(&mut client).await;
            }
        };
        let text = timeout(test_timeout(), ask).await.expect("a refusal");
        assert!(text.contains(words), "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_in_single_bytes_is_read() {
    let server = start_small(4000, 4000);
    let mut slow = server.connect();
    let body = r#"{"inputs":"a"}"#;
    write(&mut slow, &format!("{POST}connection: close\r\ncontent-length: {}\r\n\r\n", body.len())).await;
    for byte in body.as_bytes() {
        slow.write_all(&[*byte]).await.unwrap();
        slow.flush().await.unwrap();
        sleep(Duration::from_millis(2)).await;
    }
    assert!(read_to_close(&mut slow).await.starts_with("HTTP/1.1 200"));
}

#[tokio::test(start_paused = true)]
async fn decompressed_bodies_count_toward_the_memory() {
    use std::io::Write;
    let server = start_small(4000, 5000);
    let body = format!("{{\"inputs\":\"{}\"}}", "a".repeat(3900));
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(body.as_bytes()).unwrap();
    let packed = encoder.finish().unwrap();
    assert!(packed.len() < 200, "{}", packed.len());
    let ask = async || {
        let mut client = server.connect();
        let head = format!(
            "{POST}connection: close\r\ncontent-encoding: gzip\r\ncontent-length: {}\r\n\r\n",
            packed.len()
        );
        write(&mut client, &head).await;
        client.write_all(&packed).await.unwrap();
        read_to_close(&mut client).await
    };
    // The prompt is too long for the model, which is detected after the body has been read.
    let text = ask().await;
    assert!(text.starts_with("HTTP/1.1 422") && text.contains("must have less than"), "{text}");
    let mut held = server.connect();
    let whole = request(3000);
    write(&mut held, &whole[..whole.len() - 10]).await;
    let refused = async {
        loop {
            let text = ask().await;
            if !text.starts_with("HTTP/1.1 422") {
                break text;
            }
        }
    };
    let text = timeout(test_timeout(), refused).await.expect("the memory is taken");
    assert!(text.starts_with("HTTP/1.1 503") && text.contains("--max-body-bytes-in-flight"), "{text}");
    write(&mut held, &whole[whole.len() - 10..]).await;
    assert!(read_to_close(&mut held).await.starts_with("HTTP/1.1 422"), "the other one was read");
    assert!(ask().await.starts_with("HTTP/1.1 422"), "the memory is given back");
}
