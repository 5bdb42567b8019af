//! `millrace shard`: one rank, started by a router.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use millrace_shard::collective::Wire;
use millrace_shard::{Address, Device, ShardOptions, families};

use crate::cli::{LoadFormat, ShardArgs};
use crate::model;

/// Computes steps until the router ends.
pub(crate) fn run(args: ShardArgs) -> Result<()> {
    let ShardArgs { connect, rank, world_size, model, engine } = args;
    let options = ShardOptions {
        address: address(&connect)?,
        device: engine.device(),
        rank,
        world_size,
        host_ranks: world_size,
        wire: Wire::Shm,
        collective_timeout: Duration::from_secs_f64(engine.collective_timeout),
        dtype: model.dtype.map(Into::into),
        kv_cache_dtype: model.kv_cache_dtype.map(Into::into),
        max_total_tokens: engine.max_total_tokens.map(|n| n as usize),
        max_batch_total_tokens: engine.max_batch_total_tokens.map(|n| n as usize),
        max_step_tokens: engine.max_step_tokens() as usize,
        max_sequences: engine.max_batch_size as usize,
        block_size: 16,
        threads: engine.cpus_per_shard,
        lifeline: true,
    };
    let source = model::source(&model)?;
    let open = || match (options.device, model.load_format) {
        (Device::Cpu, LoadFormat::Auto) => families::load(&source),
        // Without anything that computes, the configuration is enough.
        (Device::Null(_), _) | (_, LoadFormat::Dummy) => families::load_dummy(&source),
    };
    // The router is told of every error and reports it; saying it here too would only double it.
    match millrace_shard::run(&options, open) {
        Ok(()) => Ok(()),
        Err(_) => std::process::exit(1),
    }
}

fn address(text: &str) -> Result<Address> {
    match text.split_once(':') {
        Some(("unix", path)) => Ok(Address::Unix(PathBuf::from(path))),
        Some(("tcp", address)) => Ok(Address::Tcp(address.to_owned())),
        _ => bail!("--connect {text}: give unix:PATH or tcp:HOST:PORT"),
    }
}
