//! The server: starts all parts and waits for the end.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::Stream;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;

use super::accept::Acceptor;
use super::connection::ConnectionServer;
use super::connection_limits::{CLOSE_TIMEOUT, ConnectionLimits};
use super::front_thread::{FrontThread, LastResort, ShutdownPhases};
use super::probe::ProbeResponder;
use super::tls::Tls;
use super::watchdog::Watchdog;
use crate::http::{self, HttpConfig};
use crate::service::Service;

/// The interval at which the metrics recorder aggregates old samples.
const METRICS_UPKEEP: Duration = Duration::from_secs(5);

/// Options of a server.
#[derive(Debug)]
pub struct ServeOptions {
    /// Limits of connections.
    pub connections: ConnectionLimits,
    /// The certificate and key; `None` for plain HTTP.
    pub tls: Option<Tls>,
    /// A separate port for probes, which is never encrypted.
    pub probe_listener: Option<TcpListener>,
    /// The time that running requests have to end after the server is asked to end.
    pub grace: Duration,
    /// The time without progress after which the main runtime counts as stuck.
    pub watchdog_timeout: Duration,
    /// Ends the process if the main runtime cannot.
    pub last_resort: LastResort,
}

impl Default for ServeOptions {
    fn default() -> Self {
        ServeOptions {
            connections: ConnectionLimits::default(),
            tls: None,
            probe_listener: None,
            grace: Duration::ZERO,
            watchdog_timeout: Duration::from_secs(10),
            last_resort: LastResort::default(),
        }
    }
}

/// Serves until the first of the `signals` or until the engine has failed, and then lets running
/// requests end. The engine ends requests that take longer than the grace period. Meanwhile the
/// port still responds: `/ready` and every new request get status 503. A second signal ends the
/// process at once.
///
/// The port responds at once. While the model loads, `/health` is 200 and `/ready` is 503. Both are
/// answered on a separate thread, and are 503 if the runtime that calls this function is stuck.
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
    let phases = ShutdownPhases::default();
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
    let probe_paths = http::probe_paths(&config);
    let limit = service.clone();
    let payload_limit = Box::new(move || limit.payload_limit());
    let app = http::router(service, config);
    let watchdog = Watchdog::new(watchdog_timeout);
    watchdog.start_heartbeats(&Handle::current(), &phases.finished);
    let probe_responder =
        Arc::new(ProbeResponder::new(app.clone(), probe_paths, watchdog.clone(), &connections));
    let served = TaskTracker::new();
    let acceptor = Acceptor {
        permits: Arc::new(Semaphore::new(connections.max_connections)),
        connections: Arc::new(ConnectionServer::new(app, connections, payload_limit, phases.stop.clone())),
        probe_responder: probe_responder.clone(),
        tls,
        served: served.clone(),
        main: Handle::current(),
    };
    let front = FrontThread {
        listener: listener.into_std()?,
        probe_listener: probe_listener.map(TcpListener::into_std).transpose()?,
        acceptor: Arc::new(acceptor),
        probe_responder,
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
        tokio::time::sleep(grace + 2 * CLOSE_TIMEOUT).await;
    };
    tokio::select! {
        () = answered => {}
        () = too_long => tracing::warn!(?grace, "requests are still running and are cut off"),
        _ = &mut front => return Err(io::Error::other("the thread that accepts connections has ended")),
    }
    // The ports are closed when the thread has ended.
    drop(finished);
    let _ = tokio::time::timeout(CLOSE_TIMEOUT, front).await;
    Ok(())
}
