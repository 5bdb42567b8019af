//! Everyday tasks: `cargo xtask`.

use std::process::{Command, ExitCode};

const HELP: &str = "\
cargo xtask TASK

  lint       formatting and clippy, warnings are errors
  test       every test of the workspace, and the real binary over HTTP (what the README calls)
  bench      kernel benchmarks on this machine's processor
  soak       random traffic with random kills of the shard: cargo xtask soak [MINUTES]
  http       load a running server: cargo xtask http [URL] [CLIENTS] [TOKENS]
";

fn main() -> ExitCode {
    let task = std::env::args().nth(1);
    let done = match task.as_deref() {
        Some("lint") => {
            cargo(&["fmt", "--all", "--check"])
                && cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])
        }
        Some("test") => cargo(&["test", "--workspace"]),
        Some("soak") => soak(std::env::args().nth(2).as_deref().unwrap_or("10")),
        Some("bench") => cargo(&["bench", "--package", "millrace-kernels"]),
        _ => {
            print!("{HELP}");
            return ExitCode::SUCCESS;
        }
    };
    if done { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Minutes of random traffic and random kills, against the release build.
fn soak(minutes: &str) -> bool {
    let Ok(minutes) = minutes.parse::<f64>() else {
        eprintln!("{minutes}: not a number of minutes");
        return false;
    };
    let seconds = ((minutes * 60.0) as u64).max(1).to_string();
    let test = [
        "test",
        "--release",
        "--package",
        "millrace-integration-tests",
        "--test",
        "soak",
        "--",
        "--nocapture",
    ];
    cargo_with(&test, &[("MILLRACE_SOAK_SECONDS", &seconds)])
}

/// Runs cargo in the workspace; says whether it succeeded.
fn cargo(arguments: &[&str]) -> bool {
    cargo_with(arguments, &[])
}

fn cargo_with(arguments: &[&str], environment: &[(&str, &str)]) -> bool {
    eprintln!("$ cargo {}", arguments.join(" "));
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    Command::new(cargo)
        .args(arguments)
        .envs(environment.iter().copied())
        .status()
        .is_ok_and(|status| status.success())
}
