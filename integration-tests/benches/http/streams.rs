//! A client that reads a stream of tokens and notes when they arrive.

use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The part of an event that stands for one token. Quotes in a text are escaped, so that no text
/// contains it.
const TOKEN: &[u8] = b"\"token\":{";

/// The part of an event that reports an error.
const ERROR: &[u8] = b"\"error\":";

/// The tokens that one read of a stream has brought.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arrival {
    pub(crate) at: Instant,
    pub(crate) tokens: usize,
}

/// A request for a stream of tokens.
#[derive(Debug, Clone)]
pub(crate) struct StreamRequest {
    /// `host:port` of the server.
    pub(crate) address: String,
    pub(crate) prompt: String,
    pub(crate) tokens: usize,
}

impl StreamRequest {
    fn text(&self) -> String {
        let StreamRequest { address, prompt, tokens } = self;
        let body =
            serde_json::json!({"inputs": prompt, "parameters": {"max_new_tokens": tokens}}).to_string();
        let length = body.len();
        format!(
            "POST /generate_stream HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\nconnection: close\r\n\r\n{body}"
        )
    }
}

/// Sends a request and passes every arrival of tokens to `arrived`, until the stream ends.
///
/// The tokens of several events that one read brings are one arrival: they have waited for each
/// other, and the time between them is not a gap.
pub(crate) async fn read_stream(request: &StreamRequest, mut arrived: impl FnMut(Arrival)) {
    let mut stream = TcpStream::connect(&request.address).await.unwrap();
    stream.write_all(request.text().as_bytes()).await.unwrap();
    let mut buffer = vec![0; 64 << 10];
    // The end of what was read, in which a mark may have begun.
    let mut unread = Vec::new();
    let mut is_first = true;
    loop {
        let read = stream.read(&mut buffer).await.unwrap();
        let at = Instant::now();
        if read == 0 {
            return;
        }
        unread.extend_from_slice(&buffer[..read]);
        if std::mem::take(&mut is_first) {
            assert!(unread.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&unread));
        }
        let is_error = unread.windows(ERROR.len()).any(|window| window == ERROR);
        assert!(!is_error, "{}", String::from_utf8_lossy(&unread));
        let tokens = unread.windows(TOKEN.len()).filter(|window| *window == TOKEN).count();
        if tokens > 0 {
            arrived(Arrival { at, tokens });
        }
        // A mark of a token is longer than what is kept, so that none is counted twice.
        let kept = unread.len().min(TOKEN.len() - 1);
        unread.drain(..unread.len() - kept);
    }
}

/// The times of a set of streams within a window of time.
#[derive(Debug, Default, Clone)]
pub(crate) struct StreamTimes {
    /// The times between two arrivals of the same stream.
    pub(crate) gaps: Vec<Duration>,
    /// The times from sending a request to its first token.
    pub(crate) firsts: Vec<Duration>,
    /// The number of tokens that arrived.
    pub(crate) tokens: usize,
    /// The number of arrivals.
    pub(crate) arrivals: usize,
}

impl StreamTimes {
    /// Adds the times of other streams.
    pub(crate) fn merge(&mut self, other: StreamTimes) {
        self.gaps.extend(other.gaps);
        self.firsts.extend(other.firsts);
        self.tokens += other.tokens;
        self.arrivals += other.arrivals;
    }
}
