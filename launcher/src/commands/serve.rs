//! `millrace serve`: the HTTP server.

use std::io::{ErrorKind, IsTerminal};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use millrace_router::engine::{EngineState, Ready};
use millrace_router::http::{AdapterAdmin, ApiKeys, HttpConfig};
use millrace_router::metrics;
use millrace_router::serve::{LastResort, ServeOptions, serve, shutdown_signals};
use millrace_router::service::{RequestLimits, Service, Watermark};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::watch;

use crate::adapters::ServedAdapters;
use crate::cli::{DeviceArg, EngineArgs, GenerationConfig, HttpArgs, KvEventsArg, ModelArgs, ServeArgs};
use crate::commands::env::Environment;
use crate::commands::node;
use crate::disk_cache::DiskFolder;
use crate::hub::{BackgroundDownload, DownloadProgress, WeightDownload};
use crate::model::{download_weights, fetch};
use crate::nodes::{LeaderOptions, Role};
use crate::reload::Reloadable;
use crate::report::StartReport;
use crate::sizes::AskedSizes;
use crate::stack::{ServingOptions, Stack};
use crate::telemetry::TelemetryArgs;
use crate::{allocator, devices, draft_model, logging, progress};

/// Bounds of the number of threads that serve HTTP beside shards on the CPU. A second thread keeps
/// health checks answered while the first one is busy.
const FEWEST_WORKERS: usize = 2;
const MOST_WORKERS: usize = 8;

/// Serves until a signal asks the process to stop.
pub(crate) fn run(args: ServeArgs) -> Result<()> {
    let ServeArgs {
        mut model,
        mut engine,
        disk_cache,
        adapters,
        http,
        nodes,
        telemetry,
        tgi,
        json_output,
        env,
        config: _,
        named_model: _,
    } = args;
    allocator::return_freed_memory();
    logging::start("info", json_output);
    if env {
        tracing::info!("environment:\n{}", Environment::new());
    }
    let weights = fetch(&mut model)?;
    engine.num_shard = engine.num_shard.or(tgi.num_shard());
    if let Some(decided) = devices::settle(&mut engine, &model, nodes.count())? {
        tracing::info!("{decided}");
    }
    draft_model::settle(&mut engine, &model, json_output)?;
    if engine.replicas() > 1 {
        tracing::info!("starting {} groups of shards, each with the whole model", engine.replicas());
    }
    for warning in tgi.check(engine.num_shard())? {
        tracing::warn!("{warning}");
    }
    adapters.warning().iter().for_each(|warning| tracing::warn!("{warning}"));
    let api_keys = http.keys()?;
    let served = ServedAdapters::find(&adapters, &model, engine.device)?;
    let adapter_admin = served.admin(&adapters, &model, &api_keys)?;
    let disk_cache = DiskFolder::open(&disk_cache, &engine, nodes.count(), served.options.places > 0)?;
    let leader = match nodes.role(engine.num_shard())? {
        Role::Worker(worker) => {
            if let Some(weights) = weights {
                download_weights(weights, json_output)?;
            }
            return node::run(&worker, &model, &engine, &served.options, json_output);
        }
        Role::Leader(options) => Some(options),
        Role::Alone => None,
    };
    if let (Some(input), Some(total)) = (http.max_input_tokens, engine.max_total_tokens)
        && input >= total
    {
        bail!("--max-input-tokens {input} must be less than --max-total-tokens {total}");
    }
    allow_files(http.max_connections);
    let runtime = runtime(&engine)?;
    let loading = Loading { leader, weights, adapters: served, adapter_admin, disk_cache, json_output };
    let result = runtime.block_on(serve_http(&model, &engine, &http, &telemetry, loading));
    // Blocking work of ended requests is not awaited, because nobody needs its results.
    runtime.shutdown_background();
    result
}

/// Starts the threads that serve HTTP. Beside shards on the CPU there are few: each one that wakes
/// up interrupts a compute thread, and the whole step waits for that thread.
fn runtime(engine: &EngineArgs) -> std::io::Result<Runtime> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    if engine.device == DeviceArg::Cpu {
        let cores = std::thread::available_parallelism()?.get();
        let compute =
            millrace_shard::compute_threads(engine.num_shard() * engine.replicas(), engine.cpus_per_shard);
        builder.worker_threads(cores.saturating_sub(compute).clamp(FEWEST_WORKERS, MOST_WORKERS));
    }
    builder.enable_all().build()
}

/// The parts of a start that the engine waits for while it loads.
struct Loading {
    /// The role of this machine, if other machines run shards too.
    leader: Option<LeaderOptions>,
    /// The weights that are not on this machine yet.
    weights: Option<WeightDownload>,
    /// The adapters that requests may name.
    adapters: ServedAdapters,
    /// The right to load adapters while the server runs.
    adapter_admin: AdapterAdmin,
    /// The folder of the disk cache, if there is to be one.
    disk_cache: Option<DiskFolder>,
    /// Whether the log is JSON, beside which no bar is drawn.
    json_output: bool,
}

