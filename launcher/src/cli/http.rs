//! Flags of the HTTP server.

use std::net::{IpAddr, Ipv4Addr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};
use millrace_answers::reasoning::ReasoningParser;
use millrace_answers::tools::ToolFormat;
use millrace_formats::regular_file;
use millrace_router::embedding::PoolingMode;
use millrace_router::http::{ApiKey, FairBy, HeaderValue, PlatformRoutes};
use millrace_router::kv_events::KvEventsConfig;
use millrace_router::serve::{ConnectionLimits, Tls};
use millrace_router::service::PayloadLimit;

use super::values::{bytes_or_zero, count, count_or_none, seconds};

/// Default port, as in TGI.
const PORT: u16 = 3000;

/// Source of sampling parameters that a request does not give.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum GenerationConfig {
    /// The model's generation_config.json.
    Auto,
    /// The defaults of the API.
    #[value(alias = "vllm")]
    None,
}

/// Where the events of the prefix cache are published, if they are.
#[derive(Debug, Clone)]
pub(crate) struct KvEventsArg(pub(crate) Option<KvEventsConfig>);

fn kv_events(json: &str) -> Result<KvEventsArg, String> {
    KvEventsConfig::parse(json).map(KvEventsArg)
}

/// Flags of the HTTP server.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "HTTP")]
pub(crate) struct HttpArgs {
    /// Address or host name to listen on; 0.0.0.0 for all addresses. The variable HOSTNAME is used
    /// only if it is an IP address. If absent, MILLRACE_HOSTNAME, which images set to 0.0.0.0, else
    /// 127.0.0.1
    #[arg(long, visible_alias = "host", value_name = "ADDRESS")]
    pub(crate) hostname: Option<String>,
    /// Port to listen on; 0 for any free port. If absent, AIP_HTTP_PORT (set by Vertex AI), else
    /// 3000
    #[arg(long, short, env = "PORT")]
    pub(crate) port: Option<u16>,
    /// Names of the model for clients. Answers carry the first one, and a request with another name
    /// gets status 404. If absent, every name is accepted, and answers carry the name of the
    /// model's folder or repository
    #[arg(long, visible_alias = "alias", env = "SERVED_MODEL_NAME", num_args = 1.., value_delimiter = ',', value_name = "NAME")]
    pub(crate) served_model_name: Vec<String>,
    /// Limit of waiting and running requests; further requests get status 429. If absent, 512 on a
    /// GPU and 128 on the CPU
    #[arg(long, env = "MAX_CONCURRENT_REQUESTS", value_name = "N", value_parser = count())]
    pub(crate) max_concurrent_requests: Option<usize>,
    /// Limit of requests that wait for a slot in the batch; further requests get status 429. If
    /// absent, only --max-concurrent-requests applies
    #[arg(long, env = "MAX_QUEUE_REQUESTS", value_name = "N", value_parser = count_or_none())]
    pub(crate) max_queue_requests: Option<usize>,
    /// Limit of the prompt tokens of all waiting requests; further requests get status 429. If
    /// absent, there is no limit
    #[arg(long, env = "MAX_QUEUE_TOKENS", value_name = "N", value_parser = count_or_none())]
    pub(crate) max_queue_tokens: Option<usize>,
    /// Seconds after which a request that still waits gets status 503; never if absent
    #[arg(long, env = "QUEUE_TIMEOUT", value_name = "SECONDS", value_parser = seconds)]
    pub(crate) queue_timeout: Option<f64>,
    /// Publish which prefixes are in the prefix cache, for routers such as llm-d's: JSON as for
    /// vLLM's flag of this name, such as '{"enable_kv_cache_events": true, "endpoint":
    /// "tcp://*:5557"}'
    #[arg(long, env = "KV_EVENTS_CONFIG", value_name = "JSON", value_parser = kv_events)]
    pub(crate) kv_events_config: Option<KvEventsArg>,
    /// Largest `best_of` and `n` of a request. If absent, `best_of` is at most 2 on TGI's routes,
    /// and `n` and `best_of` are at most 16 on OpenAI's routes
    #[arg(long, env = "MAX_BEST_OF", value_name = "N",
          value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..))]
    pub(crate) max_best_of: Option<usize>,
    /// Limit of the stop sequences of a request
    #[arg(long, env = "MAX_STOP_SEQUENCES", default_value_t = 4, value_name = "N", value_parser = count_or_none())]
    pub(crate) max_stop_sequences: usize,
    /// Limit of the alternatives that are reported per token, up to 128. If absent, 5 on TGI's
    /// routes (`top_n_tokens`) and 20 on OpenAI's routes (`top_logprobs`, `logprobs`)
    #[arg(long, visible_alias = "max-logprobs", env = "MAX_TOP_N_TOKENS", value_name = "N",
          value_parser = clap::value_parser!(u32).range(..=128))]
    pub(crate) max_top_n_tokens: Option<u32>,
    /// Limit of the prompt tokens of a request; one less than --max-total-tokens if absent
    #[arg(long, alias = "max-input-length", env = "MAX_INPUT_TOKENS", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_input_tokens: Option<u32>,
    /// Limit of the prompts in a /v1/completions request
    #[arg(long, env = "MAX_CLIENT_BATCH_SIZE", default_value_t = 128, value_name = "N", value_parser = count())]
    pub(crate) max_client_batch_size: usize,
    /// Limit of a request body in bytes; if absent, 16 for each token of the longest prompt and
    /// answer, but at least 2000000 and at most --max-body-bytes-in-flight
    #[arg(long, env = "PAYLOAD_LIMIT", value_name = "BYTES", value_parser = count())]
    pub(crate) payload_limit: Option<usize>,
    /// Limit of a text for /tokenize, /chat_tokenize and /v1/messages/count_tokens in bytes; if
    /// absent, as many as the longest prompt of the model can have
    #[arg(long, env = "MAX_TOKENIZE_BYTES", value_name = "BYTES", value_parser = count())]
    pub(crate) max_tokenize_bytes: Option<usize>,
    /// Turn the text of a special token in a message, such as <|im_end|>, into that token, so that
    /// clients can begin and end turns. If absent, it stays ordinary text
    #[arg(long, env = "PARSE_SPECIAL_IN_USER_TEXT", value_parser = clap::builder::BoolishValueParser::new())]
    pub(crate) parse_special_in_user_text: bool,
    /// Short texts, and as many long texts, that are tokenized concurrently
    #[arg(long, env = "VALIDATION_WORKERS", default_value_t = 2, value_name = "N",
          value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..))]
    pub(crate) validation_workers: usize,
    /// Memory for the token ids of prompts, so that the next turn of a conversation tokenizes only
    /// what is new; 0 keeps none
    #[arg(long, env = "TOKENIZER_CACHE", default_value = "64M", value_name = "SIZE", value_parser = bytes_or_zero)]
    pub(crate) tokenizer_cache: usize,
    /// Refuse requests for structured output
    #[arg(long, env = "DISABLE_GRAMMAR_SUPPORT", value_parser = clap::builder::BoolishValueParser::new())]
    pub(crate) disable_grammar_support: bool,
    /// Format of the model's tool calls, such as hermes, llama3_json or glm45; detected from its
    /// chat template if absent
    #[arg(long, env = "TOOL_CALL_PARSER", value_name = "FORMAT")]
    pub(crate) tool_call_parser: Option<ToolFormat>,
    /// Format of the model's reasoning, such as think, mistral or harmony: `auto` detects it from
    /// the chat template, `none` leaves the reasoning in the answer
    #[arg(long, env = "REASONING_PARSER", default_value = "auto", value_name = "FORMAT")]
    pub(crate) reasoning_parser: ReasoningParser,
    /// Tokens that the model may think before it answers, for requests that do not give a budget
    #[arg(long, env = "DEFAULT_THINKING_BUDGET", value_name = "TOKENS")]
    pub(crate) default_thinking_budget: Option<u32>,
    /// Text that tells the model at the end of its thinking budget that it must answer now; if
    /// absent, the text that the model was trained on, or none
    #[arg(long, env = "THINKING_BUDGET_MESSAGE", value_name = "TEXT")]
    pub(crate) thinking_budget_message: Option<String>,
    /// Sampling parameters for requests of OpenAI's and Anthropic's APIs that do not give them:
    /// `auto` uses the model's generation_config.json, `none` uses the defaults of the API
    #[arg(long, env = "GENERATION_CONFIG", default_value = "auto")]
    pub(crate) generation_config: GenerationConfig,
    /// Pooling of /v1/embeddings and /embed: cls (the first state), max, mean,
    /// mean_sqrt_len_tokens, weightedmean or last; if absent, that of the model's modules.json or
    /// 1_Pooling/config.json, else the mean for an encoder and the last state for others
    #[arg(long, env = "POOLING", value_name = "KIND")]
    pub(crate) pooling: Option<PoolingMode>,
    /// Share of the vocabulary that a watermark makes more likely after each token, above 0 and
    /// below 1
    #[arg(long, env = "WATERMARK_GAMMA", default_value_t = 0.5, value_name = "SHARE", value_parser = gamma)]
    pub(crate) watermark_gamma: f32,
    /// Amount that a watermark adds to the logits of that share
    #[arg(long, env = "WATERMARK_DELTA", default_value_t = 2.0, value_name = "LOGIT", value_parser = delta, allow_negative_numbers = true)]
    pub(crate) watermark_delta: f32,
    /// Require `Authorization: Bearer KEY` (or `x-api-key: KEY`) with one of these keys on every
    /// POST. May be repeated; commas separate keys. If some keys are given as `KEY priority=high`,
    /// only requests with those keys may set `priority` to high. `requests=N`, `queued=N` and
    /// `tokens-per-minute=N` after a key limit its use, and `name=NAME` shows it in the metrics
    #[arg(long, env = "API_KEY", hide_env_values = true, value_delimiter = ',', value_name = "KEY")]
    pub(crate) api_key: Vec<String>,
    /// File with further keys, one per line, each optionally followed by the same words; lines that
    /// begin with # are comments. It is read again on SIGHUP
    #[arg(long, env = "API_KEY_FILE", value_name = "PATH")]
    pub(crate) api_key_file: Option<PathBuf>,
    /// Give each API key its own prefix cache, so that response times reveal nothing about the
    /// prompts of other keys. If absent, this is on if there is more than one key
    #[arg(long, env = "CACHE_SALT_PER_KEY", num_args = 0..=1, default_missing_value = "true", action = clap::ArgAction::Set,
          value_name = "true|false", value_parser = clap::builder::BoolishValueParser::new())]
    pub(crate) cache_salt_per_key: Option<bool>,
    /// Tenants that get the same share of the tokens: `key` for one per API key, or `header:NAME`
    /// for one per value of this header, which only a trusted gateway may set
    #[arg(long, env = "FAIR_BY", default_value = "key", value_name = "key|header:NAME")]
    pub(crate) fair_by: FairBy,
    /// Certificate chain for TLS, the server's certificate first (PEM). It is read again on SIGHUP
    #[arg(long, env = "TLS_CERT", value_name = "PATH", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// Private key of the server's certificate (PEM)
    #[arg(long, env = "TLS_KEY", value_name = "PATH", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Origins that browsers may send requests from; any if absent. May be repeated
    #[arg(long, env = "CORS_ALLOW_ORIGIN", value_delimiter = ',', value_name = "ORIGIN")]
    pub(crate) cors_allow_origin: Vec<String>,
    /// Disable the web page at /ui
    #[arg(long, env = "DISABLE_UI", value_parser = clap::builder::BoolishValueParser::new())]
    pub(crate) disable_ui: bool,
    /// Limit of open connections; a further connection gets status 503 and is closed
    #[arg(long, env = "MAX_CONNECTIONS", default_value_t = 4096, value_name = "N", value_parser = count())]
    pub(crate) max_connections: usize,
    /// Limit of a request's line and headers in bytes; at least 8192
    #[arg(long, env = "MAX_HEADER_BYTES", default_value_t = 32 << 10, value_name = "BYTES", value_parser = count())]
    pub(crate) max_header_bytes: usize,
    /// Limit of the headers of a request
    #[arg(long, env = "MAX_HEADERS", default_value_t = 100, value_name = "N", value_parser = count())]
    pub(crate) max_headers: usize,
    /// Seconds from the first byte of a request, or from the start of a connection, to the end of
    /// the headers
    #[arg(long, env = "HEADER_TIMEOUT", default_value_t = 10.0, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) header_timeout: f64,
    /// Seconds from the end of a request's headers to the end of its body
    #[arg(long, env = "BODY_TIMEOUT", default_value_t = 30.0, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) body_timeout: f64,
    /// Seconds that a connection may stay open between two requests
    #[arg(long, env = "IDLE_TIMEOUT", default_value_t = 75.0, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) idle_timeout: f64,
    /// Seconds after which a client that does not read its answer is disconnected
    #[arg(long, env = "WRITE_TIMEOUT", default_value_t = 30.0, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) write_timeout: f64,
    /// Limit of the bytes of all request bodies that are being read or wait for the start of their
    /// answer; a further request gets status 503. At least --payload-limit
    #[arg(long, env = "MAX_BODY_BYTES_IN_FLIGHT", default_value_t = 256 << 20, value_name = "BYTES", value_parser = count())]
    pub(crate) max_body_bytes_in_flight: usize,
    /// Separate port without TLS that answers /health, /ping and /ready even if the limit of
    /// connections is reached; 0 for any free port, none if absent
    #[arg(long, env = "HEALTH_PORT", value_name = "PORT")]
    pub(crate) health_port: Option<u16>,
    /// Seconds without progress after which the server's threads count as stuck and /health is 503
    #[arg(long, env = "WATCHDOG_TIMEOUT", default_value_t = 10.0, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) watchdog_timeout: f64,
    /// Write prompts and answers to the log for debugging; they may contain personal data
    #[arg(long, env = "LOG_REQUESTS", value_parser = clap::builder::BoolishValueParser::new())]
    pub(crate) log_requests: bool,
    /// Seconds that running requests may take to finish after SIGTERM
    #[arg(long, short, env = "GRACEFUL_TERMINATION_TIMEOUT", default_value_t = 90, value_name = "SECONDS",
          value_parser = clap::value_parser!(u64).range(..=31_536_000))]
    pub(crate) graceful_termination_timeout: u64,
}

