//! `millrace shard`: one rank of a model, started by a router.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use millrace_model::adapters::Adapter;
use millrace_model::families::{self, Overrides};
use millrace_shard::{DeviceKind, OpenAdapter, OpenedModel, PreviousPool, RankPlacement, RouterAddress};

use crate::cli::{LoadFormat, ModelArgs, ShardArgs};
use crate::shard_message::ShardMessage;
use crate::{logging, model, nodes};

/// How long a shard waits for the memory of the one that it replaces. The kernel frees a large
/// process in seconds.
const MEMORY_WAIT: Duration = Duration::from_secs(10);

/// Computes steps until the router ends.
pub(crate) fn run(args: ShardArgs) -> Result<()> {
    let ShardArgs { connect, rank, world_size, .. } = args;
    let ShardMessage { model, draft_model, mtp, options, json_output } = ShardMessage::parse(&args.options)?;
    let address = address(&connect)?;
    let is_remote = matches!(address, RouterAddress::Tcp(_));
    match is_remote {
        true => logging::start("info", json_output),
        false => logging::start_in_shard(json_output),
    }
    let previous_pool = args.kept_pool_tokens.zip(args.kept_sequence_tokens);
    let placement = RankPlacement {
        address,
        secret: is_remote.then(nodes::secret_of_environment).transpose()?.flatten(),
        rank,
        world_size,
        previous_pool: previous_pool.map(|(tokens, longest_sequence)| PreviousPool {
            tokens,
            longest_sequence,
            wait: MEMORY_WAIT,
        }),
        lifeline: true,
    };
    let source = match model::source(&model) {
        // The error goes to the log of this machine, in the form of the log.
        Err(error) if is_remote => {
            tracing::error!("rank {rank}: {error:#}");
            logging::exit(1)
        }
        found => found?,
    };
    let draft_source = draft_model.map(|path| model::source(&ModelArgs { model_id: path, ..model.clone() }));
    let draft_source = draft_source.transpose()?;
    let (overrides, load_format) = (model.overrides(), model.load_format);
    let open = || {
        if let Some(kept) = &args.kept_checkpoint {
            source.check_unchanged(kept)?;
        }
        let model = match (&options.device, load_format) {
            // Without a device, the configuration is all that is needed.
            (DeviceKind::Null(_), _) => return Ok(families::load_dummy(&source, &overrides)?.into()),
            (_, LoadFormat::Dummy) => families::load_dummy(&source, &overrides)?,
            (_, LoadFormat::Auto) => families::load(&source, &overrides)?,
        };
        let open: OpenAdapter = Arc::new({
            let source = source.clone();
            move |folder| Adapter::open(&source, &overrides, folder)
        });
        // The flags that change the configuration are about the model.
        let draft_model = draft_source.map(|source| match load_format {
            LoadFormat::Dummy => families::load_dummy(&source, &Overrides::default()),
            LoadFormat::Auto => families::load(&source, &Overrides::default()),
        });
        let draft_model = draft_model.transpose()?;
        let draft_model = match (mtp, load_format) {
            (false, _) => draft_model,
            (true, LoadFormat::Dummy) => Some(families::load_dummy_mtp(&source, &overrides)?),
            (true, LoadFormat::Auto) => Some(families::load_mtp(&source, &overrides)?),
        };
        Ok(OpenedModel { model, open_adapter: Some(open), draft_model })
    };
    match millrace_shard::run(&placement, &options, Box::new(open)) {
        Ok(()) => Ok(()),
        Err(error) => {
            // The router has been told of the error, and logs it. The shard logs it only if the
            // router's log is on another machine.
            if is_remote {
                tracing::error!("rank {rank}: {error}");
            }
            logging::exit(1)
        }
    }
}

fn address(text: &str) -> Result<RouterAddress> {
    match text.split_once(':') {
        Some(("unix", path)) => Ok(RouterAddress::Unix(PathBuf::from(path))),
        Some(("tcp", address)) => Ok(RouterAddress::Tcp(address.to_owned())),
        _ => bail!("--connect {text}: give unix:PATH or tcp:HOST:PORT"),
    }
}
