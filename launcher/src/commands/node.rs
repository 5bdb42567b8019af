//! `millrace serve` on a machine that is not the leader: it runs shards and no HTTP server.

use anyhow::{Context, Result};
use millrace_router::engine::{ShardCommand, node};
use millrace_router::serve::shutdown_signal;
use millrace_shard::AdapterOptions;
use millrace_shard::collective::Transport;

use crate::cli::{EngineArgs, ModelArgs, own_executable};
use crate::nodes::{GROUP_SECRET, LocalRanks, WorkerNode};
use crate::shard_message::ShardMessage;
use crate::stack::shard_environment;

/// Runs the shards of this machine until a signal asks it to stop.
pub(crate) fn run(
    worker: &WorkerNode,
    model: &ModelArgs,
    engine: &EngineArgs,
    adapters: &AdapterOptions,
    json_output: bool,
) -> Result<()> {
    let WorkerNode { node, secret } = worker;
    let ranks = LocalRanks { count: node.ranks.len(), transport: Transport::Shm };
    let args = ShardMessage::new(model, engine, adapters, ranks, json_output).arguments()?;
    // The secret is not an argument, because every user of the machine can read arguments.
    let mut env = shard_environment(engine);
    env.insert(GROUP_SECRET.into(), secret.into());
    let command = ShardCommand { program: own_executable()?, args, env };
    tokio::runtime::Runtime::new()?.block_on(async {
        let asked = shutdown_signal().context("cannot wait for SIGTERM")?;
        let (first, last) = (node.ranks.start, node.ranks.end - 1);
        tracing::info!(
            "running ranks {first} to {last} of {} for the leader at {}",
            node.world_size,
            node.leader
        );
        node::run(node, &command, asked).await?;
        tracing::info!("the ranks of this machine have ended");
        Ok(())
    })
}
