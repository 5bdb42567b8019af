//! The message that starts a shard process.
//!
//! The options of a shard travel as one JSON text, the value of `--options` of `millrace shard`.
//! They contain no secrets, because every user of the machine can read the arguments of a process.
//! What differs between the ranks (rank, address) is not part of the message: the engine passes it
//! as arguments of its own.

use std::ffi::OsString;
use std::time::Duration;

use anyhow::{Context, Result};
use millrace_shard::{AdapterOptions, DiskCacheOptions, Replica, ShardOptions};
use serde::{Deserialize, Serialize};

use crate::cli::{ActivationsArg, EngineArgs, ModelArgs};
use crate::nodes::LocalRanks;

/// Number of tokens per block of the KV cache.
pub(crate) const BLOCK_SIZE: usize = 16;

/// The message that starts a shard process.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ShardMessage {
    /// The place of the model's files.
    pub(crate) model: ModelArgs,
    /// The draft model, if there is one.
    pub(crate) draft_model: Option<String>,
    /// Whether the model's own head guesses.
    pub(crate) mtp: bool,
    /// The options that all ranks of this machine share.
    pub(crate) options: ShardOptions,
    /// Whether the shard logs as JSON. Only shards of a machine without a router log by themselves.
    pub(crate) json_output: bool,
}

impl ShardMessage {
    /// Creates the message for the ranks of this machine.
    pub(crate) fn new(
        model: &ModelArgs,
        engine: &EngineArgs,
        adapters: &AdapterOptions,
        ranks: LocalRanks,
        json_output: bool,
    ) -> Self {
        let options = ShardOptions {
            device: engine.device(),
            host_ranks: ranks.count,
            replica: Replica::default(),
            transport: ranks.transport,
            all_reduce: engine.all_reduce(),
            ranks_per_gpu: engine.ranks_per_gpu as usize,
            collective_timeout: Duration::from_secs_f64(engine.collective_timeout),
            dtype: model.dtype(),
            quantize: model.quantize,
            dense_head: model.dense_head,
            exact_activations: model.activations == ActivationsArg::Exact,
            weight_cache: model.weight_cache(),
            disk_cache: None,
            kv_cache_dtype: model.kv_format(),
            max_total_tokens: engine.max_total_tokens.map(|n| n as usize),
            max_batch_total_tokens: engine.max_batch_total_tokens.map(|n| n as usize),
            memory_fraction: engine.cuda_memory_fraction,
            gpu_memory: engine.gpu_memory,
            host_cache_bytes: engine.kv_host_memory.map(|bytes| bytes as u64 / engine.replicas() as u64),
            pipeline: engine.is_pipeline(),
            max_step_tokens: engine.max_step_tokens() as usize,
            max_sequences: engine.max_sequences() as usize,
            block_size: BLOCK_SIZE,
            state_checkpoints: engine.state_checkpoints(),
            max_drafts: engine.max_drafts(),
            adapters: adapters.clone(),
            graph_sizes: engine.cuda_graphs.clone(),
            batch_invariant: engine.batch_invariant,
            threads: engine.cpus_per_shard,
        };
        let draft_model = engine.draft_model().map(|named| named.name);
        ShardMessage { model: model.clone(), draft_model, mtp: engine.uses_mtp(), options, json_output }
    }

    /// Has the shards use a disk cache, if there is to be one.
    #[must_use]
    pub(crate) fn with_disk_cache(mut self, disk_cache: Option<&DiskCacheOptions>) -> Self {
        self.options.disk_cache = disk_cache.cloned();
        self
    }

    /// The message for one of several groups of shards.
    #[must_use]
    pub(crate) fn of_replica(mut self, replica: Replica) -> Self {
        self.options.replica = replica;
        self
    }

    /// Returns the arguments of this program that start a shard with these options.
    ///
    /// # Errors
    /// If a path is not valid UTF-8.
    pub(crate) fn arguments(&self) -> Result<Vec<OsString>> {
        let text = serde_json::to_string(self).context("the options of the shards")?;
        Ok(vec!["shard".into(), format!("--options={text}").into()])
    }

    /// Parses the value of `--options`.
    ///
    /// # Errors
    /// If another version of the program has written it.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        serde_json::from_str(text)
            .context("--options: not the message of this version; start shards only through `millrace serve`")
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use millrace_shard::collective::Transport;

    use super::*;
    use crate::cli::{Cli, Command};

    fn message(flags: &[&str]) -> ShardMessage {
        let cli = Cli::parse_from([&["millrace", "serve"][..], flags].concat());
        let Command::Serve(args) = cli.command else { panic!("not serve") };
        let ranks = LocalRanks { count: 2, transport: Transport::Shm };
        let adapters =
            AdapterOptions { folders: vec!["/adapters/a b".into()], places: 2, max_loaded: 2, max_rank: 16 };
        ShardMessage::new(&args.model, &args.engine, &adapters, ranks, true)
    }

    #[test]
    fn a_message_survives_the_command_line() {
        let flags = [
            "--model-id=org/a model",
            "--revision=v2",
            "--huggingface-hub-cache=/cache",
            "--load-format=dummy",
            "--device=null",
            "--null-step-micros=150",
            "--null-token-nanos=2500",
            "--null-key-nanos=3",
            "--null-step-log=/tmp/the steps",
            "--dtype=bfloat16",
            "--quantize=fp8",
            "--dense-head",
            "--activations=exact",
            "--packed-weights-cache=/a cache",
            "--map-packed-weights",
            "--rope-scaling=linear",
            "--rope-factor=2.5",
            "--cuda-graphs=1,8",
            "--max-total-tokens=4096",
            "--cuda-memory-fraction=0.85",
            "--gpu-memory=20G",
            "--pipeline-parallel=2",
            "--batch-invariant",
            "--speculate=3",
            "--draft-model=/models/small",
        ];
        let with_head = [r#"--speculative-config={"method": "mtp"}"#];
        for flags in [&flags[..], &with_head, &[]] {
            let message = message(flags);
            let arguments = message.arguments().unwrap();
            let cli = Cli::parse_from(
                [&["millrace".into()][..], &arguments, &["--connect=unix:x".into()]].concat(),
            );
            let Command::Shard(args) = cli.command else { panic!("not shard") };
            let parsed = ShardMessage::parse(&args.options).unwrap();
            assert_eq!(parsed.options, message.options);
            assert_eq!(parsed.draft_model, message.draft_model);
            assert_eq!(parsed.mtp, message.mtp);
            assert_eq!(parsed.json_output, message.json_output);
            assert_eq!(parsed.model.overrides(), message.model.overrides());
            let place = |model: &ModelArgs| {
                (
                    model.model_id.clone(),
                    model.revision.clone(),
                    model.hub_cache().cloned(),
                    model.load_format,
                )
            };
            assert_eq!(place(&parsed.model), place(&message.model));
        }
    }

    #[test]
    fn a_message_of_another_version_is_refused() {
        let error = format!("{:#}", ShardMessage::parse("{}").unwrap_err());
        assert!(error.contains("start shards only through `millrace serve`"), "{error}");
        assert!(error.contains("missing field"), "{error}");
    }
}
