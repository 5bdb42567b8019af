//! The engine's task: it plans a step, sends it to the shards, applies the answer, and handles
//! commands meanwhile.
//!
//! | module | purpose |
//! |---|---|
//! | `engine_loop` | the loop and its state |
//! | `shards` | events of the supervisor: answers, losses, new groups |
//! | `requests` | requests from their submission to their end |
//! | `masks` | masks that are computed beside the steps, and sent after them |
//! | `adapter_places` | the adapters of the shards |
//! | `adapters` | adapters that are loaded and unloaded |
//! | `moves` | requests that go to other groups of shards, and restarts |

mod adapter_places;
mod adapters;
mod engine_loop;
mod masks;
mod moves;
mod requests;
mod shards;

use std::sync::Arc;

use tokio::sync::mpsc;

pub(super) use self::engine_loop::HandleLinks;
use millrace_scheduler::SchedulerLimits;

use self::engine_loop::{EngineLoop, EngineOutputs, SHUTTING_DOWN};
use super::command::EngineCommand;
use super::config::EngineConfig;
use super::dispatch;
use super::event::EngineState;
use super::event::{GenerationEvent, GenerationFailure};
use super::first_group::{Loaded, load};
use super::groups::StateReporter;
use super::preparation::Preparation;
use super::restart_policy::RestartPolicy;
use super::supervisor::{GroupFactory, ShardTimeouts, Supervisor};

/// How the engine gets its shards for the first time.
pub(super) struct FirstStart {
    /// Starts a group of shards.
    pub(super) start_group: GroupFactory,
    /// The work that comes before.
    pub(super) preparation: Option<Preparation>,
}

/// Runs the engine from the start of its shards to its end. No shard process is left afterwards.
pub(super) async fn run(
    config: EngineConfig,
    links: HandleLinks,
    mut commands: mpsc::UnboundedReceiver<EngineCommand>,
    state: StateReporter,
    first: FirstStart,
) {
    let reason = match load_and_serve(config, links, &mut commands, &state, first).await {
        Ok(()) => {
            state.set(EngineState::Draining);
            SHUTTING_DOWN.to_owned()
        }
        Err(reason) => {
            // The caller that ends the process prints the reason.
            tracing::debug!("the engine failed: {reason}");
            state.set(EngineState::Failed(reason.clone()));
            format!("Engine failed: {reason}")
        }
    };
    // Requests may have been submitted in the meantime.
    commands.close();
    while let Some(command) = commands.recv().await {
        match command {
            EngineCommand::Submit { events, .. } => {
                let failure = GenerationFailure::NotStarted(reason.clone());
                let _ = events.send(GenerationEvent::Failed(failure));
            }
            EngineCommand::Adopt(request) => request.fail(&reason),
            // A reply that is dropped tells that the engine has ended.
            EngineCommand::Adapter(_) | EngineCommand::Restart(_) | EngineCommand::Drain => {}
        }
    }
}

/// Loads the model and serves requests until the engine is drained.
///
/// # Errors
/// The reason for which the preparation failed, or the shards could not be started or replaced.
async fn load_and_serve(
    config: EngineConfig,
    links: HandleLinks,
    commands: &mut mpsc::UnboundedReceiver<EngineCommand>,
    state: &StateReporter,
    first: FirstStart,
) -> Result<(), String> {
    let FirstStart { mut start_group, preparation } = first;
    if let Some(preparation) = preparation
        && !preparation.run(commands, state).await?
    {
        return Ok(());
    }
    let policy = RestartPolicy::new(&config);
    let (group, announcement) = match load(&config, policy, commands, state, &mut start_group).await? {
        Loaded::Group(group, announcement) => (group, *announcement),
        Loaded::Drained => return Ok(()),
    };
    let limits = match SchedulerLimits::new(&announcement.ready) {
        Ok(limits) => limits,
        Err(error) => {
            if let Err(unreaped) = group.kill().await {
                tracing::error!("{unreaped}");
            }
            return Err(error.to_string());
        }
    };
    let (batches, received) = mpsc::unbounded_channel();
    let dispatching = tokio::spawn(dispatch::run(received));
    let timeouts = ShardTimeouts {
        startup: config.startup_silence,
        heartbeat: config.heartbeat_timeout,
        step: config.step_timeout,
    };
    let supervisor = Supervisor::new(start_group, group, timeouts, &announcement);
    let (mut ready, adapters) = (announcement.ready, announcement.adapters);
    // There may be a million entries, and only the scheduler needs them.
    let entries = std::mem::take(&mut ready.disk_entries);
    let ready = Arc::new(ready);
    let outputs = EngineOutputs { links, batches, state };
    let mut engine =
        EngineLoop::new(config, supervisor, limits, ready.clone(), outputs).with_adapters(adapters);
    engine.open_disk_cache(&entries);
    state.set(EngineState::Ready(ready));
    let result = engine.run(commands).await;
    // Every event has been sent to its request before the engine reports its end.
    if let Err(error) = dispatching.await {
        tracing::error!("the dispatching task failed: {error}");
    }
    result
}
