//! The targets of `fuzz/` under libFuzzer: `cargo xtask fuzz`.
//!
//! The stable compiler does the instrumentation. There are no sanitizers, because the fuzzed code
//! has no `unsafe`, except for the mapping of files.

use std::path::Path;
use std::process::Command;

use crate::cargo::{cargo_path, cargo_with};

const TARGETS: &[&str] = &[
    "adapters",
    "bodies",
    "calls",
    "embedders",
    "grammars",
    "model_files",
    "models",
    "pytorch",
    "safetensors",
    "templates",
    "text_files",
    "tokenizers",
    "vocabularies",
];

/// Compiler flags that count the edges reached and report comparisons to libFuzzer.
const INSTRUMENTED: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing";

/// Limits of one input: seconds and megabytes of memory.
const BOUNDS: [&str; 2] = ["-timeout=20", "-rss_limit_mb=4096"];

/// Runs one target, or all, for `seconds` each. Returns whether nothing was found.
///
/// Inputs that fail are written to `target/fuzz/found`. Add them to `fuzz/seeds` together with the
/// fix.
pub(crate) fn run(target: Option<&str>, seconds: &str) -> bool {
    let chosen: Vec<_> = TARGETS.iter().filter(|name| target.is_none_or(|target| target == **name)).collect();
    if chosen.is_empty() || seconds.parse::<u32>().is_err() {
        eprintln!("cargo xtask fuzz [TARGET] [SECONDS], with a target of {}", TARGETS.join(", "));
        return false;
    }
    let Some(host) = host() else { return false };
    // With a target named, build scripts and macros are not instrumented.
    let build = [
        "build",
        "--release",
        "--manifest-path",
        "fuzz/Cargo.toml",
        "--target-dir",
        "target/fuzz",
        "--target",
        &host,
    ];
    if !cargo_with(&build, &[("RUSTFLAGS", INSTRUMENTED)]) {
        return false;
    }
    let binaries = Path::new("target/fuzz").join(&host).join("release");
    chosen.into_iter().all(|name| {
        let grown = format!("target/fuzz/corpus/{name}");
        if std::fs::create_dir_all(&grown).and(std::fs::create_dir_all("target/fuzz/found")).is_err() {
            return false;
        }
        let mut fuzzer = Command::new(binaries.join(name));
        fuzzer
            .args(BOUNDS)
            .arg(format!("-max_total_time={seconds}"))
            .arg("-artifact_prefix=target/fuzz/found/");
        fuzzer.arg("-print_final_stats=1").arg(grown).arg(format!("fuzz/seeds/{name}"));
        eprintln!("$ {fuzzer:?}");
        fuzzer.status().is_ok_and(|status| status.success())
    })
}

fn host() -> Option<String> {
    let rustc = Path::new(&cargo_path()).with_file_name("rustc");
    let told = Command::new(rustc).args(["--print", "host-tuple"]).output().ok()?;
    Some(String::from_utf8(told.stdout).ok()?.trim().to_owned())
}
