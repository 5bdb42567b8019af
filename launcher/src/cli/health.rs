//! Flags of `millrace health`.

use clap::Args;

use super::seconds;

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
