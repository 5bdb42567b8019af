//! Serving until told to stop.

use std::future::Future;
use std::io;
use std::time::Duration;

use axum::serve::ListenerExt;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::http::{self, HttpConfig};
use crate::service::Service;

/// How often old samples of the metrics are folded away.
const METRICS_UPKEEP: Duration = Duration::from_secs(5);

/// How long after the last request's end, or after the time that requests have to end, connections are waited for.
const LAST_BYTES: Duration = Duration::from_secs(2);

/// Serves until `shutdown` is done, then lets running requests end; the engine ends those that take longer than `grace`.
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
    grace: Duration,
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
    let (stopping, stopped) = oneshot::channel();
    let engine = service.engine().clone();
    let signal = async move {
        shutdown.await;
        engine.drain();
        // Nobody waits if the server has ended by itself.
        let _ = stopping.send(());
        // It ends in time by itself; only a bug could keep it.
        let _ = tokio::time::timeout(grace + LAST_BYTES, engine.ended()).await;
    };
    // A token is a small packet: it must not wait for the next one.
    let listener = listener.tap_io(|stream| {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "TCP_NODELAY is not available");
        }
    });
    let server = axum::serve(listener, http::router(service, config)).with_graceful_shutdown(signal);
    let too_long = async {
        match stopped.await {
            Ok(()) => tokio::time::sleep(grace + 2 * LAST_BYTES).await,
            Err(_) => std::future::pending().await,
        }
    };
    let result = tokio::select! {
        result = server.into_future() => result,
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
