//! `millrace shard`: one rank, started by a router.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use millrace_shard::{Address, Device, KeptPool, ShardOptions, families};

use crate::cli::{LoadFormat, ShardArgs};
use crate::{logging, model, nodes};

/// How long a shard waits for the memory of the one that it replaces. The kernel frees a large process in seconds.
const MEMORY_COMES_BACK_WITHIN: Duration = Duration::from_secs(10);

/// Computes steps until the router ends.
pub(crate) fn run(args: ShardArgs) -> Result<()> {
    let ShardArgs { connect, rank, world_size, host_ranks, wire, json_output, model, engine, .. } = args;
    let kept_pool = args.kept_pool_tokens.zip(args.kept_sequence_tokens);
    let address = address(&connect)?;
    let is_remote = matches!(address, Address::Tcp(_));
    match is_remote {
        true => logging::start("info", json_output),
        false => logging::catch_panics(),
    }
    let options = ShardOptions {
        address,
        secret: is_remote.then(nodes::secret_of_environment).transpose()?.flatten(),
        device: engine.device(),
        rank,
        world_size,
        host_ranks: host_ranks.unwrap_or(world_size),
        wire,
        all_reduce: engine.all_reduce(),
        ranks_per_card: engine.ranks_per_card as usize,
        collective_timeout: Duration::from_secs_f64(engine.collective_timeout),
        dtype: model.dtype.map(Into::into),
        kv_cache_dtype: model.kv_cache_dtype.map(Into::into),
        quantize: model.quantize.map(Into::into),
        max_total_tokens: engine.max_total_tokens.map(|n| n as usize),
        max_batch_total_tokens: engine.max_batch_total_tokens.map(|n| n as usize),
        kept_pool: kept_pool.map(|(tokens, longest)| KeptPool {
            tokens,
            longest,
            wait: MEMORY_COMES_BACK_WITHIN,
        }),
        memory_fraction: engine.cuda_memory_fraction,
        max_step_tokens: engine.max_step_tokens() as usize,
        max_sequences: engine.max_batch_size as usize,
        block_size: 16,
        graph_sizes: engine.cuda_graphs,
        batch_invariant: engine.batch_invariant,
        threads: engine.cpus_per_shard,
        lifeline: true,
    };
    let source = match model::source(&model) {
        // In the form of this machine's log.
        Err(error) if is_remote => {
            tracing::error!("rank {rank}: {error:#}");
            logging::exit(1)
        }
        found => found?,
    };
    let overrides = model.overrides();
    let open = || {
        if let Some(kept) = &args.kept_checkpoint {
            source.check_unchanged(kept)?;
        }
        match (options.device, model.load_format) {
            // Without anything that computes, the configuration is enough.
            (Device::Null(_), _) | (_, LoadFormat::Dummy) => families::load_dummy(&source, &overrides),
            (_, LoadFormat::Auto) => families::load(&source, &overrides),
        }
    };
    match millrace_shard::run(&options, open) {
        Ok(()) => Ok(()),
        Err(error) => {
            // The router is told of every error and reports it; saying it here too would only double it, except where the
            // router's log is on another machine, or the router does not listen.
            if is_remote {
                tracing::error!("rank {rank}: {error}");
            }
            logging::exit(1)
        }
    }
}

fn address(text: &str) -> Result<Address> {
    match text.split_once(':') {
        Some(("unix", path)) => Ok(Address::Unix(PathBuf::from(path))),
        Some(("tcp", address)) => Ok(Address::Tcp(address.to_owned())),
        _ => bail!("--connect {text}: give unix:PATH or tcp:HOST:PORT"),
    }
}
