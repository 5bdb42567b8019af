//! The messages between this shard and the router.

use std::io::{ErrorKind, Read, Write};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use millrace_proto::{FrameError, FromShard, Masks, Pong, ToShard, frame, from_shard, to_shard};

use crate::Error;
use crate::collective::Aborter;
use crate::process::connection::Connection;

/// The most messages that the reader thread reads before the messages ahead of them are answered.
/// The router has two steps in flight.
const READ_AHEAD: usize = 4;

/// The two ends of a connection to the router.
///
/// A reader thread reads ahead, so that the next step is already here when a step ends. The thread
/// also answers pings at once, whatever the shard computes.
pub(crate) struct RouterLink {
    sender: SharedSender,
    received: Receiver<Received>,
    /// Masks that were sent after their steps. They do not wait behind later steps.
    masks: Receiver<Masks>,
    collectives: Arc<Mutex<Vec<Aborter>>>,
}

/// A message with its time of arrival.
type Received = Result<(to_shard::Message, Instant), Error>;

impl RouterLink {
    /// Starts the reader thread.
    pub(crate) fn new(connection: &(impl Connection + ?Sized)) -> Result<Self, Error> {
        let from = connection.reader().map_err(FrameError::Io)?;
        let writer = connection.writer().map_err(FrameError::Io)?;
        let sender = SharedSender(Arc::new(Mutex::new(writer)));
        let (queue, received) = mpsc::sync_channel(READ_AHEAD);
        let (masks_queue, masks) = mpsc::sync_channel(READ_AHEAD);
        let collectives = Arc::new(Mutex::new(Vec::<Aborter>::new()));
        let (pongs, to_abort) = (sender.clone(), collectives.clone());
        let reader = thread::Builder::new().name("reader".into()).spawn(move || {
            read_all(from, &pongs, &queue, masks_queue);
            // The router is gone. A step that waits for another rank would otherwise wait until its
            // deadline.
            to_abort.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(Aborter::abort);
        });
        reader.map_err(Error::Reader)?;
        Ok(RouterLink { sender, received, masks, collectives })
    }

    /// Sends a message.
    pub(crate) fn send(&self, message: from_shard::Message) -> Result<(), Error> {
        self.sender.send(message)
    }

    /// Waits for the next message that is not a ping.
    pub(crate) fn receive(&self) -> Received {
        // The reader thread queues the reason before it ends.
        self.received.recv().unwrap_or(Err(FrameError::Closed.into()))
    }

    /// Waits at most `timeout` for the next message that is not a ping.
    pub(crate) fn receive_within(
        &self,
        timeout: Duration,
    ) -> Result<Option<(to_shard::Message, Instant)>, Error> {
        match self.received.recv_timeout(timeout) {
            Ok(received) => received.map(Some),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(FrameError::Closed.into()),
        }
    }

    /// Waits at most `timeout` for the next masks.
    pub(crate) fn masks_within(&self, timeout: Duration) -> MaskArrival {
        match self.masks.recv_timeout(timeout) {
            Ok(masks) => MaskArrival::Masks(masks),
            Err(RecvTimeoutError::Timeout) => MaskArrival::NotYet,
            Err(RecvTimeoutError::Disconnected) => MaskArrival::Never,
        }
    }

    /// Aborts these collectives when the router goes away.
    pub(crate) fn abort_when_closed(&self, collectives: Aborter) {
        self.collectives.lock().unwrap_or_else(PoisonError::into_inner).push(collectives);
    }
}

/// The outcome of a wait for masks.
pub(crate) enum MaskArrival {
    Masks(Masks),
    NotYet,
    /// The router has asked the shard to stop, or is gone.
    Never,
}

/// The writing end, shared by the threads of a shard.
#[derive(Clone)]
struct SharedSender(Arc<Mutex<Box<dyn Write + Send>>>);

impl SharedSender {
    fn send(&self, message: from_shard::Message) -> Result<(), Error> {
        let mut writer = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(frame::write(&mut *writer, &FromShard { message: Some(message) })?)
    }
}

/// Reads messages until the connection ends, or until nobody receives them any more.
fn read_all(
    mut from: Box<dyn Read + Send>,
    pongs: &SharedSender,
    queue: &SyncSender<Received>,
    masks_queue: SyncSender<Masks>,
) {
    let mut masks_queue = Some(masks_queue);
    let mut scratch = Vec::new();
    loop {
        let received = match frame::read::<ToShard>(&mut from, &mut scratch) {
            Ok(ToShard { message: Some(to_shard::Message::Ping(_)) }) => {
                match pongs.send(from_shard::Message::Pong(Pong {})) {
                    Ok(()) => continue,
                    Err(error) => Err(error),
                }
            }
            Ok(ToShard { message: Some(to_shard::Message::Masks(masks)) }) => {
                match masks_queue.as_ref().map(|queue| queue.send(masks)) {
                    Some(Ok(())) => continue,
                    Some(Err(_)) | None => Err(Error::OutOfPlace),
                }
            }
            Ok(ToShard { message: Some(message) }) => {
                if matches!(message, to_shard::Message::Shutdown(_)) {
                    masks_queue = None;
                }
                Ok((message, Instant::now()))
            }
            Ok(ToShard { message: None }) => Err(Error::EmptyMessage),
            Err(error) => Err(error.into()),
        };
        let is_last = received.is_err();
        if queue.send(received).is_err() || is_last {
            return;
        }
    }
}

/// Returns whether the error means that the router has ended or closed the connection. Then nothing
/// is left to do, and nobody is there to report to.
pub(super) fn is_hang_up(error: &Error) -> bool {
    match error {
        Error::Connection(FrameError::Closed) => true,
        Error::Connection(FrameError::Io(error)) => matches!(
            error.kind(),
            ErrorKind::BrokenPipe
                | ErrorKind::ConnectionReset
                | ErrorKind::ConnectionAborted
                | ErrorKind::UnexpectedEof
        ),
        _ => false,
    }
}
