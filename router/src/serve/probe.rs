//! Probes: short requests for the server's health, answered on the front thread.
//!
//! The bytes of a connection's next request are peeked at without reading them. If they are exactly
//! one complete probe, it is answered here, and the connection is peeked at again. Any other
//! connection goes to the main runtime with all its bytes.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};
use tower_service::Service;

use super::connection_limits::ConnectionLimits;
use super::watchdog::Watchdog;
use crate::http;

/// The time to wait for the first bytes of a connection, unless the time limit of headers is
/// shorter.
const FIRST_BYTES_TIMEOUT: Duration = Duration::from_secs(1);

/// The time to wait for the rest of a probe's headers. They nearly always arrive in one packet.
const REST_OF_HEADERS_TIMEOUT: Duration = Duration::from_millis(250);

/// The maximum length of a probe in bytes. The main runtime answers longer ones.
const MAX_PROBE_BYTES: usize = 2 << 10;

/// The maximum number of headers of a probe.
const MAX_HEADERS: usize = 32;

/// Answers probes.
pub(super) struct ProbeResponder {
    app: Router,
    paths: Vec<String>,
    watchdog: Arc<Watchdog>,
    /// The time to wait for the first bytes before the main runtime takes over a connection.
    first_bytes: Duration,
    /// The maximum number of headers of a probe.
    headers: usize,
    idle_timeout: Duration,
    write_timeout: Duration,
}

/// The kind of request that the peeked bytes contain.
#[derive(Debug, PartialEq, Eq)]
enum PeekedRequest {
    /// A complete probe of this length. The connection may be kept after it.
    Probe { length: usize, keep_alive: bool },
    /// The beginning of a probe.
    Unfinished,
    /// Another request, or no request.
    Other,
}

impl ProbeResponder {
    /// Creates a responder for `paths`. It responds like `app` unless the runtime that `watchdog`
    /// watches is stuck.
    pub(super) fn new(
        app: Router,
        paths: Vec<String>,
        watchdog: Arc<Watchdog>,
        limits: &ConnectionLimits,
    ) -> Self {
        let ConnectionLimits { headers, header_timeout, idle_timeout, write_timeout, .. } = *limits;
        let first_bytes = FIRST_BYTES_TIMEOUT.min(header_timeout);
        let headers = headers.min(MAX_HEADERS);
        ProbeResponder { app, paths, watchdog, first_bytes, headers, idle_timeout, write_timeout }
    }

    /// Answers probes until another request arrives. Then it returns the connection and the start
    /// of the time limit of its next headers. Returns `None` if the connection has ended.
    pub(super) async fn answer(
        &self,
        mut stream: TcpStream,
        accepted: Instant,
    ) -> io::Result<Option<(TcpStream, Instant)>> {
        let mut is_new = true;
        let mut buffer = [0; MAX_PROBE_BYTES];
        loop {
            let wait = if is_new { self.first_bytes } else { self.idle_timeout };
            let peeked = match timeout(wait, stream.peek(&mut buffer)).await {
                Ok(peeked) => peeked?,
                Err(_) if is_new => return Ok(Some((stream, accepted))),
                Err(_) => return Ok(None),
            };
            if peeked == 0 {
                return Ok(None);
            }
            let began = if is_new { accepted } else { Instant::now() };
            is_new = false;
            let head = self.peek_request(&stream, &mut buffer, peeked).await?;
            let PeekedRequest::Probe { length, keep_alive } = head else { return Ok(Some((stream, began))) };
            stream.read_exact(&mut buffer[..length]).await?;
            let answer = self.respond(&mut stream, &buffer[..length]);
            match timeout(self.write_timeout, answer).await {
                Ok(()) if keep_alive => {}
                Ok(()) | Err(_) => return Ok(None),
            }
        }
    }

    /// Peeks again for a short time if the bytes are only a part of a probe.
    async fn peek_request(
        &self,
        stream: &TcpStream,
        buffer: &mut [u8],
        mut peeked: usize,
    ) -> io::Result<PeekedRequest> {
        let (since, mut pause) = (Instant::now(), Duration::from_millis(1));
        loop {
            let head = parse_request(&buffer[..peeked], &self.paths, self.headers);
            let may_grow = peeked < buffer.len() && since.elapsed() < REST_OF_HEADERS_TIMEOUT;
            match head {
                PeekedRequest::Unfinished if may_grow => {}
                PeekedRequest::Unfinished => return Ok(PeekedRequest::Other),
                head => return Ok(head),
            }
            sleep(pause).await;
            pause *= 2;
            peeked = stream.peek(buffer).await?;
        }
    }

    /// Answers one request with the bytes `head`, using the HTTP library and the server's routes.
    async fn respond(&self, stream: &mut TcpStream, head: &[u8]) {
        let service = service_fn(|request: Request<Incoming>| {
            let mut app = self.app.clone();
            let stuck = self.watchdog.stuck_for();
            async move {
                match stuck {
                    Some(limit) => Ok::<_, Infallible>(http::stuck(limit)),
                    None => app.call(request.map(Body::new)).await,
                }
            }
        });
        let connection = http1::Builder::new()
            // The stream ends after the head, so that the library reads no more of the connection.
            .half_close(true)
            .serve_connection(TokioIo::new(OneRequest { head, stream }), service);
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a probe could not be answered");
        }
    }
}

