//! Flags of the HTTP side.

use std::net::{IpAddr, Ipv4Addr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};
use millrace_router::http::{ApiKey, HeaderValue, PlatformRoutes};
use millrace_router::serve::{Connections, Tls};

use super::seconds;
use millrace_router::service::Pooling;
use millrace_router::tools::Format;

/// TGI's.
const PORT: u16 = 3000;

/// Sampling parameters for requests that give none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum GenerationConfig {
    /// Those of the model's generation_config.json.
    Auto,
    /// Those of the API.
    #[value(alias = "vllm")]
    None,
}

/// The HTTP side.
#[derive(Debug, Args)]
#[command(next_help_heading = "HTTP")]
pub(crate) struct HttpArgs {
    /// Address or host name to listen on; 0.0.0.0 for all. The variable HOSTNAME counts only if it holds an IP address
    #[arg(long, visible_alias = "host", value_name = "ADDRESS")]
    pub(crate) hostname: Option<String>,
    /// Port to listen on; 0 for any free one. When absent, what Vertex AI says in AIP_HTTP_PORT, else 3000
    #[arg(long, short, env = "PORT")]
    pub(crate) port: Option<u16>,
    /// Requests waiting or running before new ones get status 429
    #[arg(long, env = "MAX_CONCURRENT_REQUESTS", default_value_t = 128, value_name = "N")]
    pub(crate) max_concurrent_requests: usize,
    /// Requests waiting for a place in the batch before new ones get status 429; up to --max-concurrent-requests when
    /// absent
    #[arg(long, env = "MAX_QUEUE_REQUESTS", value_name = "N")]
    pub(crate) max_queue_requests: Option<usize>,
    /// Prompt tokens of all waiting requests before new ones get status 429; any number when absent
    #[arg(long, env = "MAX_QUEUE_TOKENS", value_name = "N")]
    pub(crate) max_queue_tokens: Option<usize>,
    /// Seconds after which a request that still waits gets status 503; never when absent
    #[arg(long, env = "QUEUE_TIMEOUT", value_name = "SECONDS", value_parser = seconds)]
    pub(crate) queue_timeout: Option<f64>,
    /// Largest `best_of` and `n` of a request. When absent, `best_of` of TGI's routes is at most 2, and `n` and `best_of` of
    /// OpenAI's routes are at most 16
    #[arg(long, env = "MAX_BEST_OF", value_name = "N",
          value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..))]
    pub(crate) max_best_of: Option<usize>,
    /// Stop sequences per request
    #[arg(long, env = "MAX_STOP_SEQUENCES", default_value_t = 4, value_name = "N")]
    pub(crate) max_stop_sequences: usize,
    /// Alternatives reported per token, at most 128
    #[arg(long, env = "MAX_TOP_N_TOKENS", default_value_t = 5, value_name = "N",
          value_parser = clap::value_parser!(u32).range(..=128))]
    pub(crate) max_top_n_tokens: u32,
    /// Prompt tokens of one request; one less than the total when absent
    #[arg(long, alias = "max-input-length", env = "MAX_INPUT_TOKENS", value_name = "N")]
    pub(crate) max_input_tokens: Option<u32>,
    /// Prompts in one /v1/completions request
    #[arg(long, env = "MAX_CLIENT_BATCH_SIZE", default_value_t = 4, value_name = "N")]
    pub(crate) max_client_batch_size: usize,
    /// Largest request body in bytes
    #[arg(long, env = "PAYLOAD_LIMIT", default_value_t = 2_000_000, value_name = "BYTES")]
    pub(crate) payload_limit: usize,
    /// Bytes of a text that /tokenize, /chat_tokenize and /v1/messages/count_tokens take; as many as the longest prompt of the
    /// model can have when absent
    #[arg(long, env = "MAX_TOKENIZE_BYTES", value_name = "BYTES")]
    pub(crate) max_tokenize_bytes: Option<usize>,
    /// Turn the text of a special token in a message, such as <|im_end|>, into that token, so that clients can begin and end
    /// turns. When absent, it is text like any other
    #[arg(long, env = "PARSE_SPECIAL_IN_USER_TEXT", value_parser = clap::builder::BoolishValueParser::new())]
    pub(crate) parse_special_in_user_text: bool,
    /// Short texts, and as many long ones, tokenized at the same time
    #[arg(long, env = "VALIDATION_WORKERS", default_value_t = 2, value_name = "N",
          value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..))]
    pub(crate) validation_workers: usize,
    /// Refuse requests for structured output
    #[arg(long, env = "DISABLE_GRAMMAR_SUPPORT", value_parser = clap::builder::BoolishValueParser::new())]
    pub(crate) disable_grammar_support: bool,
    /// How the model writes calls of tools: hermes, llama3_json, mistral or json; found in its chat template when absent
    #[arg(long, env = "TOOL_CALL_PARSER", value_name = "FORMAT")]
    pub(crate) tool_call_parser: Option<Format>,
    /// Which sampling parameters apply where a request of OpenAI's or Anthropic's API does not give them: `auto` are those of the
    /// model's generation_config.json, `none` are those of the API
    #[arg(long, env = "GENERATION_CONFIG", default_value = "auto")]
    pub(crate) generation_config: GenerationConfig,
    /// How /v1/embeddings makes a vector of a text: the last state, or the mean of all; when absent, what the model's 1_Pooling/config.json
    /// says, else last
    #[arg(long, env = "POOLING", value_name = "KIND")]
    pub(crate) pooling: Option<Pooling>,
    /// The part of the vocabulary that a watermark makes more likely after each token, more than 0 and less than 1
    #[arg(long, env = "WATERMARK_GAMMA", default_value_t = 0.5, value_name = "SHARE", value_parser = gamma)]
    pub(crate) watermark_gamma: f32,
    /// How much a watermark adds to the logits of that part
    #[arg(long, env = "WATERMARK_DELTA", default_value_t = 2.0, value_name = "LOGIT", value_parser = delta, allow_negative_numbers = true)]
    pub(crate) watermark_delta: f32,
    /// Require `Authorization: Bearer KEY` (or `x-api-key: KEY`) on every POST; any of them if there are several. May be repeated; commas
    /// part keys. If some keys are written `KEY priority=high`, only they may ask for `priority` high
    #[arg(long, env = "API_KEY", hide_env_values = true, value_delimiter = ',', value_name = "KEY")]
    pub(crate) api_key: Vec<String>,
    /// File with more such keys, one per line, each perhaps followed by ` priority=high`; lines that begin with # do not count
    #[arg(long, env = "API_KEY_FILE", value_name = "PATH")]
    pub(crate) api_key_file: Option<PathBuf>,
    /// Give each API key a prefix cache of its own, so that nobody can find out what the holders of other keys have asked.
    /// When absent, each key has its own cache if there is more than one key
    #[arg(long, env = "CACHE_SALT_PER_KEY", num_args = 0..=1, default_missing_value = "true", action = clap::ArgAction::Set,
          value_name = "true|false", value_parser = clap::builder::BoolishValueParser::new())]
    pub(crate) cache_salt_per_key: Option<bool>,
    /// Certificates for TLS, the server's first (PEM)
    #[arg(long, env = "TLS_CERT", value_name = "PATH", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// The key of the server's certificate (PEM)
    #[arg(long, env = "TLS_KEY", value_name = "PATH", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Origins allowed to call from a browser; any when absent. May be repeated
    #[arg(long, env = "CORS_ALLOW_ORIGIN", value_delimiter = ',', value_name = "ORIGIN")]
    pub(crate) cors_allow_origin: Vec<String>,
    /// Serve no page at /ui
    #[arg(long, env = "DISABLE_UI", value_parser = clap::builder::BoolishValueParser::new())]
    pub(crate) disable_ui: bool,
    /// Connections open at the same time; one more gets status 503 and is closed
    #[arg(long, env = "MAX_CONNECTIONS", default_value_t = 4096, value_name = "N")]
    pub(crate) max_connections: usize,
    /// Bytes of a request's line and headers; at least 8192
    #[arg(long, env = "MAX_HEADER_BYTES", default_value_t = 32 << 10, value_name = "BYTES")]
    pub(crate) max_header_bytes: usize,
    /// Headers of a request
    #[arg(long, env = "MAX_HEADERS", default_value_t = 100, value_name = "N")]
    pub(crate) max_headers: usize,
    /// Seconds from the first byte of a request, or from the beginning of a connection, to the end of the headers
    #[arg(long, env = "HEADER_TIMEOUT", default_value_t = 10.0, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) header_timeout: f64,
    /// Seconds from the end of a request's headers to the end of its body
    #[arg(long, env = "BODY_TIMEOUT", default_value_t = 30.0, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) body_timeout: f64,
    /// Seconds that a connection may stay open between two requests
    #[arg(long, env = "IDLE_TIMEOUT", default_value_t = 75.0, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) idle_timeout: f64,
    /// Seconds after which a client that reads nothing of its answer is dropped
    #[arg(long, env = "WRITE_TIMEOUT", default_value_t = 30.0, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) write_timeout: f64,
    /// Bytes of the bodies of all requests that are being read or wait for their answer to begin; a request beyond them gets
    /// status 503. At least --payload-limit
    #[arg(long, env = "MAX_BODY_BYTES_IN_FLIGHT", default_value_t = 256 << 20, value_name = "BYTES")]
    pub(crate) max_body_bytes_in_flight: usize,
    /// Port of its own, without TLS, that answers /health, /ping and /ready however many connections the other one has; none
    /// when absent, 0 for any free one
    #[arg(long, env = "HEALTH_PORT", value_name = "PORT")]
    pub(crate) health_port: Option<u16>,
    /// Seconds without progress after which the server's threads count as stuck, and /health is 503
    #[arg(long, env = "WATCHDOG_TIMEOUT", default_value_t = 10.0, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) watchdog_timeout: f64,
    /// Write prompts and answers to the log, for debugging: they are the users' own words
    #[arg(long, env = "LOG_REQUESTS", value_parser = clap::builder::BoolishValueParser::new())]
    pub(crate) log_requests: bool,
    /// Seconds that running requests have to end after SIGTERM
    #[arg(long, short, env = "GRACEFUL_TERMINATION_TIMEOUT", default_value_t = 90, value_name = "SECONDS")]
    pub(crate) graceful_termination_timeout: u64,
}

