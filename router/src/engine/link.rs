//! The connection to one shard: a task that reads and a task that writes, because neither may be cut short.

use std::sync::Arc;

use millrace_proto::frame::{read_async, write_async};
use millrace_proto::{FrameError, FromShard, ToShard, from_shard};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::group::News;

/// Messages to one shard. The engine bounds what is under way by the steps it has in flight.
pub(super) type Outbound = mpsc::UnboundedSender<Arc<ToShard>>;

/// Serves `stream` with two tasks of `tasks`. What the shard says goes to `news` under its rank.
pub(super) fn open(
    rank: usize,
    stream: UnixStream,
    news: mpsc::Sender<(usize, News)>,
    tasks: &mut JoinSet<()>,
) -> Outbound {
    let (from, to) = stream.into_split();
    let (outbound, messages) = mpsc::unbounded_channel();
    tasks.spawn(read(rank, from, news));
    tasks.spawn(write(to, messages));
    outbound
}

async fn read(rank: usize, mut from: OwnedReadHalf, news: mpsc::Sender<(usize, News)>) {
    let mut scratch = Vec::new();
    loop {
        let item = match read_async::<FromShard>(&mut from, &mut scratch).await {
            Ok(FromShard { message: Some(from_shard::Message::Output(output)) }) => News::Output(output),
            Ok(FromShard { message: Some(from_shard::Message::Loading(loading)) }) => News::Loading(loading),
            Ok(FromShard { message: Some(from_shard::Message::Ready(ready)) }) => {
                News::Ready(Box::new(ready))
            }
            Ok(FromShard { message: Some(from_shard::Message::Fault(fault)) }) => News::Fault(fault.message),
            Ok(FromShard { message: None }) => News::Unknown,
            Err(error) => News::Closed(error),
        };
        let last = matches!(item, News::Closed(_));
        if news.send((rank, item)).await.is_err() || last {
            return;
        }
    }
}

/// Ends with the first error; the reading half learns of the same death and reports it.
async fn write(mut to: OwnedWriteHalf, mut messages: mpsc::UnboundedReceiver<Arc<ToShard>>) {
    while let Some(message) = messages.recv().await {
        match write_async(&mut to, &*message).await {
            Ok(()) => {}
            Err(FrameError::TooLarge(bytes)) => {
                // Cannot happen: limits on sequences keep steps far below. If it did, the shard must not wait for ever.
                tracing::error!(bytes, "a step is too large to be sent");
                return;
            }
            Err(_) => return,
        }
    }
}
