//! Configuration of the engine.

use std::time::Duration;

use millrace_scheduler::Schedule;

use super::adapters::Adapters;
use super::group::OtherNodes;
use super::occupancy::AdmissionBounds;
use crate::kv_events::KvEvents;

/// The configuration of the engine, apart from the limits that the shards announce.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// Number of ranks; each holds one slice of the model.
    pub world_size: usize,
    /// The ranks that other machines run, if any.
    pub others: Option<OtherNodes>,
    /// Maximum number of requests queued and running.
    pub bounds: AdmissionBounds,
    /// Whether computed prefixes are kept and shared.
    pub prefix_cache: bool,
    /// Whether the disk cache, if there is one, is kept for the next server.
    pub kv_persist: bool,
    /// Publishes the changes of the prefix cache, if anybody wants to know of them.
    pub kv_events: Option<KvEvents>,
    /// The adapters of the model. The engine loads those that have a name at its start.
    pub adapters: Adapters,
    /// The order in which queued requests are started.
    pub schedule: Schedule,
    /// Maximum number of drafts of a row, if the shards can verify drafts.
    pub drafts: usize,
    /// Number of tokens of ended answers in which drafts are looked for as well; 0 for none.
    pub earlier_tokens: usize,
    /// Whether rows have as many drafts as they can, also if the drafts are not worth their time.
    pub always_draft: bool,
    /// Target for the time between two tokens of a stream, up to which prompts may delay the tokens
    /// of running streams. Prompts may always double the time of a step.
    pub target_itl: Duration,
    /// Maximum time that a request may be queued, if there is a limit.
    pub queue_timeout: Option<Duration>,
    /// Maximum time that the shards may take for one step before they count as hung. Without a
    /// value it is several times the time that earlier steps predict, and two minutes at least.
    pub step_timeout: Option<Duration>,
    /// Maximum time that a shard may leave pings unanswered. The engine sends about four pings in
    /// this time.
    pub heartbeat_timeout: Duration,
    /// Number of losses of shards in a row, without a token in between, after which the engine
    /// gives up. With 1 the first loss ends the engine.
    pub max_failures: u32,
    /// Minimum time between the first and the last of these losses before the engine gives up.
    pub failure_window: Duration,
    /// Maximum time that a starting shard may send nothing. Loading may take any time as long as
    /// the shard reports progress.
    pub startup_silence: Duration,
    /// Maximum time that running requests may take to end once draining has begun.
    pub drain_timeout: Duration,
    /// Maximum time that a shard may take to exit when asked to, before it is killed.
    pub shutdown_grace: Duration,
}

impl Default for EngineConfig {
    fn default() -> Self {
        EngineConfig {
            world_size: 1,
            others: None,
            bounds: AdmissionBounds { in_flight: 128, queued: usize::MAX, queued_tokens: usize::MAX },
            prefix_cache: true,
            kv_persist: false,
            kv_events: None,
            adapters: Adapters::default(),
            schedule: Schedule::default(),
            drafts: 0,
            earlier_tokens: 0,
            always_draft: false,
            target_itl: Duration::ZERO,
            queue_timeout: None,
            step_timeout: None,
            heartbeat_timeout: Duration::from_secs(2),
            max_failures: 3,
            failure_window: Duration::from_secs(60),
            startup_silence: Duration::from_secs(600),
            drain_timeout: Duration::from_secs(90),
            shutdown_grace: Duration::from_secs(5),
        }
    }
}
