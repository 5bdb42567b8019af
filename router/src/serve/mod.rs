//! Serving until told to stop.
//!
//! | file | its job |
//! |---|---|
//! | `accept` | the listener's loop: how many connections there may be |
//! | `connection` | one connection: HTTP/1.1 or HTTP/2, and when it has been too slow |
//! | `pulse` | what a connection is doing, as its watchdog sees it |
//! | `tls` | certificates and keys |

mod accept;
mod body;
mod connection;
mod pulse;
mod tls;

#[cfg(test)]
mod tests;

use std::future::Future;
use std::io;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

pub use self::tls::{Tls, TlsError};

use crate::http::{self, HttpConfig};
use crate::service::Service;

/// How often old samples of the metrics are folded away.
const METRICS_UPKEEP: Duration = Duration::from_secs(5);

/// How long after the last request's end, or after the time that requests have to end, connections are waited for.
const LAST_BYTES: Duration = Duration::from_secs(2);

/// What a client may cost before it has asked anything, and while it reads.
#[derive(Debug, Clone)]
pub struct Connections {
    /// Open at the same time; one more gets status 503 and is closed.
    pub most: usize,
    /// Bytes of a request's line and headers; more is status 431.
    pub header_bytes: usize,
    /// Headers of a request; more is status 431.
    pub headers: usize,
    /// From the first byte of a request to the end of its headers; for the first one from the connection's beginning. Also
    /// for a TLS handshake.
    pub header_timeout: Duration,
    /// From the end of the headers to the end of the body.
    pub body_timeout: Duration,
    /// Between two requests.
    pub idle_timeout: Duration,
    /// Without taking a single byte of what is written to it.
    pub write_timeout: Duration,
}

impl Default for Connections {
    fn default() -> Self {
        Connections {
            most: 4096,
            header_bytes: 32 << 10,
            headers: 100,
            header_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(30),
            // Longer than the 60 s of most proxies, so that they close first and no request meets a closing connection.
            idle_timeout: Duration::from_secs(75),
            write_timeout: Duration::from_secs(30),
        }
    }
}

/// How a server treats its clients and its end.
#[derive(Debug, Clone, Default)]
pub struct ServeOptions {
    /// What connections may cost.
    pub connections: Connections,
    /// Encrypts if set.
    pub tls: Option<Tls>,
    /// How long running requests may take to end once the server is asked to.
    pub grace: Duration,
}

/// Serves until `shutdown` is done, then lets running requests end; the engine ends those that take longer than the grace.
/// Meanwhile the port still answers: `/ready` is 503, and so is every new request.
///
/// The port answers at once; while the model loads, `/health` is 200 and `/ready` 503.
///
/// # Errors
/// The listener's.
pub async fn serve(
    listener: TcpListener,
    service: Service,
    config: HttpConfig,
    options: ServeOptions,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let upkeep = config.metrics.clone().map(|metrics| {
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(METRICS_UPKEEP).await;
                metrics.run_upkeep();
            }
        })
    });
    let ServeOptions { connections, tls, grace } = options;
    let (stopping, stopped) = oneshot::channel();
    let engine = service.engine().clone();
    let stop = CancellationToken::new();
    let told = stop.clone();
    tokio::spawn(async move {
        shutdown.await;
        engine.drain();
        // Nobody waits if the server has ended by itself.
        let _ = stopping.send(());
        // It ends in time by itself; only a bug could keep it.
        let _ = tokio::time::timeout(grace + LAST_BYTES, engine.ended()).await;
        told.cancel();
    });
    let server = accept::run(listener, http::router(service, config), connections, tls, stop);
    let too_long = async {
        match stopped.await {
            Ok(()) => tokio::time::sleep(grace + 2 * LAST_BYTES).await,
            Err(_) => std::future::pending().await,
        }
    };
    let result = tokio::select! {
        result = server => result,
        () = too_long => {
            tracing::warn!(?grace, "requests are still running; they are cut off");
            Ok(())
        }
    };
    if let Some(upkeep) = upkeep {
        upkeep.abort();
    }
    result
}

/// Done when the process is asked to end: SIGTERM, or ctrl-c.
///
/// # Errors
/// If the handler for SIGTERM cannot be installed.
pub fn shutdown_signal() -> io::Result<impl Future<Output = ()> + Send + 'static> {
    #[cfg(unix)]
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    Ok(async move {
        #[cfg(unix)]
        let terminated = async move {
            terminate.recv().await;
        };
        #[cfg(not(unix))]
        let terminated = std::future::pending::<()>();
        tokio::select! {
            () = terminated => {}
            result = tokio::signal::ctrl_c() => {
                if let Err(error) = result {
                    tracing::warn!(%error, "ctrl-c cannot be heard");
                    std::future::pending::<()>().await;
                }
            }
        }
    })
}
