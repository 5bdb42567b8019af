//! `millrace serve`: the HTTP server.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use millrace_router::engine::State;
use millrace_router::http::HttpConfig;
use millrace_router::metrics;
use millrace_router::serve::{ServeOptions, serve, shutdown_signal};
use millrace_router::service::{Limits, Watermark};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::cli::ServeArgs;
use crate::commands::env::Environment;
use crate::commands::node;
use crate::nodes::Role;
use crate::report::Report;
use crate::stack::{Serving, Stack};
use crate::{devices, logging, progress};

/// Serves until told to stop.
pub(crate) fn run(args: ServeArgs) -> Result<()> {
    let ServeArgs { model, mut engine, http, nodes, telemetry, tgi, json_output, env, config: _ } = args;
    logging::start("info", json_output);
    if env {
        tracing::info!("environment:\n{}", Environment::new());
    }
    engine.num_shard = engine.num_shard.or(tgi.num_shard());
    if let Some(decided) = devices::settle(&mut engine, &model, nodes.count())? {
        tracing::info!("{decided}");
    }
    for idle in tgi.check(engine.num_shard())? {
        tracing::warn!("{idle}");
    }
    let role = nodes.role(engine.num_shard())?;
    if let Role::Worker(worker) = role {
        return node::run(&worker, &model, &engine, json_output);
    }
    if let (Some(input), Some(total)) = (http.max_input_tokens, engine.max_total_tokens)
        && input >= total
    {
        bail!("--max-input-tokens {input} must be less than --max-total-tokens {total}");
    }
    let limits = Limits {
        max_concurrent_requests: http.max_concurrent_requests,
        max_best_of: http.max_best_of,
        max_stop_sequences: http.max_stop_sequences,
        max_top_n_tokens: http.max_top_n_tokens,
        max_input_tokens: http.max_input_tokens.map(|n| n as usize),
        max_total_tokens: engine.max_total_tokens.map(|n| n as usize),
        max_client_batch_size: http.max_client_batch_size,
        payload_limit: http.payload_limit,
        validation_workers: http.validation_workers,
        max_tokenize_bytes: http.max_tokenize_bytes,
        parse_special_in_user_text: http.parse_special_in_user_text,
        grammar_support: !http.disable_grammar_support,
        tool_format: http.tool_call_parser,
        pooling: http.pooling,
        watermark: Watermark { gamma: http.watermark_gamma, delta: http.watermark_delta },
        log_requests: http.log_requests,
    };
    let grace = Duration::from_secs(http.graceful_termination_timeout);
    let serving = Serving {
        max_queue_requests: http.max_queue_requests,
        max_queue_tokens: http.max_queue_tokens,
        queue_timeout: http.queue_timeout.map(Duration::from_secs_f64),
        drain_timeout: grace,
    };
    let longest = engine.max_total_tokens.unwrap_or(LONGEST_MEASURED) as usize;
    allow_files(http.max_connections);
    let (keys, tls) = (http.keys()?, http.tls()?);
    let scheme = if tls.is_some() { "https" } else { "http" };
    let options = ServeOptions { connections: http.connections(), tls, grace };
    tokio::runtime::Runtime::new()?.block_on(async {
        let address = http.address()?;
        let port = http.port()?;
        let listener = TcpListener::bind((address, port))
            .await
            .with_context(|| format!("cannot listen on {address} port {port}; try another --port"))?;
        let telemetry = telemetry.start()?;
        let asked = shutdown_signal().context("cannot wait for SIGTERM")?;
        let config = HttpConfig {
            api_keys: keys,
            allowed_origins: http.origins()?,
            platform: http.platform()?,
            metrics: Some(metrics::install(longest)?),
            disable_ui: http.disable_ui,
        };
        let leader = match role {
            Role::Leader(places) => Some(places.listen().await?),
            Role::Alone | Role::Worker(_) => None,
        };
        let stack = Stack::start(&model, &engine, limits, serving, leader)?;
        tracing::info!("listening on {scheme}://{}", listener.local_addr()?);
        tokio::spawn(announce(stack.engine().state()));

        let mut state = stack.engine().state();
        let shutdown = async move {
            tokio::select! {
                () = asked => {}
                // Streams that the failure has cut get their error event before the server ends.
                _ = state.wait_for(|state| matches!(state, State::Failed(_))) => {}
            }
        };
        serve(listener, stack.service.clone(), config, options, shutdown).await?;
        telemetry.stop().await;
        if let State::Failed(why) = &*stack.engine().state().borrow() {
            bail!("{why}");
        }
        stack.stop().await;
        tracing::info!("all requests have ended");
        Ok(())
    })
}

/// Open files that are no connections: the model, sockets of shards, logs.
const OTHER_FILES: usize = 256;

/// Asks the system for as many open files as there may be connections. Many systems give a process 1024 unless it asks.
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

/// The largest token count that histograms resolve when no `--max-total-tokens` is given.
const LONGEST_MEASURED: u32 = 4096;

/// Shows the loading bar, and then that requests are served and by what.
async fn announce(state: watch::Receiver<State>) {
    let since = Instant::now();
    progress::show(state.clone()).await;
    if let State::Ready(ready) = &*state.borrow() {
        tracing::info!("ready after {:.2} s: {}", since.elapsed().as_secs_f64(), Report(ready));
    }
}