impl HttpArgs {
    /// Returns the address to listen on. A host name in the flag is resolved.
    ///
    /// The variable HOSTNAME is used only if it is an IP address, because shells and containers set
    /// it to the machine's name. For the same reason an image cannot set it, and sets
    /// MILLRACE_HOSTNAME.
    ///
    /// # Errors
    /// If the flag or MILLRACE_HOSTNAME holds a name that cannot be resolved.
    pub(crate) fn address(&self) -> Result<IpAddr> {
        let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let ip_of_machine = || std::env::var("HOSTNAME").ok().and_then(|text| text.parse().ok());
        let (source, text) = match (&self.hostname, std::env::var("MILLRACE_HOSTNAME")) {
            (Some(text), _) => ("--hostname ", text.clone()),
            (None, Ok(text)) => match ip_of_machine() {
                Some(ip) => return Ok(ip),
                None => ("MILLRACE_HOSTNAME=", text),
            },
            (None, Err(_)) => return Ok(ip_of_machine().unwrap_or(loopback)),
        };
        if text == "localhost" {
            return Ok(loopback);
        }
        resolve(&text).with_context(|| {
            format!("{source}{text}: give an IP address, such as 0.0.0.0, or a name of this machine")
        })
    }

    /// Returns the port to listen on: the flag, the variable of Vertex AI, or the default.
    ///
    /// # Errors
    /// If the variable of Vertex AI is not a port.
    pub(crate) fn port(&self) -> Result<u16> {
        match (self.port, std::env::var("AIP_HTTP_PORT")) {
            (Some(port), _) => Ok(port),
            (None, Ok(text)) => text.parse().with_context(|| format!("AIP_HTTP_PORT={text}: not a port")),
            (None, Err(_)) => Ok(PORT),
        }
    }

