//! `millrace download`: downloads a model into the Hugging Face cache.

use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::cli::DownloadArgs;
use crate::hub::FetchedModel;
use crate::logging;
use crate::model::{WantedModel, download_weights};

/// Downloads what is missing, and prints the folder of the snapshot.
pub(crate) fn run(args: &DownloadArgs) -> Result<()> {
    logging::start("info", args.json_output);
    let name = &args.name;
    if name == "demo" {
        bail!("the demo model is a part of this program; there is nothing to download");
    }
    if Path::new(name).exists() {
        bail!("{name} is on this machine; give the name of a repository on the hub, `org/name`");
    }
    let wanted = WantedModel {
        name,
        revision: &args.revision,
        hub_cache: args.huggingface_hub_cache.as_ref(),
        needs_weights: true,
    };
    let Some(FetchedModel { folder, weights }) = wanted.fetch().with_context(|| name.clone())? else {
        bail!("{name} is not the name of a repository on the hub, `org/name`");
    };
    if let Some(weights) = weights {
        download_weights(weights, args.json_output).with_context(|| name.clone())?;
    }
    let mut out = std::io::stdout();
    writeln!(out, "{}", folder.display()).context("standard output")
}