/// Starts engine and HTTP server, and serves until a signal asks the process to stop.
async fn serve_http(
    model: &ModelArgs,
    engine: &EngineArgs,
    http: &HttpArgs,
    telemetry: &TelemetryArgs,
    loading: Loading,
) -> Result<()> {
    let Loading { leader, weights, adapters, adapter_admin, disk_cache, json_output } = loading;
    let (tls, connections) = (http.tls()?, http.connections()?);
    let scheme = if tls.is_some() { "https" } else { "http" };
    let longest = engine.max_total_tokens.unwrap_or(LONGEST_MEASURED) as usize;
    let address = http.address()?;
    let listener = listen(address, http.port()?, "--port").await?;
    let probe_listener = match http.health_port {
        Some(port) => Some(listen(address, port, "--health-port").await?),
        None => None,
    };
    let telemetry = telemetry.start()?;
    let signals = shutdown_signals().context("cannot wait for SIGTERM")?;
    let config = HttpConfig { adapter_admin, ..http_config(http, longest)? };
    if let Some(reloadable) = Reloadable::new(http, &config.api_keys, tls.as_ref()) {
        reloadable.listen().context("cannot wait for SIGHUP")?;
    }
    logging::measure();
    let leader = match leader {
        Some(options) => Some(options.listen().await?),
        None => None,
    };
    let grace = Duration::from_secs(http.graceful_termination_timeout);
    let download = weights.map(BackgroundDownload::start).transpose()?;
    let progress = download.as_ref().map(|download| download.progress.clone());
    let serving = ServingOptions {
        limits: request_limits(http, engine),
        adapters,
        disk_cache,
        max_queue_requests: http.max_queue_requests,
        max_queue_tokens: http.max_queue_tokens,
        queue_timeout: http.queue_timeout.map(Duration::from_secs_f64),
        kv_events: http.kv_events_config.clone().and_then(|KvEventsArg(config)| config),
        drain_timeout: grace,
        leader,
        download,
    };
    let stack = Stack::start(model, engine, serving)?;
    tracing::info!("listening on {scheme}://{}", listener.local_addr()?);
    if let Some(listener) = &probe_listener {
        tracing::info!("probes are answered on http://{}", listener.local_addr()?);
    }
    tokio::spawn(announce(stack.engine().state(), stack.service.clone(), stack.asked));
    if let Some(progress) = progress.filter(|_| json_output || !std::io::stderr().is_terminal()) {
        tokio::spawn(log_download(progress, stack.engine().state()));
    }
    let options = ServeOptions {
        connections,
        tls,
        probe_listener,
        grace,
        watchdog_timeout: Duration::from_secs_f64(http.watchdog_timeout),
        last_resort: LastResort::new(|why| {
            tracing::error!("the process ends: {why}");
            logging::exit(1)
        }),
    };
    serve(listener, stack.service.clone(), config, options, signals).await?;
    end_within(LAST_WORK);
    telemetry.stop().await;
    if let EngineState::Failed(why) = &*stack.engine().state().borrow() {
        bail!("{why}");
    }
    stack.stop().await;
    tracing::info!("all requests have ended");
    Ok(())
}

/// Returns the configuration of the routes, and installs the recorder of metrics.
fn http_config(http: &HttpArgs, longest: usize) -> Result<HttpConfig> {
    let keys = http.keys()?;
    if http.cache_salt_per_key == Some(true) && keys.is_empty() {
        tracing::warn!("--cache-salt-per-key has no effect: there are no keys; give some with --api-key");
    }
    // The keys have counters, which must find the recorder.
    let metrics = metrics::install(longest)?;
    Ok(HttpConfig {
        api_keys: ApiKeys::new(&keys, http.cache_salt_per_key),
        fair_by: http.fair_by.clone(),
        allowed_origins: http.origins()?,
        platform: http.platform()?,
        metrics: Some(metrics),
        disable_ui: http.disable_ui,
        ..HttpConfig::default()
    })
}

/// Returns the limits of a request from the flags.
fn request_limits(http: &HttpArgs, engine: &EngineArgs) -> RequestLimits {
    RequestLimits {
        max_concurrent_requests: http.max_concurrent_requests.unwrap_or(engine.most_requests()),
        max_best_of: http.max_best_of,
        max_stop_sequences: http.max_stop_sequences,
        model_names: http.served_model_name.clone(),
        max_top_n_tokens: http.max_top_n_tokens.unwrap_or(RequestLimits::DEFAULT_TOP_N_TOKENS),
        max_top_logprobs: http.max_top_n_tokens.unwrap_or(RequestLimits::DEFAULT_TOP_LOGPROBS),
        max_input_tokens: http.max_input_tokens.map(|n| n as usize),
        max_total_tokens: engine.max_total_tokens.map(|n| n as usize),
        max_client_batch_size: http.max_client_batch_size,
        payload_limit: http.payload_limit(),
        validation_workers: http.validation_workers,
        tokenizer_cache: http.tokenizer_cache,
        max_tokenize_bytes: http.max_tokenize_bytes,
        parse_special_in_user_text: http.parse_special_in_user_text,
        grammar_support: !http.disable_grammar_support,
        // Set by the stack, which knows the path of the program.
        grammar_worker: None,
        tool_format: http.tool_call_parser,
        reasoning: http.reasoning_parser,
        default_thinking_budget: http.default_thinking_budget,
        thinking_budget_message: http.thinking_budget_message.clone(),
        model_sampling: http.generation_config == GenerationConfig::Auto,
        pooling: http.pooling,
        watermark: Watermark { gamma: http.watermark_gamma, delta: http.watermark_delta },
        log_requests: http.log_requests,
    }
}

