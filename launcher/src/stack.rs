//! The parts that serve a model: the service in this process, and the engine with its shard
//! processes.

use std::collections::HashMap;
use std::ffi::OsString;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use millrace_answers::grammar::GrammarWorkerCommand;
use millrace_router::engine::{
    self, Adapters, AdmissionBounds, Engine, EngineConfig, EngineState, Preparation, ShardCommand,
};
use millrace_router::kv_events::{KvEvents, KvEventsConfig};
use millrace_router::service::{ModelInfo, RequestLimits, Service};
use millrace_shard::Replica;
use millrace_shard::collective::Transport;
use tokio::task::JoinHandle;

use crate::adapters::ServedAdapters;
use crate::assets::assets;
use crate::cli::{EngineArgs, ModelArgs, own_executable};
use crate::disk_cache::DiskFolder;
use crate::hub::BackgroundDownload;
use crate::model::locate;
use crate::nodes::{Leader, LocalRanks};
use crate::shard_message::ShardMessage;
use crate::sizes::AskedSizes;
use crate::{draft_model, logging, progress};

/// Everything about serving that is neither the model nor the engine. The default suits a single
/// request.
#[derive(Debug, Default)]
pub(crate) struct ServingOptions {
    /// Limits of one request.
    pub(crate) limits: RequestLimits,
    /// The adapters that requests may name.
    pub(crate) adapters: ServedAdapters,
    /// The folder of the disk cache, if there is to be one.
    pub(crate) disk_cache: Option<DiskFolder>,
    /// Limit of waiting requests.
    pub(crate) max_queue_requests: Option<usize>,
    /// Limit of the prompt tokens of waiting requests.
    pub(crate) max_queue_tokens: Option<usize>,
    /// Longest time that a request may wait.
    pub(crate) queue_timeout: Option<Duration>,
    /// Where the changes of the prefix cache are published, if anywhere.
    pub(crate) kv_events: Option<KvEventsConfig>,
    /// Longest time that running requests may take to finish after the server is asked to stop.
    pub(crate) drain_timeout: Duration,
    /// The role of this machine, if other machines run shards too. The engine waits for them.
    pub(crate) leader: Option<Leader>,
    /// The download of the weights, if some are missing. The shards start after it.
    pub(crate) download: Option<BackgroundDownload>,
}

/// A service and the engine behind it.
pub(crate) struct Stack {
    /// The service: text in, text out.
    pub(crate) service: Service,
    /// The task of the engine, which ends after the shards.
    pub(crate) engine_task: JoinHandle<()>,
    /// The sizes that flags ask for.
    pub(crate) asked: AskedSizes,
    /// The folder of the disk cache. Its files may be removed once the shards have ended.
    disk_cache: Option<DiskFolder>,
}

