//! Flags of `millrace restart-groups`.

use clap::Args;

use super::seconds;

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
