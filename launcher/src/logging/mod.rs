//! Logging to standard error. Standard output is only for the results of commands.
//!
//! A log must never stop the server: threads push lines to a bounded queue, and one thread writes
//! them ([`queue`]). Lines are dropped and counted if the queue is full or the system rejects them.

mod queue;

use std::backtrace::{Backtrace, BacktraceStatus};
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::panic::PanicHookInfo;
use std::sync::OnceLock;
use std::time::Duration;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::Directive;

use self::queue::LogQueue;

/// Longest time that the end of the process waits for the last lines. A pipe that nobody reads
/// never accepts them.
const LAST_LINES: Duration = Duration::from_secs(1);

/// The queue of this process. Its thread starts with the first use.
static QUEUE: OnceLock<LogQueue> = OnceLock::new();

/// Starts logging at the level `default` unless `LOG_LEVEL` or `RUST_LOG` is set. Panics are logged
/// too.
pub(crate) fn start(default: &str, json: bool) {
    for directive in subscribe(default, json) {
        tracing::warn!("LOG_LEVEL or RUST_LOG: `{directive}` is not a filter such as info or millrace=debug");
    }
}

/// Starts logging in a shard of this machine, whose router logs everything but warnings. The router
/// has named filters that are not valid.
pub(crate) fn start_in_shard(json: bool) {
    subscribe("warn", json);
    catch_panics();
}

/// Starts logging, and returns the filters that are not valid.
fn subscribe(default: &str, json: bool) -> Vec<String> {
    let directives = std::env::var("LOG_LEVEL").or_else(|_| std::env::var("RUST_LOG"));
    let (filter, ignored) = filter(directives.as_deref().unwrap_or(default));
    let lines =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(|| LineWriter).with_target(false);
    // The library would report its own errors with `eprintln!`, which blocks or panics if standard
    // error is broken.
    let lines = lines.log_internal_errors(false);
    // Colors only for terminals.
    let lines = lines.with_ansi(io::stderr().is_terminal());
    match json {
        true => lines.json().init(),
        false => lines.init(),
    }
    std::panic::set_hook(Box::new(|panic| {
        let (what, backtrace) = (panic_text(panic), backtrace());
        tracing::error!(backtrace, "{what}");
    }));
    ignored
}

/// Sends panics to the queue as plain text. The standard hook would block
/// while standard error accepts nothing.
fn catch_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let mut text = panic_text(panic);
        if let Some(backtrace) = backtrace() {
            // Writing to a string cannot fail.
            let _ = write!(text, "\n{backtrace}");
        }
        say(&text);
    }));
}

/// Writes a line to standard error, in order with the lines of the log, without waiting for it.
pub(crate) fn say(text: &str) {
    queue().push(format!("{text}\n").into_bytes());
}

/// Waits for a short time until the lines so far are written.
pub(crate) fn flush() {
    if let Some(queue) = QUEUE.get() {
        queue.flush(LAST_LINES);
    }
}

/// Flushes the log and ends the process.
pub(crate) fn exit(code: i32) -> ! {
    flush();
    std::process::exit(code)
}

/// A guard that flushes the log when it is dropped.
pub(crate) struct FlushAtEnd;

impl Drop for FlushAtEnd {
    fn drop(&mut self) {
        flush();
    }
}

/// Publishes the number of dropped lines as a metric. Call this after metrics are installed.
pub(crate) fn measure() {
    millrace_router::metrics::log_lines_dropped(queue().dropped());
}

fn queue() -> &'static LogQueue {
    QUEUE.get_or_init(|| {
        LogQueue::start(standard_error(), millrace_router::metrics::log_lines_dropped, |count| {
            tracing::warn!(
                count,
                "log lines were dropped: standard error was full or broken, or accepted lines too slowly"
            );
        })
    })
}

/// Duplicates the descriptor of standard error. A blocked write to the standard library's handle
/// would hold its lock.
#[cfg(unix)]
fn standard_error() -> Box<dyn Write + Send> {
    use std::os::fd::AsFd;
    match io::stderr().as_fd().try_clone_to_owned() {
        Ok(descriptor) => Box::new(std::fs::File::from(descriptor)),
        Err(_) => Box::new(io::stderr()),
    }
}

#[cfg(not(unix))]
fn standard_error() -> Box<dyn Write + Send> {
    Box::new(io::stderr())
}

/// Parses the filter and returns the invalid directives. The library's lenient parser would print
/// them with `eprintln!`.
fn filter(directives: &str) -> (EnvFilter, Vec<String>) {
    let parts = directives.split(',').map(str::trim).filter(|part| !part.is_empty());
    let (known, ignored): (Vec<&str>, Vec<&str>) = parts.partition(|part| part.parse::<Directive>().is_ok());
    let filter = EnvFilter::builder().parse(known.join(",")).unwrap_or_default();
    (filter, ignored.into_iter().map(str::to_owned).collect())
}

fn panic_text(panic: &PanicHookInfo<'_>) -> String {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("without a name");
    let place = panic.location().map(ToString::to_string).unwrap_or_default();
    let payload = panic.payload();
    let why = payload.downcast_ref::<String>().map(String::as_str);
    let why = why.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("unknown reason");
    format!("the thread {name} panicked at {place}: {why}")
}

/// Returns the backtrace of the panic if `RUST_BACKTRACE` asks for one.
fn backtrace() -> Option<String> {
    let backtrace = Backtrace::capture();
    (backtrace.status() == BacktraceStatus::Captured).then(|| backtrace.to_string())
}

/// A writer that pushes each write to the queue. The subscriber writes whole lines.
struct LineWriter;

impl Write for LineWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        queue().push(line.to_vec());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_directive_leaves_the_others_in_force() {
        let (filter, ignored) = filter("info, millrace_router=debug,=/=,hyper=loud");
        assert_eq!(filter.to_string(), "millrace_router=debug,info");
        assert_eq!(ignored, ["=/=", "hyper=loud"]);
        assert!(super::filter("").1.is_empty());
    }
}
