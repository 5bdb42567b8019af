//! Waits until every rank of a group has loaded the model.

use std::time::Duration;

use millrace_proto::{Loading, Ready, to_shard};

use super::agreement;
use super::event::GroupEvent;
use super::shard_group::ShardGroup;
use crate::engine::baseline::GroupAnnouncement;
use crate::engine::loss::GroupLoss;
use crate::engine::timeout::running_timeout;

impl ShardGroup {
    /// Waits until all ranks are ready. `progress` is called with the loading progress of rank 0.
    ///
    /// The combined announcement repeats rank 0's, with the smallest KV cache and the shortest
    /// sequences of all ranks.
    ///
    /// # Errors
    /// If a rank is lost, the ranks do not fit together, or all ranks are silent for the time
    /// `silence`.
    pub(in crate::engine) async fn wait_until_ready(
        &mut self,
        silence: Duration,
        mut progress: impl FnMut(Loading),
    ) -> Result<GroupAnnouncement, GroupLoss> {
        let mut ready: Vec<Option<Ready>> = vec![None; self.world_size()];
        while ready.iter().any(Option::is_none) {
            let event = running_timeout(silence, self.next()).await;
            let silent = || format!("the shards have been silent for {} s while loading", silence.as_secs());
            let (rank, event) = event.map_err(|_| GroupLoss::of_shards(silent()))?;
            match event {
                GroupEvent::Loading(loading) if rank == 0 => progress(loading),
                GroupEvent::Loading(_) => {}
                GroupEvent::Ready(announced) => ready[rank] = Some(*announced),
                GroupEvent::Rendezvous(rendezvous) if rank == 0 => {
                    self.send_to_others(to_shard::Message::Rendezvous(rendezvous));
                }
                other => return Err(self.explain(rank, other).await),
            }
        }
        combine(ready.into_iter().flatten().collect())
    }
}

/// Combines the announcements of all ranks.
fn combine(mut ready: Vec<Ready>) -> Result<GroupAnnouncement, GroupLoss> {
    agreement::check(&ready).map_err(|differ| GroupLoss::of_shards(differ.to_string()))?;
    // Ranks may have different amounts of free memory.
    let smallest = |size: fn(&Ready) -> u32| ready.iter().map(size).min().unwrap_or_default();
    let num_blocks = smallest(|ready| ready.num_blocks);
    let disk_slots = smallest(|ready| ready.disk_slots);
    let max_sequence_tokens = smallest(|ready| ready.max_sequence_tokens);
    let checkpoints = ready.iter_mut().map(|ready| std::mem::take(&mut ready.checkpoint)).collect();
    let ready = Ready { num_blocks, max_sequence_tokens, disk_slots, ..ready.swap_remove(0) };
    Ok(GroupAnnouncement { ready, checkpoints, adapters: Vec::new(), lost_adapters: Vec::new() })
}
