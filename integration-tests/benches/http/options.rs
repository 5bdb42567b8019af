//! The command line of the benchmark.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};

/// Benchmark of the whole server over loopback
#[derive(Debug, Parser)]
#[command(name = "http")]
pub(crate) struct BenchOptions {
    /// Table to measure; all if absent
    #[arg(long)]
    pub(crate) table: Option<Table>,
    /// Name of the model, `demo` or `llama-1.1b`; all if absent
    #[arg(long)]
    pub(crate) model: Option<String>,
    /// Second binary: the tables of gaps and prompts measure both in turns, and their ratio
    #[arg(long, env = "MILLRACE_BENCH_AGAINST", value_name = "PATH")]
    pub(crate) against: Option<PathBuf>,
    /// Numbers of clients in the table of gaps
    #[arg(long, value_delimiter = ',', default_value = "1,4,16,32", value_parser = clap::value_parser!(u16).range(1..=128))]
    pub(crate) clients: Vec<u16>,
    /// Long prompts in the table of gaps; both if absent
    #[arg(long)]
    pub(crate) prompts: Option<LongPrompts>,
    /// Duration of each run in the table of gaps, in seconds
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u64).range(1..=600))]
    pub(crate) seconds: u64,
    /// Runs of each binary for each row of the tables of gaps and prompts
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=20))]
    pub(crate) turns: u16,
    /// Argument that Cargo adds
    #[arg(long, hide = true)]
    bench: bool,
}

/// The tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Table {
    /// Tokens per second, prefill, start-up time and memory.
    Throughput,
    /// Gaps between the tokens of streams.
    Gaps,
    /// Prompts without streams.
    Prompts,
}

/// The presence of long prompts beside the streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LongPrompts {
    /// Only streams with short prompts.
    Without,
    /// A prompt of 4,000 tokens every two seconds on average.
    With,
}
