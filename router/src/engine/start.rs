//! Starting the engine.

use futures::FutureExt;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use super::baseline::GroupBaseline;
use super::config::EngineConfig;
use super::event_loop::{self, FirstStart, HandleLinks};
use super::group::{GroupOptions, ShardCommand, ShardGroup, remove_leftovers};
use super::handle::Engine;
use super::metrics;
use super::preparation::Preparation;
use super::state::EngineState;
use super::supervisor::GroupFactory;

/// Starts the shards and the engine's task, and returns at once. [`EngineState`] tells when the
/// engine is ready. The task ends after a drain or a failure, when no shard process is left, except
/// processes that could not be killed.
///
/// It must be called within a tokio runtime, and after the metrics recorder has been installed.
pub fn start(config: EngineConfig, command: ShardCommand) -> (Engine, JoinHandle<()>) {
    start_processes(None, config, command)
}

/// Starts the engine like [`start`], but the shards only after the `preparation`.
pub fn start_after(
    preparation: Preparation,
    config: EngineConfig,
    command: ShardCommand,
) -> (Engine, JoinHandle<()>) {
    start_processes(Some(preparation), config, command)
}

fn start_processes(
    preparation: Option<Preparation>,
    config: EngineConfig,
    command: ShardCommand,
) -> (Engine, JoinHandle<()>) {
    // Nothing waits for this thread, not even the end of the process: it reads the files of other
    // servers, and a directory on a network may not answer. If the thread cannot be started, the
    // files stay.
    let _ = std::thread::Builder::new().name("leftovers".into()).spawn(remove_leftovers);
    let options = GroupOptions {
        command,
        world_size: config.world_size,
        others: config.others.clone(),
        silence: config.startup_silence,
    };
    let start_group = move |baseline: Option<GroupBaseline>| {
        let options = options.clone();
        async move { ShardGroup::start(&options, baseline.as_ref()).await }.boxed()
    };
    start_prepared(preparation, config, Box::new(start_group))
}

/// Starts the engine like [`start`], with groups of shards that `start_group` provides.
#[cfg(test)]
pub(super) fn start_with(config: EngineConfig, start_group: GroupFactory) -> (Engine, JoinHandle<()>) {
    start_prepared(None, config, start_group)
}

/// Starts the engine with groups of shards that `start_group` provides.
pub(super) fn start_prepared(
    preparation: Option<Preparation>,
    config: EngineConfig,
    start_group: GroupFactory,
) -> (Engine, JoinHandle<()>) {
    metrics::describe();
    let (commands, received) = mpsc::unbounded_channel();
    let loading = EngineState::Loading { phase: "Starting shards".into(), done: 0, total: 0 };
    let (state, states) = watch::channel(loading);
    let engine = Engine::new(commands, states, config.bounds, config.prefix_cache)
        .with_adapters(config.adapters.clone());
    let links = HandleLinks { occupancy: engine.occupancy(), departures: engine.departures() };
    let task = event_loop::run(config, links, received, state, FirstStart { start_group, preparation });
    (engine, tokio::spawn(task))
}