impl HttpArgs {
    /// The address to listen on. Shells and containers set HOSTNAME to the machine's name, which is no wish of the user's: it
    /// counts only if it is an IP address. A host name in the flag is resolved.
    ///
    /// # Errors
    /// If the flag holds a name that cannot be resolved.
    pub(crate) fn address(&self) -> Result<IpAddr> {
        let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
        match self.hostname.as_deref() {
            Some("localhost") => Ok(loopback),
            Some(text) => resolve(text).with_context(|| {
                format!("--hostname {text}: give an IP address, such as 0.0.0.0, or a name of this machine")
            }),
            None => Ok(std::env::var("HOSTNAME").ok().and_then(|text| text.parse().ok()).unwrap_or(loopback)),
        }
    }

    /// The port to listen on: what the user says, what Vertex AI says, or TGI's.
    ///
    /// # Errors
    /// If the variable of Vertex AI is no port.
    pub(crate) fn port(&self) -> Result<u16> {
        match (self.port, std::env::var("AIP_HTTP_PORT")) {
            (Some(port), _) => Ok(port),
            (None, Ok(text)) => text.parse().with_context(|| format!("AIP_HTTP_PORT={text}: not a port")),
            (None, Err(_)) => Ok(PORT),
        }
    }

    /// Paths that Vertex AI chooses.
    ///
    /// # Errors
    /// If one of them is taken.
    pub(crate) fn platform(&self) -> Result<PlatformRoutes> {
        let variable = |name: &str| std::env::var(name).ok().filter(|path| !path.is_empty());
        PlatformRoutes::new(variable("AIP_PREDICT_ROUTE"), variable("AIP_HEALTH_ROUTE"))
            .context("AIP_PREDICT_ROUTE, AIP_HEALTH_ROUTE")
    }

