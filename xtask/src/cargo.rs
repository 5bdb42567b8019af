//! Cargo as a child: tasks, and builds whose products are wanted.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;

/// Runs cargo in the workspace; says whether it succeeded.
pub(crate) fn cargo(arguments: &[&str]) -> bool {
    cargo_with(arguments, &[])
}

/// The same with more in the environment.
pub(crate) fn cargo_with(arguments: &[&str], environment: &[(&str, &str)]) -> bool {
    eprintln!("$ cargo {}", arguments.join(" "));
    let mut cargo = Command::new(cargo_path());
    cargo.args(arguments).envs(environment.iter().copied());
    cargo.status().is_ok_and(|status| status.success())
}

/// Runs tests, and says how many of them are ignored; `None` if one fails.
pub(crate) fn cargo_test(arguments: &[&str], environment: &[(&str, &str)]) -> Option<usize> {
    eprintln!("$ cargo {}", arguments.join(" "));
    let mut cargo = Command::new(cargo_path());
    cargo.args(arguments).envs(environment.iter().copied()).stdout(Stdio::piped());
    let mut cargo = cargo.spawn().ok()?;
    let mut ignored = 0;
    for line in BufReader::new(cargo.stdout.take()?).lines().map_while(Result::ok) {
        println!("{line}");
        let result = line.strip_prefix("test result: ");
        let count =
            result.and_then(|rest| rest.split_once(" ignored")?.0.rsplit(' ').next()?.parse::<usize>().ok());
        ignored += count.unwrap_or(0);
    }
    cargo.wait().is_ok_and(|status| status.success()).then_some(ignored)
}

/// What a build has made.
#[derive(Debug, Default)]
pub(crate) struct Built {
    /// The executable of the target that was asked for.
    pub(crate) executable: Option<PathBuf>,
    /// Where the build script of `millrace-kernels` has written.
    pub(crate) kernels_out: Option<PathBuf>,
}

/// Runs a cargo command that builds; finds the executable of the target `target`.
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
        let is_kernels = message["package_id"].as_str().is_some_and(|id| id.contains("/kernels#"));
        if message["reason"] == "build-script-executed" && is_kernels {
            built.kernels_out = path(&message["out_dir"]);
        }
    }
    Ok(built)
}

/// The cargo that runs this program.
pub(crate) fn cargo_path() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}
