//! The `millrace` binary: serves a language model, chats with it, or inspects its files.

mod adapter_config;
mod adapters;
mod allocator;
mod assets;
mod cli;
mod commands;
mod config;
mod devices;
mod disk_cache;
mod draft_model;
mod environment;
mod hub;
#[cfg(target_os = "linux")]
mod init;
mod logging;
mod model;
mod nodes;
mod progress;
mod reload;
mod report;
mod shard_message;
mod sizes;
mod stack;
mod telemetry;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches};

/// The exit code of a command line that is not understood, as the library for command lines has it.
const USAGE_ERROR: u8 = 2;

fn main() -> ExitCode {
    #[cfg(target_os = "linux")]
    if init::is_process_1() {
        return init::run().map_or_else(
            |error| {
                eprintln!("error: cannot run as process 1: {error}");
                ExitCode::FAILURE
            },
            ExitCode::from,
        );
    }
    let _flush = logging::FlushAtEnd;
    let (arguments, replaced) = match cli::translated(cli::with_subcommand(std::env::args_os().collect())) {
        Ok(translated) => translated,
        Err(sentence) => {
            logging::say(&format!("error: {sentence}"));
            return ExitCode::from(USAGE_ERROR);
        }
    };
    let subcommand = arguments.get(1).map(|name| name.to_string_lossy()).unwrap_or_default();
    let (command, warnings) =
        environment::without_foreign(cli::Cli::command(), &subcommand, |name| std::env::var_os(name));
    replaced.iter().chain(&warnings).for_each(|warning| logging::say(&format!("warning: {warning}")));
    let outcome = config::parse(command, &arguments).and_then(|matches| {
        let cli = cli::Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
        run(cli.command.with_named_model())
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            logging::say(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run(command: cli::Command) -> anyhow::Result<()> {
    #[cfg(unix)]
    if command.only_prints() {
        end_at_closed_pipe();
    }
    match command {
        cli::Command::Serve(args) => commands::serve::run(*args),
        cli::Command::Chat(args) => commands::chat::run(*args),
        cli::Command::Generate(args) => commands::generate::run(*args),
        cli::Command::Download(args) => commands::download::run(&args),
        cli::Command::Inspect(args) => commands::inspect::run(&args),
        cli::Command::Quantize(args) => commands::quantize::run(&args),
        cli::Command::Convert(args) => commands::convert::run(&args),
        cli::Command::Bench(args) => commands::bench::run(&args),
        cli::Command::BenchHttp(args) => commands::bench_http::run(*args),
        cli::Command::Gpus => commands::gpus::count(),
        cli::Command::Doctor => commands::gpus::check(),
        cli::Command::Completions(args) => commands::completions::run(&args),
        cli::Command::Man(args) => commands::completions::manual(&args),
        cli::Command::Health(args) => commands::health::run(&args),
        cli::Command::RestartGroups(args) => commands::restart_groups::run(&args),
        cli::Command::Env => commands::env::run(),
        cli::Command::PrintSchema => {
            println!("{}", millrace_router::http::openapi());
            Ok(())
        }
        cli::Command::GrammarWorker => Ok(millrace_answers::grammar::worker::run()?),
        cli::Command::Shard(args) => commands::shard::run(*args),
    }
}

/// Lets the process end like other programs when nobody reads its output any more, as in `millrace
/// inspect | head`. Rust ignores the signal, so that printing would panic.
#[cfg(unix)]
fn end_at_closed_pipe() {
    // SAFETY: the default action replaces no handler of this process, and no thread runs yet.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}
