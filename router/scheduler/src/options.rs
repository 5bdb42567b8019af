//! Scheduling options.

/// Scheduling options, apart from the limits of the shards.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SchedulerOptions {
    /// Whether computed blocks are kept and shared among sequences that begin with the same tokens.
    pub prefix_cache: bool,
    /// Whether [`take_cache_events`](super::Scheduler::take_cache_events) tells of the changes of
    /// the prefix cache.
    pub cache_events: bool,
    /// Number of steps after which a request is ordered before new requests of the next higher
    /// priority. With 0, priorities have no effect.
    pub ageing_steps: u32,
    /// The order in which waiting sequences are admitted.
    pub schedule: Schedule,
    /// Target for the time between two tokens of a stream in microseconds: prompts may extend steps
    /// with decode rows up to this time. They may always extend them to twice the time of the
    /// decode rows.
    pub target_micros: f64,
    /// Maximum number of drafts of a row.
    pub drafts: usize,
    /// Number of tokens of ended answers that are kept, in which drafts are looked for as well.
    pub earlier_tokens: usize,
    /// Whether rows have as many drafts as they can, also if the drafts are not worth their time.
    pub always_draft: bool,
}

impl Default for SchedulerOptions {
    fn default() -> Self {
        SchedulerOptions {
            prefix_cache: true,
            cache_events: false,
            ageing_steps: 512,
            target_micros: 0.0,
            schedule: Schedule::default(),
            drafts: 0,
            earlier_tokens: 0,
            always_draft: false,
        }
    }
}

/// The choice of the sequence that is admitted first. Priorities and the time of arrival decide the
/// order of the queue in both schedules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Schedule {
    /// The first one in the queue that fits ("first come, first served").
    #[default]
    Fcfs,
    /// The one with the longest cached prefix that fits ("longest prefix match"). Sequences with a
    /// shorter prefix are overtaken, up to the limit that holds for both schedules.
    Lpm,
}
