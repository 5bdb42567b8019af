//! Logs go to standard error; standard output is for what was asked for.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// Starts logging at `default` unless `LOG_LEVEL` or `RUST_LOG` say otherwise.
pub(crate) fn start(default: &str, json: bool) {
    let directives = std::env::var("LOG_LEVEL").or_else(|_| std::env::var("RUST_LOG"));
    let filter = EnvFilter::new(directives.as_deref().unwrap_or(default));
    let lines =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
    // Colours are for people; a file keeps the text.
    let lines = lines.with_ansi(std::io::stderr().is_terminal());
    match json {
        true => lines.json().init(),
        false => lines.init(),
    }
}