impl Stack {
    /// Starts the shards and the engine. The model loads in the background.
    ///
    /// # Errors
    /// If the tokenizer or configuration of the model is missing or broken.
    pub(crate) fn start(model: &ModelArgs, engine: &EngineArgs, serving: ServingOptions) -> Result<Stack> {
        let ServingOptions { limits, max_queue_requests, max_queue_tokens, queue_timeout, .. } = serving;
        let ServingOptions { adapters, disk_cache, kv_events, drain_timeout, leader, download, .. } = serving;
        let asked = AskedSizes::new(engine, limits.max_input_tokens);
        let location = locate(model)?;
        let id = limits.model_names.first().cloned().unwrap_or_else(|| location.name(&model.model_id));
        let names = limits.model_names.iter().map(String::as_str);
        adapters.check_names(names.chain([id.as_str()]))?;
        let draft_model = draft_model::locate(engine, model)?;
        let mut assets = assets(&location, model.load_format)?;
        if let Some(path) = &model.tokenizer_config_path {
            assets.text = assets.text.with_tokenizer_config(path).context("--tokenizer-config-path")?;
        }
        let program = own_executable()?;
        let worker = GrammarWorkerCommand { program: program.clone(), args: vec!["grammar-worker".into()] };
        let limits = RequestLimits { grammar_worker: Some(worker), ..limits };
        let all_here = LocalRanks { count: engine.num_shard(), transport: Transport::Shm };
        let ranks = leader.as_ref().map_or(all_here, Leader::local_ranks);
        let message = ShardMessage::new(model, engine, &adapters.options, ranks, false)
            .with_disk_cache(disk_cache.as_ref().map(DiskFolder::options));
        let commands = replicas(engine).map(|replica| {
            let args = message.clone().of_replica(replica).arguments()?;
            Ok(ShardCommand { program: program.clone(), args, env: shard_environment(engine) })
        });
        let commands = commands.collect::<Result<Vec<_>>>()?;
        ensure!(
            kv_events.is_none() || engine.replicas() == 1,
            "--kv-events-config and --replicas cannot be combined; omit one of them"
        );
        ensure!(
            kv_events.is_none() || engine.prefix_caching,
            "--kv-events-config needs the prefix cache, which --prefix-caching=false turns off"
        );
        let named = Adapters::new(adapters.infos);
        let kv_events = kv_events
            .map(|config| KvEvents::start(config, &named))
            .transpose()
            .map_err(anyhow::Error::msg)?;
        let config = EngineConfig {
            bounds: AdmissionBounds {
                in_flight: limits.max_concurrent_requests,
                queued: max_queue_requests.unwrap_or(usize::MAX),
                queued_tokens: max_queue_tokens.unwrap_or(usize::MAX),
            },
            prefix_cache: engine.prefix_caching,
            kv_persist: disk_cache.as_ref().is_some_and(DiskFolder::is_kept),
            kv_events,
            adapters: named.clone(),
            schedule: engine.schedule.into(),
            drafts: engine.drafts(),
            earlier_tokens: engine.earlier_tokens(),
            always_draft: engine.speculate_always,
            target_itl: engine.target_itl(),
            queue_timeout,
            drain_timeout,
            world_size: engine.num_shard(),
            others: leader.map(Leader::others),
            step_timeout: engine.step_timeout.map(Duration::from_secs_f64),
            heartbeat_timeout: Duration::from_secs_f64(engine.heartbeat_timeout),
            max_failures: engine.max_shard_failures,
            failure_window: Duration::from_secs_f64(engine.shard_failure_window),
            ..EngineConfig::default()
        };
        let (engine, engine_task) = match download {
            Some(download) => engine::start_after(preparation(download), config, commands),
            None => engine::start(config, commands),
        };
        let info = ModelInfo { id, sha: location.revision(), pipeline_tag: None, adapters: named };
        let service = Service::new(&assets, engine, limits, info)?;
        if let Some(draft_model) = draft_model {
            draft_model::check_tokens(&draft_model, model.load_format, service.tokenizer())?;
        }
        Ok(Stack { service, engine_task, asked, disk_cache })
    }

    /// The engine.
    pub(crate) fn engine(&self) -> &Engine {
        self.service.engine()
    }

    /// Shows the progress bar and waits until the model is loaded.
    ///
    /// # Errors
    /// If the engine fails.
    pub(crate) async fn loaded(&self) -> Result<()> {
        progress::show(self.engine().state()).await;
        match &*self.engine().state().borrow() {
            EngineState::Failed(why) => bail!("{why}"),
            EngineState::Ready(ready) => {
                let differences = self.asked.differences(ready);
                differences.iter().for_each(|text| logging::say(&format!("warning: {text}")));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Stops the engine and waits for its shards.
    pub(crate) async fn stop(self) {
        self.engine().drain();
        drop(self.service);
        // An error means that the task panicked, and the panic has been logged.
        let _ = self.engine_task.await;
        drop(self.disk_cache);
    }
}

/// Returns the places of the groups of shards.
fn replicas(engine: &EngineArgs) -> impl Iterator<Item = Replica> + use<> {
    let count = engine.replicas();
    (0..count).map(move |index| Replica { index, count })
}

/// Returns the work of the engine that waits for a download.
fn preparation(download: BackgroundDownload) -> Preparation {
    let progress = download.progress.clone();
    Preparation {
        phase: "Downloading weights".to_owned(),
        progress: Box::new(move || progress.bytes()),
        work: Box::pin(download.finish()),
    }
}

/// Returns environment variables that the shards get in addition to those of this process.
pub(crate) fn shard_environment(engine: &EngineArgs) -> HashMap<OsString, OsString> {
    // NCCL refuses several ranks on a GPU unless it is configured for them. Version 2.30 is the
    // first that can be.
    let shared = [("NCCL_MULTI_RANK_GPU_ENABLE", "1"), ("NCCL_MAX_CTAS", "1"), ("NCCL_NVLS_ENABLE", "0")];
    let wanted = shared.into_iter().filter(|_| engine.ranks_per_gpu > 1);
    let missing = wanted.filter(|(name, _)| std::env::var_os(name).is_none());
    missing.map(|(name, value)| (name.into(), value.into())).collect()
}
