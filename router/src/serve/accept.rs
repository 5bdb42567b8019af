//! The listeners' loops: how many connections there may be, and who answers each.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::Tls;
use super::connection::Keeper;
use super::probe::Prober;

/// How long to wait when the system has no more descriptors: connections that end give some back.
const OUT_OF_DESCRIPTORS: Duration = Duration::from_secs(1);

/// Connections that the port for probes has open at the same time.
const PROBES: usize = 64;

/// What one connection too many is told. It has asked nothing yet, so this is all it gets.
const FULL: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";

/// What anything but a probe is told on the port for probes.
const PROBES_ONLY: &[u8] =
    b"HTTP/1.1 404 Not Found\r\ncontent-type: text/plain\r\nconnection: close\r\ncontent-length: 48\r\n\r\n\
      This port answers /health, /ping and /ready only";

/// How long and for how many bytes a client that asked something else there is heard, so that it can read its answer.
const HEARD: (Duration, usize) = (Duration::from_secs(1), 64 << 10);

/// Takes connections on the accepting thread and has them served by the main runtime.
pub(super) struct Door {
    /// Places for connections.
    pub(super) places: Arc<Semaphore>,
    pub(super) keeper: Arc<Keeper>,
    pub(super) prober: Arc<Prober>,
    pub(super) tls: Option<Tls>,
    /// All connections that the main runtime serves.
    pub(super) served: TaskTracker,
    pub(super) main: Handle,
}

impl Door {
    /// Accepts until `stop`.
    pub(super) async fn run(self: Arc<Self>, listener: TcpListener, stop: CancellationToken) {
        while let Some(stream) = accept(&listener, &stop).await {
            let Ok(place) = self.places.clone().try_acquire_owned() else {
                refuse(&stream, self.tls.is_some());
                continue;
            };
            // A token is a small packet: it must not wait for the next one.
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!(%error, "TCP_NODELAY is not available");
            }
            let accepted = Instant::now();
            if self.tls.is_some() {
                self.hand_over(stream, accepted, place);
                continue;
            }
            let door = self.clone();
            tokio::spawn(async move {
                match door.prober.answer(stream, accepted).await {
                    Ok(Some((stream, began))) => door.hand_over(stream, began, place),
                    Ok(None) => {}
                    Err(error) => tracing::debug!(%error, "a connection ended before it asked anything"),
                }
            });
        }
    }

    /// Gives a connection to the main runtime. Its headers count from `began`.
    fn hand_over(&self, stream: TcpStream, began: Instant, place: OwnedSemaphorePermit) {
        let stream = match stream.into_std() {
            Ok(stream) => stream,
            Err(error) => {
                tracing::debug!(%error, "a connection could not be handed over");
                return;
            }
        };
        let (keeper, tls) = (self.keeper.clone(), self.tls.clone());
        let serve = async move {
            let stream = match TcpStream::from_std(stream) {
                Ok(stream) => stream,
                Err(error) => {
                    tracing::debug!(%error, "a connection could not be taken over");
                    return;
                }
            };
            match tls {
                None => keeper.serve(stream, began).await,
                Some(tls) => match timeout(keeper.header_timeout(), tls.accept(stream)).await {
                    Ok(Ok(stream)) => keeper.serve(stream, Instant::now()).await,
                    Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
                    Err(_) => tracing::debug!("a TLS handshake took too long"),
                },
            }
            drop(place);
        };
        self.served.spawn_on(serve, &self.main);
    }
}

/// Answers probes, and nothing else, on a port of their own until `stop`.
pub(super) async fn run_probes(listener: TcpListener, prober: Arc<Prober>, stop: CancellationToken) {
    let places = Arc::new(Semaphore::new(PROBES));
    while let Some(stream) = accept(&listener, &stop).await {
        let Ok(place) = places.clone().try_acquire_owned() else {
            refuse(&stream, false);
            continue;
        };
        let prober = prober.clone();
        tokio::spawn(async move {
            if let Ok(Some((mut stream, _))) = prober.answer(stream, Instant::now()).await {
                let _ = timeout(HEARD.0, turn_away(&mut stream)).await;
            }
            drop(place);
        });
    }
}

async fn turn_away(stream: &mut TcpStream) -> io::Result<()> {
    stream.write_all(PROBES_ONLY).await?;
    stream.shutdown().await?;
    // Closing with unread bytes would reset the connection, and the answer with it.
    let mut unread = stream.take(HEARD.1 as u64);
    tokio::io::copy(&mut unread, &mut tokio::io::sink()).await?;
    Ok(())
}

/// The next connection; `None` at `stop`.
async fn accept(listener: &TcpListener, stop: &CancellationToken) -> Option<TcpStream> {
    loop {
        match stop.run_until_cancelled(listener.accept()).await? {
            Ok((stream, _)) => return Some(stream),
            Err(error) if is_of_connection(&error) => {}
            Err(error) => {
                tracing::error!(%error, "cannot accept connections for the moment");
                stop.run_until_cancelled(tokio::time::sleep(OUT_OF_DESCRIPTORS)).await?;
            }
        }
    }
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
