//! Everyday tasks: `cargo xtask`.

mod smoke;

use std::process::{Command, ExitCode};

const HELP: &str = "\
cargo xtask TASK

  lint       formatting and clippy, warnings are errors
  test       every test of the workspace, the real binary over HTTP among them (what the README calls)
  smoke      the README's first command, as it stands there: serve the demo model and stream an answer from it
  bench      benchmarks of the kernels and of the whole server, on this machine's processor
";

fn main() -> ExitCode {
    let task = std::env::args().nth(1);
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

/// Runs cargo in the workspace; says whether it succeeded.
fn cargo(arguments: &[&str]) -> bool {
    eprintln!("$ cargo {}", arguments.join(" "));
    Command::new(cargo_path()).args(arguments).status().is_ok_and(|status| status.success())
}

fn cargo_path() -> std::ffi::OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}
