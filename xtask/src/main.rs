//! Everyday tasks: `cargo xtask`.

use std::process::{Command, ExitCode};

const HELP: &str = "\
cargo xtask TASK

  lint       formatting and clippy, warnings are errors
  test       every test of the workspace, and the real binary over HTTP (what the README calls)
  bench      kernel benchmarks on this machine's processor
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
        Some("bench") => cargo(&["bench", "--package", "millrace-kernels"]),
        _ => {
            print!("{HELP}");
            return ExitCode::SUCCESS;
        }
    };
    if done { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs cargo in the workspace; says whether it succeeded.
fn cargo(arguments: &[&str]) -> bool {
    eprintln!("$ cargo {}", arguments.join(" "));
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    Command::new(cargo).args(arguments).status().is_ok_and(|status| status.success())
}
