//! Hidden flags of `--device null`, for benchmarks and tests.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use millrace_shard::{NullCosts, NullOptions};

/// The modelled device of `--device null`.
#[derive(Debug, Clone, Args)]
pub(crate) struct NullArgs {
    /// Duration of a step on `--device null`, in microseconds
    #[arg(long, default_value_t = 0, value_name = "N", hide = true)]
    pub(crate) null_step_micros: u32,
    /// Duration that each token adds to a step on `--device null`, in nanoseconds
    #[arg(long, default_value_t = 0, value_name = "N", hide = true)]
    pub(crate) null_token_nanos: u32,
    /// Duration that each key that a token attends to adds to a step on `--device null`, in
    /// nanoseconds
    #[arg(long, default_value_t = 0, value_name = "N", hide = true)]
    pub(crate) null_key_nanos: u32,
    /// File to which `--device null` appends one line of JSON for each step
    #[arg(long, value_name = "FILE", hide = true)]
    pub(crate) null_step_log: Option<PathBuf>,
}

impl NullArgs {
    /// Returns the options of the shard.
    pub(crate) fn options(&self) -> NullOptions {
        let costs = NullCosts {
            step: Duration::from_micros(self.null_step_micros.into()),
            token: Duration::from_nanos(self.null_token_nanos.into()),
            key: Duration::from_nanos(self.null_key_nanos.into()),
        };
        NullOptions { costs, log: self.null_step_log.clone() }
    }
}
