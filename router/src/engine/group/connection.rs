//! The connection to one shard: a task that reads and a task that writes. Neither reading nor
//! writing a frame is cancel safe, so each needs a task of its own.

use std::sync::Arc;

use millrace_proto::frame::{read_async, write_async};
use millrace_proto::{FrameError, FromShard, ToShard, from_shard};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::event::GroupEvent;

/// Sends messages to one shard. The number of messages on their way is bounded by the number of
/// steps in flight.
pub(super) type ShardSender = mpsc::UnboundedSender<Arc<ToShard>>;

/// Starts the two tasks of a connection in `tasks`. The messages of the shard go to `events` with
/// its rank.
pub(super) fn open(
    rank: usize,
    (from, to): (impl AsyncRead + Send + Unpin + 'static, impl AsyncWrite + Send + Unpin + 'static),
    events: mpsc::Sender<(usize, GroupEvent)>,
    tasks: &mut JoinSet<()>,
) -> ShardSender {
    let (sender, messages) = mpsc::unbounded_channel();
    tasks.spawn(read(rank, from, events.clone()));
    tasks.spawn(write(rank, to, messages, events));
    sender
}

async fn read(rank: usize, mut from: impl AsyncRead + Unpin, events: mpsc::Sender<(usize, GroupEvent)>) {
    let mut scratch = Vec::new();
    loop {
        let event = match read_async::<FromShard>(&mut from, &mut scratch).await {
            Ok(FromShard { message: Some(message) }) => to_event(message),
            Ok(FromShard { message: None }) => GroupEvent::Unknown,
            Err(error) => GroupEvent::Closed(error),
        };
        let is_last = matches!(event, GroupEvent::Closed(_));
        if events.send((rank, event)).await.is_err() || is_last {
            return;
        }
    }
}

fn to_event(message: from_shard::Message) -> GroupEvent {
    match message {
        from_shard::Message::Output(output) => GroupEvent::Output(Box::new(output)),
        from_shard::Message::MasksDue(due) => GroupEvent::MasksDue(due.step),
        from_shard::Message::Pong(_) => GroupEvent::Pong,
        from_shard::Message::Loading(loading) => GroupEvent::Loading(loading),
        from_shard::Message::Ready(ready) => GroupEvent::Ready(Box::new(ready)),
        from_shard::Message::Rendezvous(rendezvous) => GroupEvent::Rendezvous(rendezvous),
        from_shard::Message::AdapterLoaded(loaded) => GroupEvent::AdapterLoaded(loaded),
        from_shard::Message::Fault(fault) => GroupEvent::Fault(fault),
    }
}

/// Writes messages until the first error. The reading task reports the end of the connection, after
/// the last messages of the shard.
async fn write(
    rank: usize,
    mut to: impl AsyncWrite + Unpin,
    mut messages: mpsc::UnboundedReceiver<Arc<ToShard>>,
    events: mpsc::Sender<(usize, GroupEvent)>,
) {
    while let Some(message) = messages.recv().await {
        if let Err(error) = write_async(&mut to, &*message).await {
            // A step that was never sent does not end the connection, so the reading task would
            // report nothing.
            if let FrameError::TooLarge(_) = error {
                let _ = events.send((rank, GroupEvent::Closed(error))).await;
            }
            return;
        }
    }
}
