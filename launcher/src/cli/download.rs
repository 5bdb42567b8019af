//! Flags of `millrace download`.

use std::path::PathBuf;

use clap::Args;

/// `millrace download`.
#[derive(Debug, Args)]
pub(crate) struct DownloadArgs {
    /// Repository on the Hugging Face hub, `org/name`
    #[arg(value_name = "NAME", env = "MODEL_ID")]
    pub(crate) name: String,
    /// Branch, tag or commit of the repository, or a reference such as refs/pr/1
    #[arg(long, env = "REVISION", default_value = "main")]
    pub(crate) revision: String,
    /// Folder of the local Hugging Face cache; if absent, HUGGINGFACE_HUB_CACHE, HF_HUB_CACHE or
    /// HF_HOME
    #[arg(long, visible_alias = "weights-cache-override", value_name = "FOLDER")]
    pub(crate) huggingface_hub_cache: Option<PathBuf>,
    /// Write the log as JSON, one object per line, and no progress bar
    #[arg(long, env = "JSON_OUTPUT", value_parser = clap::builder::BoolishValueParser::new())]
    pub(crate) json_output: bool,
}
