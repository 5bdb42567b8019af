//! Loads and unloads adapters while the shards answer steps.

use millrace_proto::{AdapterLoaded, UnloadAdapter, to_shard};
use millrace_scheduler::{AdapterId, SeqId};

use super::adapter_places::LoadingAdapter;
use super::engine_loop::{EngineLoop, SHUTTING_DOWN};
use crate::engine::adapters::{AdapterLoadCommand, LoadError};
use crate::engine::event::GenerationFailure;
use crate::engine::kept_adapters::{KeptAdapter, LoadAnswers, LostAdapter};
use crate::engine::supervisor::GroupFailure;

/// The error of a load while no shards run.
const RESTARTING: &str = "The shards are being restarted; try again";

impl EngineLoop<'_> {
    /// Asks all ranks to load an adapter.
    pub(super) fn load_adapter(&mut self, command: AdapterLoadCommand) {
        let AdapterLoadCommand { adapter: id, source, reply } = command;
        let place = if self.drain_deadline.is_some() {
            Err(LoadError::Unavailable(SHUTTING_DOWN))
        } else if !self.shards.is_running() || self.adapters.loading.is_some() {
            Err(LoadError::Unavailable(RESTARTING))
        } else {
            self.adapters.free_place(&self.limits)
        };
        match place {
            Ok(place) => {
                let adapter = KeptAdapter { id, place, source, identities: Vec::new() };
                self.shards.send_message(to_shard::Message::LoadAdapter(adapter.message()));
                let answers = LoadAnswers::new(id, self.config.world_size);
                self.adapters.loading = Some(LoadingAdapter { adapter, answers, reply });
            }
            Err(error) => _ = reply.send(Err(error)),
        }
    }

    /// Adds the answer of a rank to the load.
    pub(super) fn on_adapter_loaded(&mut self, rank: usize, answer: AdapterLoaded) {
        let is_owed = match &mut self.adapters.loading {
            Some(loading) => loading.answers.add(rank, answer),
            None => false,
        };
        if !is_owed {
            let reason = format!("rank {rank} has loaded an adapter that it was not asked for");
            self.shards.end_group(GroupFailure::MalformedAnswer(reason));
            return self.on_loss();
        }
        let is_complete = |loading: &mut LoadingAdapter| loading.answers.result().is_some();
        let Some(LoadingAdapter { mut adapter, answers, reply }) = self.adapters.loading.take_if(is_complete)
        else {
            return;
        };
        let result = match answers.result() {
            Some(Ok(identities)) => {
                adapter.identities = identities;
                self.adapters.loaded.push(adapter);
                self.shards.keep_adapters(&self.adapters.loaded);
                Ok(())
            }
            failed => {
                // Some ranks may have loaded it.
                self.unload(adapter.id);
                let reason = failed.and_then(Result::err).unwrap_or_default();
                Err(LoadError::Refused(reason))
            }
        };
        let _ = reply.send(result);
    }

    /// Frees the place of an adapter that nothing holds any more.
    pub(super) fn free_adapter(&mut self, id: AdapterId) {
        self.config.adapters.forget(id);
        self.scheduler.unload_adapter(id);
        if self.adapters.remove(id) {
            self.shards.keep_adapters(&self.adapters.loaded);
            match self.shards.is_running() {
                true => self.unload(id),
                false => self.adapters.freed_during_start.push(id),
            }
        }
    }

    /// Ends a load whose shards are lost.
    pub(super) fn abandon_adapter_load(&mut self) {
        if let Some(loading) = self.adapters.loading.take() {
            let _ = loading.reply.send(Err(LoadError::Unavailable(RESTARTING)));
        }
    }

    /// Fails the requests whose adapters a new group could not load, and takes the names of the
    /// adapters away.
    pub(super) fn lose_adapters(&mut self, lost: Vec<LostAdapter>) {
        for LostAdapter { id, reason } in lost {
            let name = self.config.adapters.held(id).map_or_else(String::new, |one| one.info.name.clone());
            self.adapters.remove(id);
            let with_it = self.requests.iter().filter(|(_, one)| one.permit.adapter() == Some(id));
            let failed: Vec<SeqId> = with_it.map(|(&sequence, _)| sequence).collect();
            for sequence in failed {
                let reason = format!("The adapter {name} could not be loaded again: {reason}");
                self.fail(sequence, GenerationFailure::Broken(reason));
            }
            self.config.adapters.lose(id);
            tracing::error!(
                "the adapter {name:?} is unloaded, because the new shards cannot load it: {reason}"
            );
        }
        self.shards.keep_adapters(&self.adapters.loaded);
        for id in std::mem::take(&mut self.adapters.freed_during_start) {
            self.unload(id);
        }
    }

    fn unload(&mut self, AdapterId(adapter): AdapterId) {
        self.shards.send_message(to_shard::Message::UnloadAdapter(UnloadAdapter { adapter }));
    }
}
