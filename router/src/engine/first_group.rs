//! Starts the first group of shards.

use std::time::Duration;

use millrace_proto::{Loading, Ready};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use super::adapters::AdapterSource;
use super::baseline::GroupAnnouncement;
use super::command::EngineCommand;
use super::config::EngineConfig;
use super::event::EngineState;
use super::group::ShardGroup;
use super::groups::StateReporter;
use super::kept_adapters::{KeptAdapter, LostAdapter};
use super::loss::{GroupLoss, LossCause};
use super::restart_policy::{LossTracker, RestartDecision, RestartPolicy};
use super::supervisor::GroupFactory;

/// The result of loading.
pub(super) enum Loaded {
    /// The group is ready.
    Group(ShardGroup, Box<GroupAnnouncement>),
    /// The engine was asked to drain before the group was ready.
    Drained,
}

/// Starts the first group of shards and waits until all of them are ready. The start is repeated
/// only while the system lacks resources for the processes, because an operator who starts a server
/// wants to see other errors at once.
///
/// Commands are received meanwhile: the handle accepts no requests yet, but a drain ends the
/// attempt.
///
/// # Errors
/// The reason for which there is no group.
pub(super) async fn load(
    config: &EngineConfig,
    policy: RestartPolicy,
    commands: &mut mpsc::UnboundedReceiver<EngineCommand>,
    state: &StateReporter,
    start_group: &mut GroupFactory,
) -> Result<Loaded, String> {
    let mut group = tokio::select! {
        group = connect(policy, start_group) => group?,
        () = drain_requested(commands) => return Ok(Loaded::Drained),
    };
    let silence = config.startup_silence;
    let show_progress = |Loading { phase, done_bytes, total_bytes }| {
        state.set(EngineState::Loading { phase, done: done_bytes, total: total_bytes });
    };
    let result = tokio::select! {
        ready = ready_with_adapters(&mut group, config, silence, show_progress) => ready.map(Some),
        () = drain_requested(commands) => Ok(None),
    };
    if let Ok(Some(announcement)) = result {
        return Ok(Loaded::Group(group, Box::new(announcement)));
    }
    if let Err(unreaped) = group.kill().await {
        tracing::error!("{unreaped}");
    }
    result.map(|_| Loaded::Drained)
}

/// Waits until all ranks are ready and have loaded the adapters that have a name.
///
/// # Errors
/// The reason for which the group is of no use.
async fn ready_with_adapters(
    group: &mut ShardGroup,
    config: &EngineConfig,
    silence: Duration,
    progress: impl FnMut(Loading),
) -> Result<GroupAnnouncement, String> {
    let mut announcement = group.wait_until_ready(silence, progress).await.map_err(|loss| loss.reason)?;
    announcement.adapters = first_adapters(config, &announcement.ready);
    let lost = group.load_adapters(&mut announcement.adapters, silence).await.map_err(|loss| loss.reason)?;
    match lost.into_iter().next() {
        Some(LostAdapter { reason, .. }) => Err(reason),
        None => Ok(announcement),
    }
}

/// The adapters with which the engine was started: in the places of their indices, or in host
/// memory.
fn first_adapters(config: &EngineConfig, ready: &Ready) -> Vec<KeptAdapter> {
    let has_places = ready.max_loaded_adapters <= ready.adapters;
    let listed = config.adapters.named();
    let kept = (0..).zip(listed.iter()).map(|(index, adapter)| KeptAdapter {
        id: adapter.id,
        place: has_places.then_some(index),
        source: AdapterSource::Listed(index),
        identities: Vec::new(),
    });
    kept.collect()
}

/// Starts the processes and connects them, as soon as the system has the resources for them.
///
/// # Errors
/// The reason for which there is no group.
async fn connect(policy: RestartPolicy, start_group: &mut GroupFactory) -> Result<ShardGroup, String> {
    let mut losses = LossTracker::new(policy);
    loop {
        let loss = match start_group(None).await {
            Ok(group) => return Ok(group),
            Err(error) => GroupLoss::from(error),
        };
        if loss.cause != LossCause::Shortage {
            return Err(loss.reason);
        }
        match losses.add(&loss, Instant::now()) {
            RestartDecision::GiveUp(reason) => return Err(reason),
            RestartDecision::Restart { after, log } => {
                if log {
                    tracing::warn!("{}; trying again until the system has the resources", loss.reason);
                }
                sleep(after).await;
            }
        }
    }
}

/// Waits for a drain, or until no handle is left. A request that arrives in this state is dropped,
/// which ends it.
pub(super) async fn drain_requested(commands: &mut mpsc::UnboundedReceiver<EngineCommand>) {
    // The reply to a load is dropped as well.
    while !matches!(commands.recv().await, Some(EngineCommand::Drain) | None) {}
}
