//! Limits of connections.

use std::time::Duration;

/// The time for which connections are waited for after the last request has ended, or after the
/// time for running requests is over.
pub(super) const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Limits of what connections cost.
#[derive(Debug, Clone)]
pub struct ConnectionLimits {
    /// The number of open connections. A further connection gets status 503 and is closed.
    pub max_connections: usize,
    /// The number of bytes of a request's line and headers. More get status 431.
    pub header_bytes: usize,
    /// The number of headers of a request. More get status 431.
    pub headers: usize,
    /// The time from the first byte of a request to the end of its headers. For the first request,
    /// the time starts with the connection. It also limits a TLS handshake.
    pub header_timeout: Duration,
    /// The time from the end of the headers to the end of the body.
    pub body_timeout: Duration,
    /// The time between two requests.
    pub idle_timeout: Duration,
    /// The time in which a client must read at least one byte of what is written to it, on the
    /// connection or on one of its HTTP/2 streams.
    pub write_timeout: Duration,
    /// The number of bytes of all request bodies that are being read or have no response yet. More
    /// get status 503.
    pub body_bytes: usize,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        ConnectionLimits {
            max_connections: 4096,
            header_bytes: 32 << 10,
            headers: 100,
            header_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(30),
            // This is longer than the 60 s of most proxies. They close first, so that no request
            // arrives on a closing connection.
            idle_timeout: Duration::from_secs(75),
            write_timeout: Duration::from_secs(30),
            body_bytes: 256 << 20,
        }
    }
}