    /// What a connection may cost.
    ///
    /// # Errors
    /// If the longest body would never fit into the memory for all.
    pub(crate) fn connections(&self) -> Result<Connections> {
        let (all, one) = (self.max_body_bytes_in_flight, self.payload_limit);
        ensure!(all >= one, "--max-body-bytes-in-flight {all} must be at least --payload-limit {one}");
        Ok(Connections {
            most: self.max_connections,
            header_bytes: self.max_header_bytes,
            headers: self.max_headers,
            header_timeout: Duration::from_secs_f64(self.header_timeout),
            body_timeout: Duration::from_secs_f64(self.body_timeout),
            idle_timeout: Duration::from_secs_f64(self.idle_timeout),
            write_timeout: Duration::from_secs_f64(self.write_timeout),
            body_bytes: all,
        })
    }

    /// The keys that let a client in, from flag and file.
    ///
    /// # Errors
    /// If one could never be sent in a header, or the file has none: whoever gives it wants to keep others out. The messages
    /// do not contain the keys.
    pub(crate) fn keys(&self) -> Result<Vec<ApiKey>> {
        let mut keys = Vec::new();
        for text in &self.api_key {
            keys.push(text.parse().context("--api-key")?);
        }
        if let Some(path) = &self.api_key_file {
            keys.extend(keys_of(path)?);
        }
        Ok(keys)
    }

