//! From the first connection until every rank is ready.

use std::time::Duration;

use millrace_proto::{Loading, Ready, to_shard};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep};

use super::group::{Group, News};
use super::handle::{Command, State};
use super::kept::Announced;
use super::losses::{Cause, Decision, Loss, LossPolicy, Losses};
use super::patience::within;
use super::run::End;
use super::supervisor::Connect;

/// Connects the first group of shards and waits for all of them. Only processes that the system has no resources for are
/// tried again: who starts a server wants to know at once what is wrong with it.
///
/// Commands are watched meanwhile: requests are not taken yet by the handle, but draining ends the attempt.
pub(super) async fn load(
    silence: Duration,
    policy: LossPolicy,
    commands: &mut mpsc::UnboundedReceiver<Command>,
    state: &watch::Sender<State>,
    connect: &mut Connect,
) -> Result<(Group, Announced), End> {
    let mut group = tokio::select! {
        group = first_group(policy, connect) => group.map_err(End::Failed)?,
        () = drain_requested(commands) => return Err(End::Drained),
    };
    let show = |Loading { phase, done_bytes, total_bytes }| {
        state.send_replace(State::Loading { phase, done: done_bytes, total: total_bytes });
    };
    let result = tokio::select! {
        announced = all_ready(&mut group, silence, show) => announced.map_err(|loss| End::Failed(loss.why)),
        () = drain_requested(commands) => Err(End::Drained),
    };
    match result {
        Ok(announced) => Ok((group, announced)),
        Err(end) => {
            if let Err(unreaped) = group.kill().await {
                tracing::error!("{unreaped}");
            }
            Err(end)
        }
    }
}

/// Starts the processes and connects them, as soon as the system has the resources for them.
///
/// # Errors
/// Why there will be no group.
async fn first_group(policy: LossPolicy, connect: &mut Connect) -> Result<Group, String> {
    let mut losses = Losses::new(policy);
    loop {
        let loss = match connect(None).await {
            Ok(group) => return Ok(group),
            Err(error) => Loss::from(error),
        };
        if loss.cause != Cause::Shortage {
            return Err(loss.why);
        }
        match losses.add(&loss, Instant::now()) {
            Decision::GiveUp(why) => return Err(why),
            Decision::Restart { after, tell } => {
                if tell {
                    tracing::warn!("{}; trying again until the system has the resources", loss.why);
                }
                sleep(after).await;
            }
        }
    }
}

/// Waits for all ranks; `progress` is told what the first one says of its own. What they announce together is rank 0's,
/// with the smallest pool and the shortest sequences of all.
pub(super) async fn all_ready(
    group: &mut Group,
    silence: Duration,
    mut progress: impl FnMut(Loading),
) -> Result<Announced, Loss> {
    let mut ready: Vec<Option<Ready>> = vec![None; group.world_size()];
    loop {
        let heard = within(silence, group.next()).await;
        let silent = || format!("the shards have been silent for {} s while loading", silence.as_secs());
        let (rank, news) = heard.map_err(|_| Loss::of_shards(silent()))?;
        match news {
            News::Loading(loading) if rank == 0 => progress(loading),
            News::Loading(_) => {}
            News::Ready(announced) => ready[rank] = Some(*announced),
            News::Rendezvous(place) if rank == 0 => {
                group.send_to_others(to_shard::Message::Rendezvous(place));
            }
            other => return Err(group.explain(rank, other).await),
        }
        if ready.iter().all(Option::is_some) {
            let settings: Vec<String> = ready.iter().flatten().map(settings).collect();
            if let Some(rank) = settings.iter().position(|other| *other != settings[0]) {
                return Err(Loss::of_shards(format!(
                    "the shards differ: rank 0 has {}, and rank {rank} {}; all machines need the same model and flags",
                    settings[0], settings[rank]
                )));
            }
            // Memory may be scarcer for one rank than for another.
            let least = |size: fn(&Ready) -> u32| ready.iter().flatten().map(size).min().unwrap_or_default();
            let num_blocks = least(|ready| ready.num_blocks);
            let max_sequence_tokens = least(|ready| ready.max_sequence_tokens);
            let mut ready: Vec<Ready> = ready.into_iter().flatten().collect();
            let checkpoints = ready.iter_mut().map(|ready| std::mem::take(&mut ready.checkpoint)).collect();
            let ready = Ready { num_blocks, max_sequence_tokens, ..ready.swap_remove(0) };
            return Ok(Announced { ready, checkpoints });
        }
    }
}

/// What must be the same on all ranks: other machines may have been started with other flags.
fn settings(ready: &Ready) -> String {
    let Ready { parameters, vocab_size, dtype, quantize, kv_cache_dtype, .. } = ready;
    let Ready { rotation, block_size, max_sequences, max_step_tokens, .. } = ready;
    format!(
        "{parameters} parameters as {dtype} {quantize}, a vocabulary of {vocab_size}, rotation {rotation:?}, \
         {kv_cache_dtype} in blocks of {block_size}, {max_sequences} sequences and {max_step_tokens} tokens per step"
    )
}

/// Until someone drains, or no handle is left. A request that slipped in is dropped, which ends it.
async fn drain_requested(commands: &mut mpsc::UnboundedReceiver<Command>) {
    while let Some(Command::Submit { .. }) = commands.recv().await {}
}
