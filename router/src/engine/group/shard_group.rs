//! The group: messages to all ranks, and their events.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use millrace_proto::{Shutdown, ToShard, to_shard};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use super::children::Children;
#[cfg(test)]
use super::connection;
use super::connection::ShardSender;
use super::error::Unreaped;
use super::event::GroupEvent;
use super::explain;
use crate::engine::loss::GroupLoss;
use crate::engine::timeout::running_timeout;

/// Maximum number of events that wait to be read. A connection that is ahead of the engine waits.
const MAX_EVENTS: usize = 64;

/// Time to wait for a better explanation after the first sign of a loss.
const EXPLANATION_TIMEOUT: Duration = Duration::from_secs(1);

/// All ranks of one model.
pub(in crate::engine) struct ShardGroup {
    /// The senders of messages, by rank.
    pub(super) senders: BTreeMap<usize, ShardSender>,
    /// Events that came before all ranks were connected.
    pub(super) early: VecDeque<(usize, GroupEvent)>,
    pub(super) events: mpsc::Receiver<(usize, GroupEvent)>,
    /// The tasks of the connections.
    pub(super) connections: JoinSet<()>,
    pub(super) children: Children,
}

impl ShardGroup {
    /// A group without ranks, and the sender of its events.
    pub(super) fn empty() -> (mpsc::Sender<(usize, GroupEvent)>, Self) {
        let (sender, events) = mpsc::channel(MAX_EVENTS);
        let group = ShardGroup {
            senders: BTreeMap::new(),
            early: VecDeque::new(),
            events,
            connections: JoinSet::new(),
            children: Children::default(),
        };
        (sender, group)
    }

    /// A group whose ranks, in their order, are at the other ends of these streams.
    #[cfg(test)]
    pub(in crate::engine) fn connected(streams: Vec<tokio::io::DuplexStream>) -> Self {
        let (events, mut group) = ShardGroup::empty();
        for (rank, stream) in streams.into_iter().enumerate() {
            let halves = tokio::io::split(stream);
            let sender = connection::open(rank, halves, events.clone(), &mut group.connections);
            group.senders.insert(rank, sender);
        }
        group
    }

    /// Number of ranks.
    pub(in crate::engine) fn world_size(&self) -> usize {
        self.senders.len()
    }

    /// Sends a message to every rank. If a rank is lost, [`next`](Self::next) returns the event.
    pub(in crate::engine) fn send(&self, message: to_shard::Message) {
        self.send_to(0, message);
    }

    /// Sends a message to every rank except rank 0.
    pub(in crate::engine) fn send_to_others(&self, message: to_shard::Message) {
        self.send_to(1, message);
    }

    /// Sends a message to the ranks from `first` on.
    fn send_to(&self, first: usize, message: to_shard::Message) {
        let message = Arc::new(ToShard { message: Some(message) });
        for sender in self.senders.values().skip(first) {
            let _ = sender.send(message.clone());
        }
    }

    /// Returns the next event and its rank. Cancel safe.
    pub(in crate::engine) async fn next(&mut self) -> (usize, GroupEvent) {
        if let Some(event) = self.early.pop_front() {
            return event;
        }
        match self.events.recv().await {
            Some(event) => event,
            // Every connection reports its end before its sender is dropped, so no event will come.
            None => std::future::pending().await,
        }
    }

    /// Waits for the best explanation of a loss that began with the event `first` of this rank.
    pub(in crate::engine) async fn explain(&mut self, rank: usize, first: GroupEvent) -> GroupLoss {
        let deadline = Instant::now() + EXPLANATION_TIMEOUT;
        let exit_is_reported = rank < self.children.len();
        let mut events = vec![first];
        while !explain::is_complete(&events, exit_is_reported) {
            match timeout_at(deadline, self.events.recv()).await {
                Ok(Some((other, event))) if other == rank => events.push(event),
                // The losses of other ranks follow from this one.
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => break,
            }
        }
        explain::explain(rank, events)
    }

    /// Asks all ranks to exit, kills those that have not exited after `grace`, and waits until no
    /// process is left.
    pub(in crate::engine) async fn end(mut self, grace: Duration) {
        self.send(to_shard::Message::Shutdown(Shutdown {}));
        self.events.close();
        self.senders.clear();
        let ended = async {
            self.children.wait().await;
            while self.connections.join_next().await.is_some() {}
        };
        if running_timeout(grace, ended).await.is_err() {
            tracing::warn!("killing shards that did not exit within {} s", grace.as_secs());
            if let Err(unreaped) = self.kill().await {
                tracing::error!("{unreaped}");
            }
        }
    }

    /// Kills all ranks and waits until no process is left.
    ///
    /// # Errors
    /// [`Unreaped`] if a process cannot be killed.
    pub(in crate::engine) async fn kill(mut self) -> Result<(), Unreaped> {
        self.events.close();
        self.children.kill().await
    }
}