async fn listen(address: IpAddr, port: u16, flag: &str) -> Result<TcpListener> {
    let listener = TcpListener::bind((address, port)).await;
    listener.map_err(|error| {
        let advice = match error.kind() {
            ErrorKind::AddrInUse => format!("; another program listens there: try another {flag}"),
            ErrorKind::PermissionDenied if port < 1024 => {
                format!("; ports below 1024 need a privilege: try another {flag}")
            }
            ErrorKind::AddrNotAvailable => {
                "; this machine does not have the address: --hostname 0.0.0.0 listens on all that it has"
                    .to_owned()
            }
            _ => String::new(),
        };
        anyhow!("cannot listen on {address} port {port}: {error}{advice}")
    })
}

/// Longest time that the engine's shutdown and the export of the last spans may take.
const LAST_WORK: Duration = Duration::from_secs(15);

/// Ends the process if it has not ended after `limit`. The shards then end too, because their
/// standard input closes.
fn end_within(limit: Duration) {
    let end = move || {
        std::thread::sleep(limit);
        tracing::error!(?limit, "the server did not end in time after its last request; the process ends");
        logging::exit(1)
    };
    // If the thread cannot start, the process still ends when its work ends.
    drop(std::thread::Builder::new().name("end".into()).spawn(end));
}

/// Open files other than connections: the model, sockets of shards, logs.
const OTHER_FILES: usize = 256;

/// Raises the limit of open files so that `connections` connections fit. The default of many
/// systems is 1024.
#[cfg(unix)]
fn allow_files(connections: usize) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = connections.saturating_add(OTHER_FILES) as u64;
    if current.is_none_or(|current| current >= wanted) {
        return;
    }
    let raised = maximum.map_or(wanted, |maximum| maximum.min(wanted));
    let result = setrlimit(Resource::Nofile, Rlimit { current: Some(raised), maximum });
    if result.is_err() || raised < wanted {
        tracing::warn!(
            "--max-connections {connections}: the system allows only {} open files",
            if result.is_ok() { Some(raised) } else { current }.unwrap_or(raised)
        );
    }
}

#[cfg(not(unix))]
fn allow_files(_: usize) {}

/// Largest token count that histograms resolve if `--max-total-tokens` is absent.
const LONGEST_MEASURED: u32 = 4096;

/// Logs the progress of the download until it has ended.
async fn log_download(progress: DownloadProgress, mut state: watch::Receiver<EngineState>) {
    let has_ended = |state: &EngineState| match state {
        EngineState::Loading { .. } => progress.is_complete(),
        _ => true,
    };
    tokio::select! {
        never = progress.log("downloading") => match never {},
        _ = state.wait_for(has_ended) => {}
    }
}

/// Longest time to wait for the removal of the progress bar.
const BAR: Duration = Duration::from_secs(1);

/// Shows the progress bar, and logs the start-up report when the model is ready.
async fn announce(mut state: watch::Receiver<EngineState>, service: Service, asked: AskedSizes) {
    let since = Instant::now();
    let bar = progress::show_beside(state.clone());
    let loaded = match state.wait_for(|state| !matches!(state, EngineState::Loading { .. })).await.as_deref()
    {
        Ok(EngineState::Ready(ready)) => ready.clone(),
        _ => return,
    };
    // The log line should appear after the bar, but a stopped terminal must not delay it.
    let _ = tokio::time::timeout(BAR, bar).await;
    tracing::info!("ready after {:.2} s: {}", since.elapsed().as_secs_f64(), StartReport(&loaded));
    asked.differences(&loaded).iter().for_each(|text| tracing::warn!("{text}"));
    announce_vectors(&service, &loaded);
    let (tokens, embeddings) = (service.tokenizer().size(), loaded.vocab_size);
    if tokens > embeddings {
        tracing::warn!(
            "the tokenizer has {tokens} tokens, but the model only {embeddings} embeddings; requests with the others are \
             refused"
        );
    }
}

/// Logs how the model makes vectors of texts, if it is made for that.
fn announce_vectors(service: &Service, ready: &Ready) {
    match service.vectors(ready) {
        Ok(plan) if plan.pooling.is_guess && ready.headless => tracing::warn!(
            "vectors: {plan}. Neither modules.json nor 1_Pooling/config.json says how states are pooled; --pooling \
             chooses another way"
        ),
        Ok(plan) if plan.model.is_configured() || ready.headless => tracing::info!("vectors: {plan}"),
        Ok(_) => {}
        Err(error) => tracing::warn!("requests for vectors are refused: {error}"),
    }
}
