//! Serving until told to stop.
//!
//! | file | its job |
//! |---|---|
//! | `front` | the thread that accepts connections, answers probes, and ends the server |
//! | `accept` | the listeners' loops: how many connections there may be |
//! | `probe` | which connections ask for nothing but the server's health, and the answer |
//! | `watchdog` | whether the main runtime, on which all else happens, makes progress |
//! | `connection` | one connection: HTTP/1.1 or HTTP/2, and when it has been too slow |
//! | `pulse` | what a connection is doing, as its watchdog sees it |
//! | `body`, `budget` | a request's body, and the memory for those of all requests |
//! | `answer` | a response's body, and whether its reader takes it |
//! | `linger` | closing a connection whose client still writes |
//! | `tls` | certificates and keys |

mod accept;
mod answer;
mod body;
mod budget;
mod connection;
mod front;
mod linger;
mod probe;
mod pulse;
mod tls;
mod watchdog;

#[cfg(test)]
mod tests;

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt};
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;

use self::accept::Door;
use self::connection::Keeper;
pub use self::front::{ForcedEnd, LastResort};
use self::front::{Front, Phases};
use self::probe::Prober;
pub use self::tls::{Tls, TlsError};
use self::watchdog::Watchdog;

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
    /// Without taking a single byte of what is written to it, be it on the connection or on one of its HTTP/2 streams.
    pub write_timeout: Duration,
    /// Bytes of the bodies of all requests that are being read, or that no answer has begun for; more is status 503.
    pub body_bytes: usize,
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
            body_bytes: 256 << 20,
        }
    }
}

/// How a server treats its clients and its end.
#[derive(Debug)]
pub struct ServeOptions {
    /// What connections may cost.
    pub connections: Connections,
    /// Encrypts if set.
    pub tls: Option<Tls>,
    /// A port for probes alone, which is never encrypted.
    pub probe_listener: Option<TcpListener>,
    /// How long running requests may take to end once the server is asked to.
    pub grace: Duration,
    /// The main runtime counts as stuck after so long without progress.
    pub watchdog_timeout: Duration,
    /// What ends the process when the main runtime cannot.
    pub last_resort: LastResort,
}

impl Default for ServeOptions {
    fn default() -> Self {
        ServeOptions {
            connections: Connections::default(),
            tls: None,
            probe_listener: None,
            grace: Duration::ZERO,
            watchdog_timeout: Duration::from_secs(10),
            last_resort: LastResort::default(),
        }
    }
}

/// Serves until the first of the `signals`, or until the engine has failed, then lets running requests end; the engine ends
/// those that take longer than the grace. Meanwhile the port still answers: `/ready` is 503, and so is every new request. A
/// second signal ends the process at once.
///
/// The port answers at once; while the model loads, `/health` is 200 and `/ready` 503. Both are answered on a thread of their
/// own, and are 503 when the runtime that this function is called on is stuck.
///
/// # Errors
/// If the front thread cannot be started, or ends before the server does.
pub async fn serve(
    listener: TcpListener,
    service: Service,
    config: HttpConfig,
    options: ServeOptions,
    signals: impl Stream<Item = ()> + Send + 'static,
) -> io::Result<()> {
    let ServeOptions { connections, tls, probe_listener, grace, watchdog_timeout, last_resort } = options;
    let phases = Phases::default();
    let finished = phases.finished.clone().drop_guard();
    if let Some(metrics) = config.metrics.clone() {
        let finished = phases.finished.clone();
        let upkeep = async move {
            loop {
                tokio::time::sleep(METRICS_UPKEEP).await;
                metrics.run_upkeep();
            }
        };
        tokio::spawn(async move { finished.run_until_cancelled(upkeep).await });
    }
    let engine = service.engine().clone();
    let (payload_limit, probe_paths) = (service.limits().payload_limit, http::probe_paths(&config));
    let app = http::router(service, config);
    let watchdog = Watchdog::new(watchdog_timeout);
    watchdog.beat_on(&Handle::current(), &phases.finished);
    let prober = Arc::new(Prober::new(app.clone(), probe_paths, watchdog.clone(), &connections));
    let served = TaskTracker::new();
    let door = Door {
        places: Arc::new(Semaphore::new(connections.most)),
        keeper: Arc::new(Keeper::new(app, connections, payload_limit, phases.stop.clone())),
        prober: prober.clone(),
        tls,
        served: served.clone(),
        main: Handle::current(),
    };
    let front = Front {
        listener: listener.into_std()?,
        probe_listener: probe_listener.map(TcpListener::into_std).transpose()?,
        door: Arc::new(door),
        prober,
        watchdog,
        engine,
        grace,
        last_resort,
        phases: phases.clone(),
    };
    let mut front = front.start(signals)?;
    let answered = async {
        phases.stop.cancelled().await;
        served.close();
        served.wait().await;
    };
    let too_long = async {
        phases.asked.cancelled().await;
        tokio::time::sleep(grace + 2 * LAST_BYTES).await;
    };
    tokio::select! {
        () = answered => {}
        () = too_long => tracing::warn!(?grace, "requests are still running; they are cut off"),
        _ = &mut front => return Err(io::Error::other("the thread that accepts connections has ended")),
    }
    // The ports are closed when the thread has ended.
    drop(finished);
    let _ = tokio::time::timeout(LAST_BYTES, front).await;
    Ok(())
}

/// An item each time that the process is asked to end: SIGTERM, or ctrl-c.
///
/// # Errors
/// If the handler for SIGTERM cannot be installed.
pub fn shutdown_signals() -> io::Result<impl Stream<Item = ()> + Send + 'static> {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        // Heard from here on, and not from the first wait.
        let each = |kind| {
            let heard = signal(kind)?;
            let next =
                |mut heard: tokio::signal::unix::Signal| async { heard.recv().await.map(|()| ((), heard)) };
            io::Result::Ok(Box::pin(futures::stream::unfold(heard, next)))
        };
        Ok(futures::stream::select(each(SignalKind::terminate())?, each(SignalKind::interrupt())?))
    }
    #[cfg(not(unix))]
    {
        let next = |()| async { tokio::signal::ctrl_c().await.ok().map(|()| ((), ())) };
        Ok(Box::pin(futures::stream::unfold((), next)))
    }
}

/// Done when the process is asked to end: SIGTERM, or ctrl-c.
///
/// # Errors
/// If the handler for SIGTERM cannot be installed.
pub fn shutdown_signal() -> io::Result<impl Future<Output = ()> + Send + 'static> {
    let mut signals = shutdown_signals()?;
    Ok(async move {
        if signals.next().await.is_none() {
            std::future::pending::<()>().await;
        }
    })
}
