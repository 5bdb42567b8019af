//! The sockets: one for subscribers (`PUB`), and one for requests for earlier batches (`ROUTER`).

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use metrics::{Unit, counter, describe_counter};
use tokio::io::{AsyncRead, AsyncWrite, BufStream, ReadHalf, WriteHalf, split};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use super::config::{Endpoint, KvEventsConfig};
use super::history::{Batch, History};
use super::peers::Peers;
use super::zmtp::{self, Received};

/// Counter: batches of events.
pub(super) const BATCHES: &str = "millrace_kv_event_batches_total";
/// Counter: batches that a subscriber was too slow to receive.
const MISSED: &str = "millrace_kv_event_batches_missed_total";

/// Maximum number of connections to each of the two sockets.
const MAX_CONNECTIONS: usize = 64;

/// Maximum number of subscriptions of one subscriber.
const MAX_SUBSCRIPTIONS: usize = 64;

/// The time between two attempts to connect.
const RETRY: Duration = Duration::from_secs(1);

/// The bytes of earlier batches that a peer gets in a second, on average.
const REPLAY_SPEED: f64 = (16 << 20) as f64;

/// The lock that the connections of a peer share.
type PeerTurn = Arc<tokio::sync::Mutex<()>>;

/// The number in the message that ends the answer to a request for earlier batches.
const END: u64 = u64::MAX;

/// Describes the metrics of the events to the installed recorder.
pub(super) fn describe_metrics() {
    describe_counter!(BATCHES, Unit::Count, "Batches of events of the prefix cache");
    describe_counter!(MISSED, Unit::Count, "Batches of events that a subscriber was too slow to receive");
}

/// The addresses at which the sockets accept connections.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct BoundAddresses {
    /// For subscribers; `None` if the server connects to one.
    pub(super) events: Option<SocketAddr>,
    /// For requests for earlier batches.
    pub(super) replay: Option<SocketAddr>,
}

/// The state that all connections share.
pub(super) struct Publisher {
    history: Arc<History>,
    topic: Bytes,
    /// Number of batches that a subscriber may be behind.
    hwm: u64,
}

impl Publisher {
    pub(super) fn new(config: &KvEventsConfig, history: &Arc<History>) -> Arc<Self> {
        let topic = config.topic.clone().into();
        Arc::new(Publisher { history: Arc::clone(history), topic, hwm: config.hwm as u64 })
    }
}

/// Opens the sockets and serves them on the current tokio runtime.
///
/// # Errors
/// A message that names the endpoint which cannot be opened.
pub(super) fn start(config: KvEventsConfig, history: &Arc<History>) -> Result<BoundAddresses, String> {
    let publisher = Publisher::new(&config, history);
    let KvEventsConfig { endpoint, replay_endpoint, .. } = config;
    let mut bound = BoundAddresses::default();
    match endpoint {
        Endpoint::Bind(address) => {
            let publisher = Arc::clone(&publisher);
            let listener = bind(&address)?;
            bound.events = listener.local_addr().ok();
            tokio::spawn(accept(listener, move |stream, _| publish(stream, Arc::clone(&publisher))));
        }
        Endpoint::Connect(address) => {
            tokio::spawn(stay_connected(address, Arc::clone(&publisher)));
        }
    }
    if let Some(Endpoint::Bind(address) | Endpoint::Connect(address)) = replay_endpoint {
        let listener = bind(&address)?;
        bound.replay = listener.local_addr().ok();
        tokio::spawn(accept(listener, move |stream, turn| replay(stream, Arc::clone(&publisher), turn)));
    }
    Ok(bound)
}

/// Binds an address. Without IPv6, the unspecified IPv6 address stands for the IPv4 one.
fn bind(address: &str) -> Result<TcpListener, String> {
    let listener = match (std::net::TcpListener::bind(address), address.strip_prefix("[::]:")) {
        (Err(error), Some(port)) if error.kind() != io::ErrorKind::AddrInUse => {
            std::net::TcpListener::bind(format!("0.0.0.0:{port}"))
        }
        (listener, _) => listener,
    };
    let listener = listener.and_then(|listener| {
        listener.set_nonblocking(true)?;
        TcpListener::from_std(listener)
    });
    listener.map_err(|error| format!("cannot publish events of the prefix cache at tcp://{address}: {error}"))
}