    /// Origins that browsers may ask from; none if all may.
    ///
    /// # Errors
    /// Names what is no origin.
    pub(crate) fn origins(&self) -> Result<Vec<HeaderValue>> {
        if self.cors_allow_origin.iter().any(|origin| origin == "*") {
            return Ok(Vec::new());
        }
        let parse = |text: &String| {
            text.parse().with_context(|| format!("--cors-allow-origin {text}: not a valid origin"))
        };
        self.cors_allow_origin.iter().map(parse).collect()
    }

    /// Certificate and key, if there are any.
    ///
    /// # Errors
    /// If they cannot be used.
    pub(crate) fn tls(&self) -> Result<Option<Tls>> {
        match (&self.tls_cert, &self.tls_key) {
            (Some(certificate), Some(key)) => Ok(Some(Tls::from_files(certificate, key)?)),
            _ => Ok(None),
        }
    }
}

/// The address that a text is, or the first one that this host name stands for.
fn resolve(text: &str) -> Result<IpAddr> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let mut addresses = (text, 0).to_socket_addrs()?;
    addresses.next().map(|address| address.ip()).context("the name stands for no address")
}

fn gamma(text: &str) -> Result<f32, String> {
    match text.parse() {
        Ok(share) if share > 0.0 && share < 1.0 => Ok(share),
        _ => Err("must be a number more than 0 and less than 1".into()),
    }
}

fn delta(text: &str) -> Result<f32, String> {
    text.parse().ok().filter(|delta: &f32| delta.is_finite()).ok_or_else(|| "must be a number".into())
}

fn keys_of(path: &Path) -> Result<Vec<ApiKey>> {
    let about = || format!("--api-key-file {}", path.display());
    let text = std::fs::read_to_string(path).with_context(about)?;
    let lines = (1..).zip(text.lines().map(str::trim));
    let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let parse = |(number, line): (usize, &str)| {
        line.parse::<ApiKey>().with_context(|| format!("{}, line {number}", about()))
    };
    let keys = lines.map(parse).collect::<Result<Vec<_>>>()?;
    if keys.is_empty() {
        bail!("{}: no key in it", about());
    }
    Ok(keys)
}
