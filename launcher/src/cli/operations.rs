//! Flags of the commands that run no model.

use std::path::PathBuf;

use clap::Args;
use clap_complete::Shell;

use super::seconds;

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

/// `millrace health`.
#[derive(Debug, Clone, Args)]
pub(crate) struct HealthArgs {
    /// URL to ask, such as http://127.0.0.1:3000/ready. If absent, /ready on the port that the
    /// server's variables and MILLRACE_CONFIG give, and in a container also its arguments
    #[arg(long, value_name = "URL")]
    pub(crate) url: Option<String>,
    /// Seconds after which a server that does not answer counts as unhealthy
    #[arg(long, default_value_t = 4.0, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) timeout: f64,
}

/// `millrace restart-groups`.
#[derive(Debug, Clone, Args)]
pub(crate) struct RestartGroupsArgs {
    /// URL of the server, such as http://127.0.0.1:3000
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:3000")]
    pub(crate) url: String,
    /// The server's --admin-key
    #[arg(long, env = "ADMIN_KEY", hide_env_values = true, value_name = "KEY")]
    pub(crate) admin_key: String,
    /// Seconds to wait until all groups are ready again. The server goes on if it takes longer
    #[arg(long, default_value_t = 3600.0, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) timeout: f64,
}

/// `millrace completions`.
#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// The shell
    pub(crate) shell: Shell,
}

/// `millrace man`.
#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// Folder that the pages are written into
    pub(crate) folder: PathBuf,
}
