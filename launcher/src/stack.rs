//! What serves a model: its text side in this process, and an engine with a shard process behind it.

use std::collections::HashMap;
use std::ffi::OsString;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use millrace_router::assets::Assets;
use millrace_router::engine::{self, Bounds, Engine, EngineConfig, ShardCommand, State};
use millrace_router::grammar::WorkerCommand;
use millrace_router::service::{Limits, ModelInfo, Service};
use tokio::task::JoinHandle;

use crate::cli::{EngineArgs, LoadFormat, ModelArgs, own_executable};
use crate::model::{Location, locate};
use crate::nodes::Leader;
use crate::{demo, progress};

/// How requests wait and end; the default is for a single one.
#[derive(Debug, Default)]
pub(crate) struct Serving {
    /// Requests that wait at most.
    pub(crate) max_queue_requests: Option<usize>,
    /// Prompt tokens of requests that wait at most.
    pub(crate) max_queue_tokens: Option<usize>,
    /// How long a request may wait.
    pub(crate) queue_timeout: Option<Duration>,
    /// How long running requests may take to end once the server is asked to.
    pub(crate) drain_timeout: Duration,
}

/// A service and the engine behind it.
pub(crate) struct Stack {
    /// Text in, text out.
    pub(crate) service: Service,
    /// The engine's task; it ends when the shards have ended.
    pub(crate) engine_task: JoinHandle<()>,
}

impl Stack {
    /// Starts the shards and the engine; the model loads in the background. A `leader` waits for other machines.
    ///
    /// # Errors
    /// If the model's files for the text side are not there or broken.
    pub(crate) fn start(
        model: &ModelArgs,
        engine: &EngineArgs,
        limits: Limits,
        serving: Serving,
        leader: Option<Leader>,
    ) -> Result<Stack> {
        let location = locate(model)?;
        let mut assets = assets(&location, model.load_format)?;
        if let Some(path) = &model.tokenizer_config_path {
            assets = assets.with_tokenizer_config(path).context("--tokenizer-config-path")?;
        }
        let program = own_executable()?;
        let worker = WorkerCommand { program: program.clone(), args: vec!["grammar-worker".into()] };
        let limits = Limits { grammar_worker: Some(worker), ..limits };
        let command = ShardCommand {
            program,
            args: [shard_flags(model, engine), leader.as_ref().map_or_else(Vec::new, Leader::shard_flags)]
                .concat(),
            env: shard_environment(engine),
        };
        let Serving { max_queue_requests, max_queue_tokens, queue_timeout, drain_timeout } = serving;
        let config = EngineConfig {
            bounds: Bounds {
                in_flight: limits.max_concurrent_requests,
                queued: max_queue_requests.unwrap_or(usize::MAX),
                queued_tokens: max_queue_tokens.unwrap_or(usize::MAX),
            },
            prefix_cache: engine.prefix_caching,
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
        let (engine, engine_task) = engine::start(config, command);
        let id = limits.model_names.first().cloned().unwrap_or_else(|| location.name(&model.model_id));
        let info = ModelInfo { id, sha: location.revision(), pipeline_tag: None };
        let service = Service::new(&assets, engine, limits, info)?;
        Ok(Stack { service, engine_task })
    }

    /// The engine.
    pub(crate) fn engine(&self) -> &Engine {
        self.service.engine()
    }

    /// Shows the loading bar and waits until requests are served.
    ///
    /// # Errors
    /// If the engine fails instead.
    pub(crate) async fn loaded(&self) -> Result<()> {
        progress::show(self.engine().state()).await;
        match &*self.engine().state().borrow() {
            State::Failed(why) => bail!("{why}"),
            _ => Ok(()),
        }
    }

    /// Ends the engine and waits for its shard.
    pub(crate) async fn stop(self) {
        self.engine().drain();
        drop(self.service);
        // The task ends in every case; if it panicked, the panic has been printed.
        let _ = self.engine_task.await;
    }
}

/// The text side's files. Dummy weights need only a `config.json`: without a tokenizer, the demo model's stands in.
fn assets(location: &Location, format: LoadFormat) -> Result<Assets> {
    match location {
        Location::Demo => Ok(Assets::from_files(demo::FILES)?),
        Location::Folder(folder)
            if format == LoadFormat::Dummy && !folder.join("tokenizer.json").exists() =>
        {
            tracing::warn!(
                "no tokenizer.json beside the dummy weights: texts are tokenised as for the demo model"
            );
            Ok(Assets::from_files(demo::FILES)?)
        }
        Location::Folder(folder) => Ok(Assets::from_dir(folder)?),
    }
}

/// The arguments of `millrace shard` that say the same as these.
pub(crate) fn shard_flags(model: &ModelArgs, engine: &EngineArgs) -> Vec<OsString> {
    let mut flags: Vec<OsString> = vec!["shard".into()];
    let mut push = |flag: &str, value: String| flags.push(format!("{flag}={value}").into());
    push("--model-id", model.model_id.clone());
    push("--revision", model.revision.clone());
    push("--load-format", name(model.load_format));
    push("--device", name(engine.device));
    push(
        "--all-reduce",
        if engine.disable_custom_all_reduce { "nccl".into() } else { name(engine.all_reduce) },
    );
    push("--ranks-per-card", engine.ranks_per_card.to_string());
    push("--collective-timeout", engine.collective_timeout.to_string());
    push("--null-step-micros", engine.null_step_micros.to_string());
    push("--max-batch-prefill-tokens", engine.max_batch_prefill_tokens.to_string());
    push("--max-batch-size", engine.max_batch_size.to_string());
    push("--cuda-memory-fraction", engine.cuda_memory_fraction.to_string());
    let optional = [
        ("--huggingface-hub-cache", model.hub_cache().map(|path| path.display().to_string())),
        ("--dtype", model.dtype.map(name)),
        ("--kv-cache-dtype", model.kv_cache_dtype.map(name)),
        ("--quantize", model.quantize.map(name)),
        ("--rope-scaling", model.rope_scaling.map(name)),
        ("--rope-factor", model.rope_factor.map(|factor| factor.to_string())),
        ("--cpus-per-shard", engine.cpus_per_shard.map(|n| n.to_string())),
        ("--max-batch-total-tokens", engine.max_batch_total_tokens.map(|n| n.to_string())),
        ("--max-total-tokens", engine.max_total_tokens.map(|n| n.to_string())),
        ("--cuda-graphs", engine.cuda_graphs.as_deref().map(list)),
    ];
    for (flag, value) in optional {
        if let Some(value) = value {
            push(flag, value);
        }
    }
    if engine.batch_invariant {
        flags.push("--batch-invariant".into());
    }
    flags
}

/// Variables that the shards get beside this process's own.
pub(crate) fn shard_environment(engine: &EngineArgs) -> HashMap<OsString, OsString> {
    // Several ranks on a card are an error to NCCL unless it is told that they are meant; 2.30 is the first version that can be.
    let shared = [("NCCL_MULTI_RANK_GPU_ENABLE", "1"), ("NCCL_MAX_CTAS", "1"), ("NCCL_NVLS_ENABLE", "0")];
    let wanted = shared.into_iter().filter(|_| engine.ranks_per_card > 1);
    let missing = wanted.filter(|(name, _)| std::env::var_os(name).is_none());
    missing.map(|(name, value)| (name.into(), value.into())).collect()
}

/// Numbers as they are given on the command line.
fn list(numbers: &[usize]) -> String {
    numbers.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
}

/// What a value is called on the command line.
fn name(value: impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}
