//! Runs Cargo as a child process.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::steady;
use crate::test_report::TestReport;

/// Runs Cargo in the workspace. Returns whether it succeeded.
pub(crate) fn cargo(arguments: &[&str]) -> bool {
    cargo_with(arguments, &[])
}

/// Runs Cargo with additional environment variables. Returns whether it succeeded.
pub(crate) fn cargo_with(arguments: &[&str], environment: &[(&str, &str)]) -> bool {
    eprintln!("$ cargo {}", arguments.join(" "));
    let mut cargo = Command::new(cargo_path());
    cargo.args(arguments).envs(environment.iter().copied());
    cargo.status().is_ok_and(|status| status.success())
}

/// Runs the tests of all targets, with `harness` as arguments of the test harness, and those that
/// fail once more ([`steady`]). Returns what the output says about them, or `None` if one fails.
pub(crate) fn cargo_test(
    arguments: &[&str],
    harness: &[&str],
    environment: &[(&str, &str)],
) -> Option<TestReport> {
    let command = |targets: &[String], names: &[String]| {
        let mut cargo = Command::new(cargo_path());
        cargo.args(arguments).args(targets).args(["--no-fail-fast", "--"]).args(harness).arg("--show-output");
        if !names.is_empty() {
            cargo.args(["--exact", "--test-threads=1"]).args(names);
        }
        eprintln!("$ {cargo:?}");
        cargo.envs(environment.iter().copied());
        cargo
    };
    steady::run(&mut command(&[], &[]), |failed| command(&failed.selection, &failed.names))
}

/// Products of a build.
#[derive(Debug, Default)]
pub(crate) struct Built {
    /// Executable of the requested target.
    pub(crate) executable: Option<PathBuf>,
    /// Output folder of the build script of `millrace-cuda`.
    pub(crate) kernels_out: Option<PathBuf>,
}

/// Runs a Cargo command that builds, and finds the executable of the target named `target`.
///
/// # Errors
/// If the build fails.
pub(crate) fn build(arguments: &[&str], environment: &[(&str, &str)], target: &str) -> Result<Built, String> {
    eprintln!("$ cargo {}", arguments.join(" "));
    let mut cargo = Command::new(cargo_path());
    cargo.args(arguments).args(["--message-format", "json-render-diagnostics"]);
    cargo.envs(environment.iter().copied()).stderr(Stdio::inherit());
    let done = cargo.output().map_err(|e| format!("cargo: {e}"))?;
    if !done.status.success() {
        return Err(format!("cargo {} failed", arguments.join(" ")));
    }
    let mut built = Built::default();
    for line in String::from_utf8_lossy(&done.stdout).lines() {
        let Ok(message) = serde_json::from_str::<Value>(line) else { continue };
        let path = |value: &Value| value.as_str().map(PathBuf::from);
        if message["reason"] == "compiler-artifact" && message["target"]["name"] == target {
            built.executable = path(&message["executable"]).or(built.executable);
        }
        let is_kernels = message["package_id"].as_str().is_some_and(|id| id.contains("#millrace-cuda@"));
        if message["reason"] == "build-script-executed" && is_kernels {
            built.kernels_out = path(&message["out_dir"]);
        }
    }
    Ok(built)
}

/// Returns the path of the Cargo that runs this program.
pub(crate) fn cargo_path() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}
