//! The server: connections, probes, and an orderly end.
//!
//! | file | its job |
//! |---|---|
//! | `server` | starts all parts and waits for the end |
//! | `signals` | signals that ask the process to end |
//! | `front_thread` | the thread that accepts connections, answers probes, and ends the server |
//! | `accept` | the listeners' loops, which bound the number of connections |
//! | `probe` | recognizes and answers requests for nothing but the server's health |
//! | `watchdog` | checks that the main runtime makes progress |
//! | `connection` | one connection: HTTP/1.1 or HTTP/2, closed when it is too slow |
//! | `connection_limits` | limits on what connections cost |
//! | `connection_activity` | what a connection is doing, and since when |
//! | `observed_stream` | a stream that records its reads and writes in `connection_activity` |
//! | `request_body`, `body_budget` | a request's body, and the memory for the bodies of all requests |
//! | `response_body`, `response_state` | a response's body, and whether its client reads it |
//! | `lingering_close` | closes a connection whose client still writes |
//! | `tls` | certificates and keys |

mod accept;
mod body_budget;
mod connection;
mod connection_activity;
mod connection_limits;
mod front_thread;
mod lingering_close;
mod observed_stream;
mod probe;
mod request_body;
mod response_body;
mod response_state;
mod server;
mod signals;
mod tls;
mod watchdog;

#[cfg(test)]
mod tests;

pub use connection_limits::ConnectionLimits;
pub use front_thread::{ForcedEnd, LastResort};
pub use server::{ServeOptions, serve};
pub use signals::{shutdown_signal, shutdown_signals};
pub use tls::{Tls, TlsError};
