//! `millrace`: serve a language model, talk to it, or look into its files.

mod cli;
mod commands;
mod demo;
mod logging;
mod model;
mod nodes;
mod progress;
mod report;
mod stack;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let outcome = match cli::Cli::parse().command {
        cli::Command::Serve(args) => commands::serve::run(*args),
        cli::Command::Chat(args) => commands::chat::run(*args),
        cli::Command::Generate(args) => commands::generate::run(*args),
        cli::Command::Inspect(args) => commands::inspect::run(&args),
        cli::Command::Shard(args) => commands::shard::run(*args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
