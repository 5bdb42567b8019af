//! Flags of `millrace bench`.

use clap::Args;
use clap::builder::RangedU64ValueParser;

use super::{DeviceArg, ModelArgs, OneAdapterArgs};

/// `millrace bench`.
#[derive(Debug, Clone, Args)]
pub(crate) struct BenchArgs {
    /// Same as --model-id, and takes precedence over it
    #[arg(value_name = "MODEL")]
    pub(crate) named_model: Option<String>,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) adapter: OneAdapterArgs,
    /// Device to measure
    #[arg(long, default_value = "cpu")]
    pub(crate) device: DeviceArg,
    /// Compute threads on the CPU. If absent, one per core
    #[arg(long, visible_alias = "cpus-per-shard", value_name = "N", value_parser = at_least_one(4096))]
    pub(crate) threads: Option<usize>,
    /// Tokens of each prompt
    #[arg(long, short, default_value_t = 512, value_name = "N", value_parser = at_least_one(1 << 24))]
    pub(crate) prompt: usize,
    /// Decode steps after the prompts; each generates one token per sequence
    #[arg(long, short = 'n', default_value_t = 32, value_name = "N", value_parser = at_least_one(1 << 24))]
    pub(crate) generate: usize,
    /// Sequences that are prefilled and decoded together; several numbers are measured in turns
    #[arg(long, short, value_delimiter = ',', default_values_t = [1, 8, 16], value_name = "N,N,…",
          value_parser = at_least_one(1 << 16))]
    pub(crate) batch: Vec<usize>,
    /// Runs of each batch size, whose medians are reported
    #[arg(long, short, default_value_t = 3, value_name = "N", value_parser = at_least_one(1000))]
    pub(crate) repeat: usize,
    /// Limit of the prompt tokens in a step. If absent, 2048 on a GPU and 512 on the CPU
    #[arg(long, value_name = "N", value_parser = at_least_one(1 << 20))]
    pub(crate) max_batch_prefill_tokens: Option<usize>,
    /// Print one JSON object per batch size instead of the table
    #[arg(long)]
    pub(crate) json: bool,
}

/// Parses a number from 1 to `most`.
fn at_least_one(most: u64) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=most)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    fn parsed(flags: &[&str]) -> Result<BenchArgs, String> {
        let cli = Cli::try_parse_from([&["millrace", "bench"][..], flags].concat());
        match cli.map_err(|error| error.to_string())?.command {
            Command::Bench(args) => Ok(*args),
            _ => Err("not bench".to_owned()),
        }
    }

    #[test]
    fn batch_sizes_keep_their_order() {
        let args = parsed(&["--batch", "16,1,8", "--prompt", "7", "--threads", "2", "--json"]).unwrap();
        assert_eq!((args.batch, args.prompt, args.threads, args.json), (vec![16, 1, 8], 7, Some(2), true));
        assert_eq!(parsed(&[]).unwrap().batch, [1, 8, 16]);
    }

    #[test]
    fn numbers_out_of_range_are_refused_with_their_flag() {
        for flags in [
            ["--batch", "0"],
            ["--batch", "1,,2"],
            ["--batch", "65537"],
            ["--prompt", "0"],
            ["--generate", "0"],
            ["--repeat", "0"],
            ["--threads", "0"],
            ["--device", "tpu"],
        ] {
            let error = parsed(&flags).unwrap_err();
            assert!(error.contains(flags[0]), "{flags:?}: {error}");
        }
    }
}
