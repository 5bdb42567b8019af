//! Everyday tasks: `cargo xtask`.

mod smoke;

use std::process::{Command, ExitCode};

const HELP: &str = "\
cargo xtask TASK

  lint       formatting and clippy, warnings are errors
  test       every test of the workspace, the real binary over HTTP among them (what the README calls)
  smoke      the README's first command, as it stands there: serve the demo model and stream an answer from it
  bench      benchmarks of the kernels and of the whole server, on this machine's processor
  soak       random traffic with random kills of the shard, ten minutes: cargo xtask soak [MINUTES]
";

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let task = arguments.next();
    let done = match task.as_deref() {
        Some("lint") => {
            cargo(&["fmt", "--all", "--check"])
                && cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])
        }
        Some("test") => cargo(&["test", "--workspace"]),
        Some("smoke") => smoke::run(),
        Some("bench") => {
            cargo(&["bench", "--package", "millrace-kernels"])
                && cargo(&["bench", "--package", "millrace-integration-tests"])
        }
        Some("soak") => soak(arguments.next().as_deref().unwrap_or("10")),
        None | Some("help") => {
            print!("{HELP}");
            true
        }
        Some(unknown) => {
            eprint!("unknown task `{unknown}`\n\n{HELP}");
            false
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
    let test = "test --release --package millrace-integration-tests --test soak -- --nocapture"
        .split(' ')
        .collect::<Vec<_>>();
    cargo_with(&test, &[("MILLRACE_SOAK_SECONDS", &seconds)])
}

/// Runs cargo in the workspace; says whether it succeeded.
fn cargo(arguments: &[&str]) -> bool {
    cargo_with(arguments, &[])
}

fn cargo_with(arguments: &[&str], environment: &[(&str, &str)]) -> bool {
    eprintln!("$ cargo {}", arguments.join(" "));
    let mut cargo = Command::new(cargo_path());
    cargo.args(arguments).envs(environment.iter().copied());
    cargo.status().is_ok_and(|status| status.success())
}

fn cargo_path() -> std::ffi::OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}
