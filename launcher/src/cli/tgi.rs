//! Flags of text-generation-inference that have no meaning here.
//!
//! They are accepted so that TGI's deployment files work: each is either ignored with a warning, or
//! refused with the reason.

use anyhow::{Result, bail};
use clap::Args;

/// Flags of TGI. They are hidden in the help.
#[derive(Debug, Args)]
pub(crate) struct TgiArgs {
    #[arg(long, env = "SHARDED", hide = true, value_parser = clap::builder::BoolishValueParser::new(), num_args = 0..=1,
          default_missing_value = "true", action = clap::ArgAction::Set)]
    sharded: Option<bool>,
    #[arg(long, env = "WAITING_SERVED_RATIO", hide = true)]
    waiting_served_ratio: Option<f32>,
    #[arg(long, env = "MAX_WAITING_TOKENS", hide = true)]
    max_waiting_tokens: Option<usize>,
    #[arg(long, env = "PROMETHEUS_PORT", hide = true)]
    prometheus_port: Option<u16>,
    #[arg(long, env = "SHARD_UDS_PATH", hide = true)]
    shard_uds_path: Option<String>,
    #[arg(long, env = "MASTER_ADDR", hide = true)]
    master_addr: Option<String>,
    #[arg(long, env = "MASTER_PORT", hide = true)]
    master_port: Option<u16>,
    #[arg(long, env = "DISABLE_CUSTOM_KERNELS", hide = true)]
    disable_custom_kernels: bool,
    #[arg(long, env = "ENABLE_PREFILL_LOGPROBS", hide = true)]
    enable_prefill_logprobs: bool,
    #[arg(long, env = "TRUST_REMOTE_CODE", hide = true)]
    trust_remote_code: bool,
    #[arg(long, env = "MAX_IMAGE_FETCH_SIZE", hide = true)]
    max_image_fetch_size: Option<usize>,
    #[arg(long, env = "USAGE_STATS", hide = true)]
    usage_stats: Option<String>,
    #[arg(long, env = "ATTENTION", hide = true)]
    attention: Option<String>,
    #[arg(long, env = "NGROK", hide = true, value_parser = clap::builder::BoolishValueParser::new(), num_args = 0..=1,
          default_missing_value = "true", action = clap::ArgAction::Set)]
    ngrok: Option<bool>,
    #[arg(long, env = "NGROK_AUTHTOKEN", hide = true, hide_env_values = true)]
    ngrok_authtoken: Option<String>,
    #[arg(long, env = "NGROK_EDGE", hide = true)]
    ngrok_edge: Option<String>,
}

impl TgiArgs {
    /// Returns the number of shards that `--sharded` implies.
    pub(crate) fn num_shard(&self) -> Option<u32> {
        (self.sharded == Some(false)).then_some(1)
    }

    /// Refuses flags that would change answers or memory. Returns a warning for each flag without
    /// effect.
    ///
    /// # Errors
    /// The error names the flag and the alternative.
    pub(crate) fn check(&self, num_shard: usize) -> Result<Vec<String>> {
        match self.sharded {
            Some(true) if num_shard < 2 => {
                bail!("--sharded true: give the number of processes that share the model with --num-shard")
            }
            Some(false) if num_shard > 1 => {
                bail!("--sharded false and --num-shard {num_shard} contradict each other")
            }
            _ => {}
        }
        let chunks = "prompts are computed in chunks beside running requests";
        let tunnels = "no tunnels are made; publish the port in another way";
        let idle = [
            ("--attention", self.attention.is_some(), "there is one implementation for each device"),
            ("--ngrok", self.ngrok == Some(true), tunnels),
            ("--ngrok-authtoken", self.ngrok_authtoken.is_some(), tunnels),
            ("--ngrok-edge", self.ngrok_edge.is_some(), tunnels),
            ("--waiting-served-ratio", self.waiting_served_ratio.is_some(), chunks),
            ("--max-waiting-tokens", self.max_waiting_tokens.is_some(), chunks),
            ("--prometheus-port", self.prometheus_port.is_some(), "/metrics is on the port of the API"),
            ("--shard-uds-path", self.shard_uds_path.is_some(), "sockets are in a private folder"),
            (
                "--master-addr",
                self.master_addr.is_some(),
                "--leader-address names the first of several machines",
            ),
            (
                "--master-port",
                self.master_port.is_some(),
                "--leader-address names the first of several machines",
            ),
            ("--disable-custom-kernels", self.disable_custom_kernels, "there are no other kernels"),
            (
                "--enable-prefill-logprobs",
                self.enable_prefill_logprobs,
                "each request says whether it wants them",
            ),
            ("--trust-remote-code", self.trust_remote_code, "code of a model is never run"),
            ("--max-image-fetch-size", self.max_image_fetch_size.is_some(), "images are never fetched"),
            ("--usage-stats", self.usage_stats.is_some(), "no usage statistics are ever sent"),
        ];
        let given = idle.iter().filter(|(_, given, _)| *given);
        Ok(given.map(|(flag, _, why)| format!("{flag} has no effect: {why}")).collect())
    }
}