    /// Returns the paths that Vertex AI chooses.
    ///
    /// # Errors
    /// If a path is in use by another route.
    pub(crate) fn platform(&self) -> Result<PlatformRoutes> {
        let variable = |name: &str| std::env::var(name).ok().filter(|path| !path.is_empty());
        PlatformRoutes::new(variable("AIP_PREDICT_ROUTE"), variable("AIP_HEALTH_ROUTE"))
            .context("AIP_PREDICT_ROUTE, AIP_HEALTH_ROUTE")
    }

    /// Returns the limits of connections.
    ///
    /// # Errors
    /// If the largest body exceeds the limit for all bodies together.
    pub(crate) fn connections(&self) -> Result<ConnectionLimits> {
        let all = self.max_body_bytes_in_flight;
        if let Some(one) = self.payload_limit {
            ensure!(all >= one, "--max-body-bytes-in-flight {all} must be at least --payload-limit {one}");
        }
        Ok(ConnectionLimits {
            max_connections: self.max_connections,
            header_bytes: self.max_header_bytes,
            headers: self.max_headers,
            header_timeout: Duration::from_secs_f64(self.header_timeout),
            body_timeout: Duration::from_secs_f64(self.body_timeout),
            idle_timeout: Duration::from_secs_f64(self.idle_timeout),
            write_timeout: Duration::from_secs_f64(self.write_timeout),
            body_bytes: all,
        })
    }