/// Serves the connections to a socket. Connections beyond the limit wait, and those of a peer that
/// has too many are closed. `serve` also gets the lock that all connections of a peer share.
async fn accept<F>(listener: TcpListener, serve: impl Fn(TcpStream, PeerTurn) -> F + Send)
where
    F: Future<Output = io::Result<()>> + Send + 'static,
{
    let (places, peers) = (Arc::new(Semaphore::new(MAX_CONNECTIONS)), Arc::new(Peers::default()));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, peer)) => {
                let Some(peer_place) = peers.enter(peer.ip()) else {
                    tracing::debug!(%peer, "a peer has too many connections to the prefix cache");
                    continue;
                };
                send_at_once(&stream);
                let serving = serve(stream, peer_place.turn.clone());
                tokio::spawn(async move {
                    if let Err(error) = serving.await {
                        tracing::debug!(%peer, %error, "a subscriber to the prefix cache has left");
                    }
                    drop((place, peer_place));
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a subscriber to the prefix cache");
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

/// Publishes to one subscriber that accepts connections.
async fn stay_connected(address: String, publisher: Arc<Publisher>) {
    let mut was_connected = true;
    loop {
        let ended = match TcpStream::connect(&address).await {
            Ok(stream) => {
                tracing::info!(address, "events of the prefix cache are published");
                was_connected = true;
                send_at_once(&stream);
                publish(stream, Arc::clone(&publisher)).await
            }
            Err(error) => Err(error),
        };
        // An absent subscriber is reported once.
        if let Err(error) = ended
            && std::mem::take(&mut was_connected)
        {
            tracing::warn!(address, %error, "events of the prefix cache have no subscriber");
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// Turns off the delay of small packets.
fn send_at_once(stream: &TcpStream) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "TCP_NODELAY is not available");
    }
}

/// Sends new batches to one subscriber until it leaves.
pub(super) async fn publish(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    publisher: Arc<Publisher>,
) -> io::Result<()> {
    let (mut read, mut write) = open(stream, "PUB", &["SUB", "XSUB"]).await?;
    let subscriptions = Mutex::new(Vec::new());
    // Both run until the connection ends; neither can be cancelled and continued.
    tokio::select! {
        ended = follow_subscriptions(&mut read, &subscriptions) => ended,
        ended = send_batches(&mut write, &publisher, &subscriptions) => ended,
    }
}

/// Greets a peer whose socket must have one of these types.
async fn open<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    own: &str,
    types: &[&str],
) -> io::Result<(ReadHalf<BufStream<S>>, WriteHalf<BufStream<S>>)> {
    let mut stream = BufStream::new(stream);
    let theirs = zmtp::greet(&mut stream, own).await?;
    if !types.contains(&theirs.as_str()) {
        let reason = format!("a socket of type {own} cannot serve one of type {theirs:?}");
        return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
    }
    Ok(split(stream))
}

/// Keeps the topics that a subscriber wants: messages that begin with 1 add one, and those that
/// begin with 0 remove one.
async fn follow_subscriptions(
    read: &mut (impl AsyncRead + Unpin),
    subscriptions: &Mutex<Vec<Vec<u8>>>,
) -> io::Result<()> {
    loop {
        let Received::Message(frames) = zmtp::receive(read).await? else { continue };
        let [frame] = frames.as_slice() else { continue };
        let mut subscriptions = subscriptions.lock().unwrap_or_else(PoisonError::into_inner);
        match frame.split_first() {
            Some((1, topic)) if subscriptions.len() < MAX_SUBSCRIPTIONS => subscriptions.push(topic.to_vec()),
            Some((1, _)) => return Err(io::Error::other("the peer has too many subscriptions")),
            Some((0, topic)) => {
                if let Some(index) = subscriptions.iter().position(|known| known == topic) {
                    subscriptions.swap_remove(index);
                }
            }
            _ => {}
        }
    }
}

/// Sends each new batch. Batches are dropped for a subscriber that is too far behind, and for one
/// that has not subscribed to the topic yet.
async fn send_batches(
    write: &mut (impl AsyncWrite + Unpin),
    publisher: &Publisher,
    subscriptions: &Mutex<Vec<Vec<u8>>>,
) -> io::Result<()> {
    let wanted = || {
        let subscriptions = subscriptions.lock().unwrap_or_else(PoisonError::into_inner);
        subscriptions.iter().any(|wanted| publisher.topic.starts_with(wanted))
    };
    let mut next = publisher.history.next();
    let mut due = *next.borrow_and_update();
    loop {
        let oldest = next.borrow_and_update().saturating_sub(publisher.hwm).max(due);
        if let Some(Batch { number, payload }) = publisher.history.at_or_after(oldest) {
            counter!(MISSED).increment(number - due);
            due = number + 1;
            if wanted() {
                zmtp::send(write, &[&publisher.topic, &number.to_be_bytes(), &payload]).await?;
            }
        } else if next.changed().await.is_err() {
            return Ok(());
        }
    }
}

/// Answers requests for earlier batches. A request is the number of the first batch, after any
/// frames that the answers begin with as well. An answer of empty frames around [`END`] is the
/// last.
///
/// A request of a few bytes has an answer of many megabytes. Therefore a peer has one answer at a
/// time, and the next one only after a pause.
async fn replay(stream: TcpStream, publisher: Arc<Publisher>, turn: PeerTurn) -> io::Result<()> {
    let (mut read, mut write) = open(stream, "ROUTER", &["REQ", "DEALER", "ROUTER"]).await?;
    loop {
        let Received::Message(envelope) = zmtp::receive(&mut read).await? else { continue };
        let Some((Ok(first), envelope)) =
            envelope.split_last().map(|(last, before)| (last.as_slice().try_into(), before))
        else {
            return Err(io::Error::other("a request for earlier batches needs a number of 8 bytes"));
        };
        let _turn = turn.lock().await;
        let (mut due, mut bytes) = (u64::from_be_bytes(first), 0);
        while let Some(Batch { number, payload }) = publisher.history.at_or_after(due) {
            answer(&mut write, envelope, [&publisher.topic, &number.to_be_bytes(), &payload]).await?;
            due = number + 1;
            bytes += payload.len();
        }
        answer(&mut write, envelope, [&[], &END.to_be_bytes(), &[]]).await?;
        tokio::time::sleep(Duration::from_secs_f64(bytes as f64 / REPLAY_SPEED)).await;
    }
}

async fn answer(
    write: &mut (impl AsyncWrite + Unpin),
    envelope: &[Vec<u8>],
    contents: [&[u8]; 3],
) -> io::Result<()> {
    let frames: Vec<&[u8]> = envelope.iter().map(Vec::as_slice).chain(contents).collect();
    zmtp::send(write, &frames).await
}
