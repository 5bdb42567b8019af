//! Runs the kernels' tests on the simulated GPU, with libraries that are compiled in other ways
//! than by the build.

#[path = "../../kernels/cuda/build/sim_flags.rs"]
mod sim_flags;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

pub(crate) use sim_flags::RUNTIME;

use crate::test_report::FailedTarget;
use crate::{cargo, steady};

/// Fiber schedules of the simulated GPU, the cheapest first.
pub(crate) const ORDERS: [&str; 4] = ["forward", "reverse", "greedy", "greedy-reverse"];

/// GPUs whose limits the simulated GPU can have, one of each kind. Each fiber schedule gets another
/// one.
const GPUS: [&str; 4] = ["l40s", "a100", "h100", "b200"];

/// Folder of the crate `millrace-cuda`, from the workspace's root. Its tests run there.
pub(crate) const CRATE: &str = "kernels/cuda";

/// Folder of the CUDA sources, from the workspace's root.
pub(crate) const SOURCES: &str = "kernels/cuda/kernels";

/// Builds the kernels' tests as `cargo xtask test` does. Returns the path of the executable.
///
/// # Errors
/// If the build fails.
pub(crate) fn tests() -> Result<PathBuf, String> {
    let arguments = ["test", "--workspace", crate::features::FEATURES, "--test", "cuda", "--no-run"];
    let built = cargo::build(&arguments, &[], "cuda")?;
    built.executable.ok_or_else(|| "cargo has not said where the tests are".to_owned())
}

/// Compiles one source file for the simulated GPU, with the headers of `tree`: [`SOURCES`] or a
/// copy of it.
///
/// # Errors
/// Messages of the compiler.
pub(crate) fn compile(tree: &Path, file: &Path, flags: &[&str], library: &Path) -> Result<(), String> {
    let compiler = std::env::var_os("CXX").unwrap_or_else(|| "c++".into());
    let mut command = Command::new(&compiler);
    command.args(sim_flags::LANGUAGE).args(sim_flags::WARNINGS);
    command.args(sim_flags::INCLUDES.map(|folder| format!("-I{}", tree.join(folder).display())));
    command.args(flags).args(["-x", "c++"]).arg(file).arg(tree.join(sim_flags::RUNTIME));
    let done = command.arg("-o").arg(library).output();
    let done = done.map_err(|e| format!("{}: {e}", compiler.display()))?;
    match done.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&done.stderr).into_owned()),
    }
}

/// Lists the modules below `tree`: their names and files.
///
/// # Errors
/// If the folder cannot be read.
pub(crate) fn modules(tree: &Path) -> Result<Vec<(String, PathBuf)>, String> {
    let mut all = Vec::new();
    for folder in [tree.to_owned(), tree.join("sim")] {
        let entries = std::fs::read_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        let files = entries.filter_map(|entry| entry.ok().map(|e| e.path()));
        all.extend(files.filter(|file| file.extension().is_some_and(|e| e == "cu")).map(|file| {
            (file.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default(), file)
        }));
    }
    all.sort();
    Ok(all)
}

/// Result of a run of tests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// All tests passed; there were this many.
    Passed(usize),
    /// Name of the first test that failed, or the status of the process.
    Failed(String),
    /// The tests did not end within the time limit.
    TimedOut,
}

/// Runs the tests whose names contain `filter`, until the first fails.
///
/// # Errors
/// If they cannot be started.
pub(crate) fn run(tests: &mut Command, filter: &str, limit: Duration) -> Result<Outcome, String> {
    let child = tests.arg(filter).current_dir(CRATE).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let mut child = child.map_err(|e| format!("the tests: {e}"))?;
    let outcome = follow(&mut child, limit);
    // The call fails if the process has ended already.
    let _ = child.kill();
    let _ = child.wait();
    Ok(outcome)
}

fn follow(child: &mut Child, limit: Duration) -> Outcome {
    let Some(output) = child.stdout.take() else { return Outcome::Failed("no output".to_owned()) };
    let (send, lines) = mpsc::channel();
    std::thread::spawn(move || {
        BufReader::new(output).lines().map_while(Result::ok).try_for_each(|line| send.send(line))
    });
    let end = Instant::now() + limit;
    let mut passed = 0;
    loop {
        match lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(line) if line.starts_with("test ") && line.ends_with("FAILED") => {
                return Outcome::Failed(line.split_whitespace().nth(1).unwrap_or_default().to_owned());
            }
            Ok(line) if line.starts_with("test ") && line.ends_with("ok") => passed += 1,
            Ok(_) => {}
            Err(mpsc::RecvTimeoutError::Timeout) => return Outcome::TimedOut,
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                return match child.wait() {
                    Ok(status) if status.success() => Outcome::Passed(passed),
                    Ok(status) => Outcome::Failed(format!("the process ended with {status}")),
                    Err(e) => Outcome::Failed(e.to_string()),
                };
            }
        }
    }
}

/// Runs every case of the benchmarks once. Returns whether each can be launched.
pub(crate) fn bench() -> bool {
    let start = Instant::now();
    let arguments =
        ["bench", "--workspace", crate::features::FEATURES, "--bench", "cuda", "--profile", "dev"];
    let passed = cargo::cargo(&[&arguments[..], &["--", "--simulate"]].concat());
    println!("bench --simulate: {:.1} s", start.elapsed().as_secs_f64());
    passed
}

/// Runs all tests with one fiber schedule that `cargo xtask test` does not use, on the GPU with the
/// tightest limits. Returns whether they passed.
pub(crate) fn one_order() -> bool {
    run_on(std::iter::once((ORDERS[1], GPUS[0])), None)
}

/// Runs the tests whose names contain `filter`, or all, with every fiber schedule, each on another
/// GPU. Returns whether they passed.
pub(crate) fn all_orders(filter: Option<&str>) -> bool {
    run_on(ORDERS.into_iter().zip(GPUS), filter)
}

/// Runs all tests with every fiber schedule on every GPU. Returns whether they passed.
pub(crate) fn all_orders_on_all_gpus() -> bool {
    run_on(ORDERS.into_iter().flat_map(|order| GPUS.map(|gpu| (order, gpu))), None)
}

fn run_on(mut devices: impl Iterator<Item = (&'static str, &'static str)>, filter: Option<&str>) -> bool {
    let tests = match tests() {
        Ok(tests) => tests,
        Err(e) => {
            eprintln!("{e}");
            return false;
        }
    };
    devices.all(|(order, gpu)| {
        let start = Instant::now();
        let command = || {
            let mut command = Command::new(&tests);
            command.args(["--quiet", "--show-output"]).current_dir(CRATE);
            command.env("MILLRACE_SIM_ORDER", order).env("MILLRACE_SIM_GPU", gpu);
            command
        };
        let again = |failed: &FailedTarget| {
            let mut command = command();
            command.args(["--exact", "--test-threads=1"]).args(&failed.names);
            command
        };
        let passed = steady::run(command().args(filter), again).is_some();
        println!("{order} on {gpu}: {:.1} s", start.elapsed().as_secs_f64());
        passed
    })
}
