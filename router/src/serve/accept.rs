//! The listener's loop.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::connection::Keeper;
use super::{Connections, Tls};

/// How long to wait when the system has no more descriptors: connections that end give some back.
const OUT_OF_DESCRIPTORS: Duration = Duration::from_secs(1);

/// What one connection too many is told. It has asked nothing yet, so this is all it gets.
const FULL: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";

/// Accepts until `stop`, then waits until the connections have answered what they were asked.
///
/// # Errors
/// If the listener is broken.
pub(super) async fn run(
    listener: TcpListener,
    app: Router,
    limits: Connections,
    tls: Option<Tls>,
    stop: CancellationToken,
) -> io::Result<()> {
    let places = Arc::new(Semaphore::new(limits.most));
    let keeper = Arc::new(Keeper::new(app, limits, stop.clone()));
    let running = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.cancelled() => break,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) if is_of_connection(&error) => continue,
            Err(error) => {
                tracing::error!(%error, "cannot accept connections for the moment");
                tokio::time::sleep(OUT_OF_DESCRIPTORS).await;
                continue;
            }
        };
        let Ok(place) = places.clone().try_acquire_owned() else {
            refuse(&stream, tls.is_some());
            continue;
        };
        // A token is a small packet: it must not wait for the next one.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "TCP_NODELAY is not available");
        }
        let (keeper, tls) = (keeper.clone(), tls.clone());
        running.spawn(async move {
            match tls {
                None => keeper.serve(stream).await,
                Some(tls) => match tokio::time::timeout(keeper.header_timeout(), tls.accept(stream)).await {
                    Ok(Ok(stream)) => keeper.serve(stream).await,
                    Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
                    Err(_) => tracing::debug!("a TLS handshake took too long"),
                },
            }
            drop(place);
        });
    }
    running.close();
    running.wait().await;
    Ok(())
}

/// Errors that say something of one client, not of the listener.
fn is_of_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::ConnectionRefused | ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset
    )
}

fn refuse(stream: &TcpStream, encrypts: bool) {
    tracing::debug!("a connection was refused: there are as many as allowed");
    if !encrypts {
        // A new connection takes so little at once, or it has gone.
        let _ = stream.try_write(FULL);
    }
}