    /// Returns the limit of a request's body.
    pub(crate) fn payload_limit(&self) -> PayloadLimit {
        let at_most = self.max_body_bytes_in_flight;
        self.payload_limit.map_or(PayloadLimit::OfModel { at_most }, PayloadLimit::Fixed)
    }

    /// Returns the API keys of the flag and the file.
    ///
    /// # Errors
    /// If a key cannot be sent in a header, or the file has no key, which would leave the
    /// server open to everyone. The messages do not contain the keys.
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

    /// Returns the allowed origins of browsers; empty if all are allowed.
    ///
    /// # Errors
    /// If a text is not an origin.
    pub(crate) fn origins(&self) -> Result<Vec<HeaderValue>> {
        if self.cors_allow_origin.iter().any(|origin| origin == "*") {
            return Ok(Vec::new());
        }
        let parse = |text: &String| {
            text.parse().with_context(|| format!("--cors-allow-origin {text}: not a valid origin"))
        };
        self.cors_allow_origin.iter().map(parse).collect()
    }

    /// Loads the certificate and key, if they are given.
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

/// Parses an IP address, or resolves a host name to its first address.
fn resolve(text: &str) -> Result<IpAddr> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let mut addresses = (text, 0).to_socket_addrs()?;
    addresses.next().map(|address| address.ip()).context("the name has no address")
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

/// The maximum number of bytes of a file with keys.
const MAX_KEY_FILE: u64 = 64 << 20;

fn keys_of(path: &Path) -> Result<Vec<ApiKey>> {
    let about = || format!("--api-key-file {}", path.display());
    let text = regular_file::read_text(path, MAX_KEY_FILE).with_context(about)?;
    let lines = (1..).zip(text.lines().map(str::trim));
    let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let parse = |(number, line): (usize, &str)| {
        line.parse::<ApiKey>().with_context(|| format!("{}, line {number}", about()))
    };
    let keys = lines.map(parse).collect::<Result<Vec<_>>>()?;
    if keys.is_empty() {
        bail!("{}: the file has no key", about());
    }
    Ok(keys)
}
