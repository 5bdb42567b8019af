//! The connection to one shard: a task that reads and a task that writes, because neither may be cut short.

use std::sync::Arc;

use millrace_proto::frame::{read_async, write_async};
use millrace_proto::{FrameError, FromShard, ToShard, from_shard};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::group::News;

/// Messages to one shard. The engine bounds what is under way by the steps it has in flight.
pub(super) type Outbound = mpsc::UnboundedSender<Arc<ToShard>>;

/// Serves the halves of a stream with two tasks of `tasks`. What the shard says goes to `news` under its rank.
pub(super) fn open(
    rank: usize,
    (from, to): (impl AsyncRead + Send + Unpin + 'static, impl AsyncWrite + Send + Unpin + 'static),
    news: mpsc::Sender<(usize, News)>,
    tasks: &mut JoinSet<()>,
) -> Outbound {
    let (outbound, messages) = mpsc::unbounded_channel();
    tasks.spawn(read(rank, from, news.clone()));
    tasks.spawn(write(rank, to, messages, news));
    outbound
}

async fn read(rank: usize, mut from: impl AsyncRead + Unpin, news: mpsc::Sender<(usize, News)>) {
    let mut scratch = Vec::new();
    loop {
        let item = match read_async::<FromShard>(&mut from, &mut scratch).await {
            Ok(FromShard { message: Some(from_shard::Message::Output(output)) }) => {
                News::Output(Box::new(output))
            }
            Ok(FromShard { message: Some(from_shard::Message::Pong(_)) }) => News::Pong,
            Ok(FromShard { message: Some(from_shard::Message::Loading(loading)) }) => News::Loading(loading),
            Ok(FromShard { message: Some(from_shard::Message::Ready(ready)) }) => {
                News::Ready(Box::new(ready))
            }
            Ok(FromShard { message: Some(from_shard::Message::Rendezvous(place)) }) => {
                News::Rendezvous(place)
            }
            Ok(FromShard { message: Some(from_shard::Message::Fault(fault)) }) => News::Fault(fault),
            Ok(FromShard { message: None }) => News::Unknown,
            Err(error) => News::Closed(error),
        };
        let last = matches!(item, News::Closed(_));
        if news.send((rank, item)).await.is_err() || last {
            return;
        }
    }
}

/// Ends with the first error. The reading half learns of a death as well, after all that the shard still had to say.
async fn write(
    rank: usize,
    mut to: impl AsyncWrite + Unpin,
    mut messages: mpsc::UnboundedReceiver<Arc<ToShard>>,
    news: mpsc::Sender<(usize, News)>,
) {
    while let Some(message) = messages.recv().await {
        if let Err(error) = write_async(&mut to, &*message).await {
            // The shard knows nothing of a step that was never sent.
            if let FrameError::TooLarge(_) = error {
                let _ = news.send((rank, News::Closed(error))).await;
            }
            return;
        }
    }
}
