//! Starting the engine.

use std::sync::atomic::AtomicBool;

use futures::FutureExt;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};

use super::baseline::GroupBaseline;
use super::config::EngineConfig;
use super::event::EngineState;
use super::event_loop::{self, FirstStart, HandleLinks};
use super::group::{GroupOptions, ShardCommand, ShardGroup, remove_leftovers};
use super::groups::{GroupStates, ReadyGroups, StateReporter};
use super::handle::Engine;
use super::metrics;
use super::preparation::Preparation;
use super::supervisor::GroupFactory;

/// Starts the shards and the engine's task, and returns at once. [`EngineState`] tells when the
/// engine is ready. The task ends after a drain or a failure, when no shard process is left, except
/// processes that could not be killed.
///
/// It must be called within a tokio runtime, and after the metrics recorder has been installed.
///
/// Each of the commands starts the shards of one group.
pub fn start(config: EngineConfig, commands: Vec<ShardCommand>) -> (Engine, JoinHandle<()>) {
    start_processes(None, config, commands)
}

/// Starts the engine like [`start`], but the shards only after the `preparation`.
pub fn start_after(
    preparation: Preparation,
    config: EngineConfig,
    commands: Vec<ShardCommand>,
) -> (Engine, JoinHandle<()>) {
    start_processes(Some(preparation), config, commands)
}

fn start_processes(
    preparation: Option<Preparation>,
    config: EngineConfig,
    commands: Vec<ShardCommand>,
) -> (Engine, JoinHandle<()>) {
    // Nothing waits for this thread, not even the end of the process: it reads the files of other
    // servers, and a directory on a network may not answer. If the thread cannot be started, the
    // files stay.
    let _ = std::thread::Builder::new().name("leftovers".into()).spawn(remove_leftovers);
    let factories = commands.into_iter().map(|command| processes(&config, command)).collect();
    start_prepared(preparation, config, factories)
}

/// Returns what starts the processes of a group.
fn processes(config: &EngineConfig, command: ShardCommand) -> GroupFactory {
    let options = GroupOptions {
        command,
        world_size: config.world_size,
        others: config.others.clone(),
        silence: config.startup_silence,
    };
    Box::new(move |baseline: Option<GroupBaseline>| {
        let options = options.clone();
        async move { ShardGroup::start(&options, baseline.as_ref()).await }.boxed()
    })
}

/// Starts the engine like [`start`], with a group of shards that `start_group` provides.
#[cfg(test)]
pub(super) fn start_with(config: EngineConfig, start_group: GroupFactory) -> (Engine, JoinHandle<()>) {
    start_prepared(None, config, vec![start_group])
}

/// Starts the engine with groups of shards that `start_groups` provide. The first one is prepared,
/// and the others start after its preparation.
pub(super) fn start_prepared(
    preparation: Option<Preparation>,
    config: EngineConfig,
    start_groups: Vec<GroupFactory>,
) -> (Engine, JoinHandle<()>) {
    metrics::describe();
    let count = start_groups.len();
    let (commands, received): (Vec<_>, Vec<_>) = (0..count).map(|_| mpsc::unbounded_channel()).unzip();
    let loading = EngineState::Loading { phase: "Starting shards".into(), done: 0, total: 0 };
    let (shown, state) = watch::channel(loading);
    let ready: ReadyGroups = (0..count).map(|_| AtomicBool::new(false)).collect();
    let states = GroupStates::new(ready.clone(), shown);
    let engine = Engine::over(commands, ready, state, config.bounds, config.prefix_cache)
        .with_adapters(config.adapters.clone());
    let preparations = Preparation::for_groups(preparation, count);
    let mut tasks = JoinSet::new();
    let parts = start_groups.into_iter().zip(received).zip(preparations);
    for (group, ((start_group, received), preparation)) in parts.enumerate() {
        let links = HandleLinks {
            occupancy: engine.occupancy(),
            departures: engine.departures(),
            groups: engine.groups(),
            group,
            count,
        };
        let state = StateReporter::new(&states, group);
        let first = FirstStart { start_group, preparation };
        tasks.spawn(event_loop::run(config.clone(), links, received, state, first));
    }
    let task = tokio::spawn(async move {
        while let Some(ended) = tasks.join_next().await {
            if let Err(error) = ended {
                tracing::error!("an event loop failed: {error}");
            }
        }
    });
    (engine, task)
}
