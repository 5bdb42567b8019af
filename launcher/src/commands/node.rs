//! `millrace serve` on a machine that is not the leader: ranks, and no HTTP.

use anyhow::{Context, Result};
use millrace_router::engine::{ShardCommand, node};
use millrace_router::serve::shutdown_signal;

use crate::cli::{EngineArgs, ModelArgs, own_executable};
use crate::nodes::{GROUP_SECRET, Worker};
use crate::stack::{shard_environment, shard_flags};

/// Runs this machine's ranks until told to stop.
pub(crate) fn run(worker: &Worker, model: &ModelArgs, engine: &EngineArgs, json_output: bool) -> Result<()> {
    let Worker { node, secret } = worker;
    let mut args = shard_flags(model, engine);
    args.push(format!("--host-ranks={}", node.ranks.len()).into());
    if json_output {
        args.push("--json-output".into());
    }
    // Not an argument: those can be read by every user of the machine.
    let mut env = shard_environment(engine);
    env.insert(GROUP_SECRET.into(), secret.into());
    let command = ShardCommand { program: own_executable()?, args, env };
    tokio::runtime::Runtime::new()?.block_on(async {
        let asked = shutdown_signal().context("cannot wait for SIGTERM")?;
        let (first, last) = (node.ranks.start, node.ranks.end - 1);
        tracing::info!("ranks {first} to {last} of {} for the leader at {}", node.world_size, node.leader);
        node::run(node, &command, asked).await?;
        tracing::info!("this machine's ranks have ended");
        Ok(())
    })
}
