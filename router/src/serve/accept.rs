//! The listeners' loops. They bound the number of connections and hand each connection to its
//! handler.

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

use super::connection::ConnectionServer;
use super::probe::ProbeResponder;
use super::tls::Tls;

/// The delay before the next accept when the system has no file descriptors left. Connections that
/// end free descriptors.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_secs(1);

/// The number of open connections on the probe port.
const MAX_PROBE_CONNECTIONS: usize = 64;

/// The response on a connection beyond the limit. Its request is not read, so this is the whole
/// response.
const TOO_MANY_CONNECTIONS: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";

/// The response on the probe port to anything but a probe.
const PROBES_ONLY: &[u8] =
    b"HTTP/1.1 404 Not Found\r\ncontent-type: text/plain\r\nconnection: close\r\ncontent-length: 48\r\n\r\n\
      This port answers /health, /ping and /ready only";

/// The time and the number of bytes for which a client that sent another request to the probe port
/// is read, so that it can read its response.
const DISCARD_LIMITS: (Duration, usize) = (Duration::from_secs(1), 64 << 10);

/// Accepts connections on the front thread and hands them to the main runtime.
pub(super) struct Acceptor {
    /// Permits for open connections.
    pub(super) permits: Arc<Semaphore>,
    pub(super) connections: Arc<ConnectionServer>,
    pub(super) probe_responder: Arc<ProbeResponder>,
    pub(super) tls: Option<Tls>,
    /// All connections that the main runtime serves.
    pub(super) served: TaskTracker,
    pub(super) main: Handle,
}

impl Acceptor {
    /// Accepts connections until `stop`.
    pub(super) async fn run(self: Arc<Self>, listener: TcpListener, stop: CancellationToken) {
        while let Some(stream) = accept(&listener, &stop).await {
            let Ok(permit) = self.permits.clone().try_acquire_owned() else {
                refuse_connection(&stream, self.tls.is_some());
                continue;
            };
            // A token is a small packet and must not wait for the next one.
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!(%error, "TCP_NODELAY is not available");
            }
            let accepted = Instant::now();
            if self.tls.is_some() {
                self.hand_over(stream, accepted, permit);
                continue;
            }
            let acceptor = self.clone();
            tokio::spawn(async move {
                match acceptor.probe_responder.answer(stream, accepted).await {
                    Ok(Some((stream, began))) => acceptor.hand_over(stream, began, permit),
                    Ok(None) => {}
                    Err(error) => tracing::debug!(%error, "a connection ended before its first request"),
                }
            });
        }
    }

    /// Hands a connection to the main runtime. The time limit of its headers starts at `began`.
    fn hand_over(&self, stream: TcpStream, began: Instant, permit: OwnedSemaphorePermit) {
        let stream = match stream.into_std() {
            Ok(stream) => stream,
            Err(error) => {
                tracing::debug!(%error, "a connection could not be handed to the main runtime");
                return;
            }
        };
        let (connections, tls) = (self.connections.clone(), self.tls.clone());
        let serve = async move {
            let stream = match TcpStream::from_std(stream) {
                Ok(stream) => stream,
                Err(error) => {
                    tracing::debug!(%error, "the main runtime could not take over a connection");
                    return;
                }
            };
            match tls {
                None => connections.serve(stream, began).await,
                Some(tls) => match timeout(connections.header_timeout(), tls.accept(stream)).await {
                    Ok(Ok(stream)) => connections.serve(stream, Instant::now()).await,
                    Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
                    Err(_) => tracing::debug!("a TLS handshake took too long"),
                },
            }
            drop(permit);
        };
        self.served.spawn_on(serve, &self.main);
    }
}

/// Answers probes, and nothing else, on a separate port until `stop`.
pub(super) async fn run_probes(
    listener: TcpListener,
    probe_responder: Arc<ProbeResponder>,
    stop: CancellationToken,
) {
    let permits = Arc::new(Semaphore::new(MAX_PROBE_CONNECTIONS));
    while let Some(stream) = accept(&listener, &stop).await {
        let Ok(permit) = permits.clone().try_acquire_owned() else {
            refuse_connection(&stream, false);
            continue;
        };
        let probe_responder = probe_responder.clone();
        tokio::spawn(async move {
            if let Ok(Some((mut stream, _))) = probe_responder.answer(stream, Instant::now()).await {
                let _ = timeout(DISCARD_LIMITS.0, answer_not_a_probe(&mut stream)).await;
            }
            drop(permit);
        });
    }
}

async fn answer_not_a_probe(stream: &mut TcpStream) -> io::Result<()> {
    stream.write_all(PROBES_ONLY).await?;
    stream.shutdown().await?;
    // Closing with unread bytes would reset the connection, and the client would lose the response.
    let mut unread = stream.take(DISCARD_LIMITS.1 as u64);
    tokio::io::copy(&mut unread, &mut tokio::io::sink()).await?;
    Ok(())
}

/// Returns the next connection, or `None` after `stop`.
async fn accept(listener: &TcpListener, stop: &CancellationToken) -> Option<TcpStream> {
    loop {
        match stop.run_until_cancelled(listener.accept()).await? {
            Ok((stream, _)) => return Some(stream),
            Err(error) if is_client_error(&error) => {}
            Err(error) => {
                tracing::error!(%error, "cannot accept connections; retrying");
                stop.run_until_cancelled(tokio::time::sleep(ACCEPT_RETRY_DELAY)).await?;
            }
        }
    }
}

/// Whether an error concerns a single client and not the listener.
fn is_client_error(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::ConnectionRefused | ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset
    )
}

fn refuse_connection(stream: &TcpStream, encrypts: bool) {
    tracing::debug!("a connection was refused because the limit of --max-connections is reached");
    if !encrypts {
        // A new connection takes this many bytes at once, unless the client has disconnected.
        let _ = stream.try_write(TOO_MANY_CONNECTIONS);
    }
}
