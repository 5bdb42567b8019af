//! Flags of `millrace bench-http`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::seconds;

/// `millrace bench-http`.
#[derive(Debug, Clone, Args)]
pub(crate) struct BenchHttpArgs {
    /// URL of the server, without a path
    #[arg(long, default_value = "http://127.0.0.1:3000", value_name = "URL")]
    pub(crate) url: String,
    /// Route of OpenAI's API to send requests to
    #[arg(long, default_value = "completions")]
    pub(crate) route: BenchRoute,
    /// Name of the model; the first that the server lists if absent
    #[arg(long, value_name = "NAME")]
    pub(crate) model: Option<String>,
    /// API key, sent as `Authorization: Bearer KEY`
    #[arg(long, env = "OPENAI_API_KEY", hide_env_values = true, value_name = "KEY")]
    pub(crate) api_key: Option<String>,
    /// Concurrent requests; several numbers are measured one after the other
    #[arg(long, short, value_delimiter = ',', default_values_t = [1, 8, 32], value_name = "N,N,…",
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) concurrency: Vec<u32>,
    /// Start N requests per second at random times (Poisson), instead of a constant number of
    /// concurrent requests
    #[arg(long, value_name = "N", conflicts_with = "concurrency", value_parser = rate)]
    pub(crate) rate: Option<f64>,
    /// Open requests at most with --rate; those whose time has come wait
    #[arg(long, default_value_t = 10_000, requires = "rate", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) max_concurrency: u32,
    /// Start requests for this time instead of a number of requests. Those that still run at its
    /// end are cut, and their tokens so far count
    #[arg(long, value_name = "SECONDS", conflicts_with = "requests", value_parser = seconds)]
    pub(crate) duration: Option<f64>,
    /// Requests for each measurement; four times the concurrency if absent
    #[arg(long, short = 'n', value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) requests: Option<u32>,
    /// Requests before the first measurement, which are not counted
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub(crate) warmup: u32,
    /// Words in each prompt; no two prompts have the same prefix
    #[arg(long, default_value_t = 128, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) prompt_words: u32,
    /// File with one prompt per line, used in turn, instead of random prompts
    #[arg(long, value_name = "PATH", conflicts_with = "prompt_words")]
    pub(crate) prompts: Option<PathBuf>,
    /// Limit of the tokens of each answer
    #[arg(long, default_value_t = 128, value_name = "N")]
    pub(crate) max_tokens: u32,
    /// Sampling temperature; 0 is greedy
    #[arg(long, default_value_t = 0.0)]
    pub(crate) temperature: f32,
    /// Additional fields of each request, as a JSON object such as {"ignore_eos": true}
    #[arg(long, value_name = "JSON", value_parser = object)]
    pub(crate) extra: Option<serde_json::Map<String, serde_json::Value>>,
    /// Seconds after which a request counts as failed
    #[arg(long, default_value_t = 300.0, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) timeout: f64,
    /// Seed of the random prompts and times
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub(crate) seed: u64,
    /// Write all figures to this file as JSON; - writes them to standard output instead of the
    /// table
    #[arg(long, value_name = "PATH")]
    pub(crate) json: Option<PathBuf>,
}

/// OpenAI's routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum BenchRoute {
    /// `/v1/completions`.
    Completions,
    /// `/v1/chat/completions`.
    Chat,
}

fn rate(text: &str) -> Result<f64, String> {
    let rate: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if rate > 0.0 && rate <= 1e5 { Ok(rate) } else { Err("must be above 0, and at most 100000".into()) }
}

fn object(text: &str) -> Result<serde_json::Map<String, serde_json::Value>, String> {
    serde_json::from_str(text).map_err(|error| format!("not a JSON object: {error}"))
}
