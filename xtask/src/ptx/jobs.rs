//! Runs the kernels' tests on the interpreter: one process for each module, architecture and order.

use std::fmt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use super::architecture::{Architecture, ptx_folder};
use super::coverage;
use crate::simulated::CRATE;
use crate::steady::MARK;

/// The order of warps, and the moment at which copies arrive.
pub(super) type Order = (&'static str, &'static str);

/// The orders that are tried.
pub(super) const ORDERS: [Order; 2] = [("forward", "late"), ("reverse", "early")];

/// Modules of the tests that are about the simulated GPU and other hosts' memory.
const NOT_ON_DEVICE: [&str; 6] = ["arena", "common", "nccl", "peers", "reference", "sim"];

/// Modules whose tests take long: an eighth of their random cases runs.
const SLOW: [&str; 3] = ["prefill", "quant_gemm", "sample"];

/// The tests of a module.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) module: String,
    pub(super) architecture: Architecture,
    pub(super) order: Order,
    /// A part of the tests' names.
    pub(super) filter: Option<String>,
    /// Whether as many random cases of slow tests run as on the simulated GPU.
    pub(super) is_whole: bool,
}

impl fmt::Display for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Job { module, architecture, order: (order, arrival), .. } = self;
        write!(f, "{module} ({}, {order}, {arrival})", architecture.name)
    }
}

/// The environment in which tests run on the interpreter with the PTX of a folder.
pub(super) fn on_interpreter(
    command: &mut Command,
    ptx: &Path,
    (order, arrival): Order,
) -> Result<(), String> {
    let ptx = ptx.canonicalize().map_err(|e| format!("{}: {e}", ptx.display()))?;
    command.env("MILLRACE_TEST_DEVICE", "ptx").env("MILLRACE_PTX", ptx);
    command.env("MILLRACE_SIM_ORDER", order).env("MILLRACE_PTX_ARRIVAL", arrival);
    Ok(())
}

/// The modules of the tests that run on any device.
///
/// # Errors
/// If the tests cannot be listed.
pub(super) fn modules(tests: &Path) -> Result<Vec<String>, String> {
    let listed = Command::new(tests).args(["--list", "--format=terse"]).output();
    let listed = listed.map_err(|e| format!("the tests: {e}"))?;
    let text = String::from_utf8_lossy(&listed.stdout).into_owned();
    let mut modules: Vec<String> =
        text.lines().filter_map(|line| Some(line.split_once("::")?.0.to_owned())).collect();
    modules.dedup();
    modules.retain(|module| !NOT_ON_DEVICE.contains(&module.as_str()));
    // The longest ones begin first.
    modules.sort_by_key(|module| !SLOW.contains(&module.as_str()));
    if modules.is_empty() { Err("the tests have no modules".to_owned()) } else { Ok(modules) }
}

/// Runs jobs, as many at a time as there are CPUs, and those that fail once more, alone.
///
/// # Errors
/// The output of the jobs that failed.
pub(super) fn run(tests: &Path, jobs: &[Job]) -> Result<(), String> {
    let failed = Mutex::new(Vec::new());
    in_parallel(jobs, |job| {
        if let Err(error) = run_one(tests, job)? {
            eprintln!("{error}");
            failed.lock().unwrap_or_else(PoisonError::into_inner).push(job);
        }
        Ok(())
    })?;
    // Those that failed beside another one run once more, alone.
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    for job in failed {
        run_one(tests, job)??;
        println!("{MARK}{job}");
    }
    Ok(())
}

/// Runs a job. The inner result is that of its tests, with their output if one fails.
///
/// # Errors
/// If the job cannot be run.
fn run_one(tests: &Path, job: &Job) -> Result<Result<(), String>, String> {
    let begin = Instant::now();
    let mut command = Command::new(tests);
    command.args(["--quiet", "--test-threads=1"]);
    command.arg(job.filter.clone().unwrap_or_else(|| format!("{}::", job.module))).current_dir(CRATE);
    on_interpreter(&mut command, &ptx_folder(job.architecture), job.order)?;
    let name = format!("{}-{}-{}", job.module, job.architecture.name, job.order.0);
    command.env("MILLRACE_PTX_LAUNCHED", coverage::file(&name)?);
    if job.is_whole || !SLOW.contains(&job.module.as_str()) {
        command.env("MILLRACE_TEST_ALL_CASES", "1");
    }
    let done = command.output().map_err(|e| format!("{job}: {e}"))?;
    eprintln!("{job}: {:.1} s", begin.elapsed().as_secs_f64());
    Ok(match done.status.success() {
        true => Ok(()),
        false => Err(format!("{job} failed:\n{}", String::from_utf8_lossy(&done.stdout))),
    })
}

/// Does work for all items on as many threads as there are CPUs.
///
/// # Errors
/// All errors, one after the other.
pub(super) fn in_parallel<'a, T: Sync>(
    items: &'a [T],
    work: impl Fn(&'a T) -> Result<(), String> + Sync,
) -> Result<(), String> {
    let (next, errors) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(error) = work(item) {
                        errors.lock().unwrap_or_else(PoisonError::into_inner).push(error);
                    }
                }
            });
        }
    });
    let errors = errors.into_inner().unwrap_or_else(PoisonError::into_inner);
    if errors.is_empty() { Ok(()) } else { Err(errors.join("\n")) }
}
