//! Events of the prefix cache for routers in front of several servers.
//!
//! Routers such as llm-d's and Dynamo's send a request to the server that has computed most of its
//! prompt already. They subscribe to the servers' events: which blocks of tokens a server has
//! stored, and which it has removed. The events, their encoding and the sockets are those of vLLM
//! (`vllm/distributed/kv_events.py`), so these routers need no adapter:
//!
//! - [`message`] encodes events with MessagePack.
//! - [`History`] numbers the encoded batches and keeps the newest ones.
//! - [`publisher`] sends them to ZeroMQ subscribers and answers requests for earlier batches.
//! - [`zmtp`] is the part of ZeroMQ's protocol that these two sockets need.
//!
//! The engine never waits for a subscriber. One that falls behind misses batches, which it notices
//! by their numbers.

mod config;
mod history;
mod message;
mod peers;
mod publisher;
#[cfg(test)]
mod tests;
mod zmtp;

use std::fmt;
use std::sync::Arc;

use ::metrics::counter;

pub use self::config::{Endpoint, KvEventsConfig};
use millrace_scheduler::CacheEvent;

use crate::engine::Adapters;

use self::history::History;
use self::publisher::BoundAddresses;

/// Publishes the events of the prefix cache. Clones publish to the same subscribers.
#[derive(Clone)]
pub struct KvEvents {
    history: Arc<History>,
    /// The adapters, whose names are part of events.
    adapters: Adapters,
}

impl KvEvents {
    /// Opens the sockets and starts to serve them on the current tokio runtime. The first batch
    /// says that the cache is empty, for routers that know of an earlier run of this server.
    /// `adapters` tell the names of adapters.
    ///
    /// # Errors
    /// A message that names the endpoint which cannot be opened.
    pub fn start(config: KvEventsConfig, adapters: &Adapters) -> Result<Self, String> {
        let (events, bound) = Self::start_bound(config, adapters)?;
        tracing::info!(events = ?bound.events, replay = ?bound.replay, "events of the prefix cache are published");
        Ok(events)
    }

    /// Does what [`start`](Self::start) does, and also returns the addresses of the sockets. The
    /// system chooses a port that is given as 0.
    fn start_bound(config: KvEventsConfig, adapters: &Adapters) -> Result<(Self, BoundAddresses), String> {
        publisher::describe_metrics();
        let events = Self::without_sockets(&config, adapters);
        let bound = publisher::start(config, &events.history)?;
        Ok((events, bound))
    }

    fn without_sockets(config: &KvEventsConfig, adapters: &Adapters) -> Self {
        let history = Arc::new(History::new(config.history()));
        let events = KvEvents { history, adapters: adapters.clone() };
        events.publish(&[CacheEvent::Cleared]);
        events
    }

    /// Publishes events as one batch. Nothing is published without events.
    pub(crate) fn publish(&self, events: &[CacheEvent]) {
        if !events.is_empty() {
            let name = |id| self.adapters.held(id).map(|adapter| adapter.info.name.clone());
            self.history.push(message::encode(message::now(), events, &name).into());
            counter!(publisher::BATCHES).increment(1);
        }
    }
}

impl fmt::Debug for KvEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KvEvents").finish_non_exhaustive()
    }
}
