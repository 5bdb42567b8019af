//! Loads adapters on all ranks of a group, before it answers steps.

use std::time::Duration;

use millrace_proto::{UnloadAdapter, to_shard};

use super::event::GroupEvent;
use super::shard_group::ShardGroup;
use crate::engine::kept_adapters::{KeptAdapter, LoadAnswers, LostAdapter};
use crate::engine::loss::GroupLoss;
use crate::engine::timeout::running_timeout;

impl ShardGroup {
    /// Loads adapters one after the other. Those that cannot be loaded, or whose files have changed
    /// since the group before read them, are removed from `adapters` and returned.
    ///
    /// # Errors
    /// If a rank is lost, or all ranks are silent for the time `silence`.
    pub(in crate::engine) async fn load_adapters(
        &mut self,
        adapters: &mut Vec<KeptAdapter>,
        silence: Duration,
    ) -> Result<Vec<LostAdapter>, GroupLoss> {
        let mut lost = Vec::new();
        for mut adapter in std::mem::take(adapters) {
            let loaded = self.load_adapter(&adapter, silence).await?;
            let known = &adapter.identities;
            let reason = match loaded {
                Ok(identities) if known.is_empty() || *known == identities => {
                    adapter.identities = identities;
                    adapters.push(adapter);
                    continue;
                }
                Ok(_) => "its files have been changed while the server ran".to_owned(),
                Err(reason) => reason,
            };
            let id = adapter.id;
            // Some ranks may have loaded it.
            self.send(to_shard::Message::UnloadAdapter(UnloadAdapter { adapter: id.0 }));
            lost.push(LostAdapter { id, reason });
        }
        Ok(lost)
    }

    async fn load_adapter(
        &mut self,
        adapter: &KeptAdapter,
        silence: Duration,
    ) -> Result<Result<Vec<String>, String>, GroupLoss> {
        self.send(to_shard::Message::LoadAdapter(adapter.message()));
        let mut answers = LoadAnswers::new(adapter.id, self.world_size());
        loop {
            if let Some(result) = answers.result() {
                return Ok(result);
            }
            let event = running_timeout(silence, self.next()).await;
            let silent =
                || format!("the shards have been silent for {} s while loading adapters", silence.as_secs());
            match event.map_err(|_| GroupLoss::of_shards(silent()))? {
                (rank, GroupEvent::AdapterLoaded(answer)) if answers.add(rank, answer.clone()) => {}
                (rank, other) => return Err(self.explain(rank, other).await),
            }
        }
    }
}
