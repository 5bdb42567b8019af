//! From the first connection until every rank is ready.

use std::time::Duration;

use millrace_proto::{Loading, Ready, to_shard};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use super::group::{Group, News, StartError};
use super::handle::{Command, State};
use super::run::End;

/// Connects the shards and waits for all of them. What they announce together is rank 0's, with the smallest pool
/// and the shortest sequences of all.
///
/// Commands are watched meanwhile: requests are not taken yet by the handle, but draining ends the attempt.
pub(super) async fn load(
    silence: Duration,
    commands: &mut mpsc::UnboundedReceiver<Command>,
    state: &watch::Sender<State>,
    connect: impl Future<Output = Result<Group, StartError>>,
) -> Result<(Group, Ready), End> {
    let mut group = tokio::select! {
        group = connect => group.map_err(|error| End::Failed(error.to_string()))?,
        () = drain_requested(commands) => return Err(End::Drained),
    };
    let show = |Loading { phase, done_bytes, total_bytes }| {
        state.send_replace(State::Loading { phase, done: done_bytes, total: total_bytes });
    };
    let result = tokio::select! {
        ready = all_ready(&mut group, silence, show) => ready.map_err(End::Failed),
        () = drain_requested(commands) => Err(End::Drained),
    };
    match result {
        Ok(ready) => Ok((group, ready)),
        Err(end) => {
            group.kill().await;
            Err(end)
        }
    }
}

/// Waits for all ranks; `progress` is told what the first one says of its own.
pub(super) async fn all_ready(
    group: &mut Group,
    silence: Duration,
    mut progress: impl FnMut(Loading),
) -> Result<Ready, String> {
    let mut ready: Vec<Option<Ready>> = vec![None; group.world_size()];
    loop {
        let heard = timeout(silence, group.next()).await;
        let (rank, news) = heard
            .map_err(|_| format!("the shards have been silent for {} s while loading", silence.as_secs()))?;
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
                return Err(format!(
                    "the shards differ: rank 0 has {}, and rank {rank} {}; all machines need the same model and flags",
                    settings[0], settings[rank]
                ));
            }
            // Memory may be scarcer for one rank than for another.
            let least = |size: fn(&Ready) -> u32| ready.iter().flatten().map(size).min().unwrap_or_default();
            let num_blocks = least(|ready| ready.num_blocks);
            let max_sequence_tokens = least(|ready| ready.max_sequence_tokens);
            let first = ready.swap_remove(0).unwrap_or_default();
            return Ok(Ready { num_blocks, max_sequence_tokens, ..first });
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