/// Determines whether these bytes are a GET request for one of these paths, without a body and with
/// at most `max_headers` headers.
fn parse_request(bytes: &[u8], paths: &[String], max_headers: usize) -> PeekedRequest {
    let is_probe = |target: &str| {
        let path = target.split('?').next().unwrap_or_default();
        paths.iter().any(|probe| probe == path)
    };
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers[..max_headers.min(MAX_HEADERS)]);
    match request.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => {
            let is_get = request.method == Some("GET") && request.path.is_some_and(is_probe);
            match keep_alive(request.version, request.headers) {
                // Pipelined requests are left to the main runtime as a whole.
                Some(keep_alive) if is_get && length == bytes.len() => {
                    PeekedRequest::Probe { length, keep_alive }
                }
                _ => PeekedRequest::Other,
            }
        }
        Ok(httparse::Status::Partial) => match request.path {
            Some(path) if request.method == Some("GET") && is_probe(path) => PeekedRequest::Unfinished,
            Some(_) => PeekedRequest::Other,
            None => {
                let may_become = |probe: &String| {
                    let line = format!("GET {probe}");
                    let common = line.len().min(bytes.len());
                    line.as_bytes()[..common] == bytes[..common]
                };
                if paths.iter().any(may_become) { PeekedRequest::Unfinished } else { PeekedRequest::Other }
            }
        },
        Err(_) => PeekedRequest::Other,
    }
}

/// Whether the connection of a request with these headers stays open; `None` if the request is not
/// a plain GET.
fn keep_alive(version: Option<u8>, headers: &[httparse::Header<'_>]) -> Option<bool> {
    let named = |name: &str| headers.iter().find(|header| header.name.eq_ignore_ascii_case(name));
    if ["content-length", "transfer-encoding", "expect", "upgrade"].iter().any(|name| named(name).is_some()) {
        return None;
    }
    match (version, named("connection").map(|header| header.value)) {
        (Some(1), None) => Some(true),
        (Some(1), Some(value)) if value.eq_ignore_ascii_case(b"keep-alive") => Some(true),
        (Some(0), None) => Some(false),
        (Some(0 | 1), Some(value)) if value.eq_ignore_ascii_case(b"close") => Some(false),
        _ => None,
    }
}

/// A view of a connection that ends after one request. The connection itself stays open.
struct OneRequest<'a> {
    /// The part of the request that has not been read.
    head: &'a [u8],
    stream: &'a mut TcpStream,
}

impl AsyncRead for OneRequest<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let (now, later) = self.head.split_at(self.head.len().min(buffer.remaining()));
        buffer.put_slice(now);
        self.head = later;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for OneRequest<'_> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flush(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(text: &str) -> PeekedRequest {
        parse_request(text.as_bytes(), &["/health".to_owned(), "/ready".to_owned()], 3)
    }

    #[test]
    fn only_a_complete_plain_get_is_a_probe() {
        let plain = "GET /health HTTP/1.1\r\nhost: x\r\n\r\n";
        assert_eq!(head(plain), PeekedRequest::Probe { length: plain.len(), keep_alive: true });
        let ready = "GET /health?ready HTTP/1.1\r\nhost: x\r\nConnection: Close\r\n\r\n";
        assert_eq!(head(ready), PeekedRequest::Probe { length: ready.len(), keep_alive: false });
        let old = "GET /ready HTTP/1.0\r\n\r\n";
        assert_eq!(head(old), PeekedRequest::Probe { length: old.len(), keep_alive: false });
        for end in 0..plain.len() {
            assert_eq!(head(&plain[..end]), PeekedRequest::Unfinished, "{}", &plain[..end]);
        }
        for other in [
            "GET /healthy HTTP/1.1\r\n\r\n",
            "GET /metrics HTTP/1.1\r\n\r\n",
            "GET /m",
            "POST /health HTTP/1.1\r\n\r\n",
            "POST /health HTTP/1.1\r\n",
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            "\u{16}\u{3}\u{1}",
            "GET /health HTTP/1.1\r\ncontent-length: 1\r\n\r\n",
            "GET /health HTTP/1.1\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n",
            "GET /health HTTP/1.0\r\nconnection: keep-alive\r\n\r\n",
            "GET /health HTTP/1.1\r\n\r\nGET /metrics HTTP/1.1\r\n\r\n",
            "GET /health HTTP/1.1\r\nhost x\r\n\r\n",
            "GET /health HTTP/1.1\r\na: 1\r\nb: 2\r\nc: 3\r\nd: 4\r\n\r\n",
        ] {
            assert_eq!(head(other), PeekedRequest::Other, "{other}");
        }
    }
}
