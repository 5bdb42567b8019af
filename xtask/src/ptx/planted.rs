//! Plants the mistakes of `kernels/cuda/kernels/sm90/mutations.txt` in the kernel for Hopper. Each
//! must make its tests fail on the interpreter.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::architecture::{ARCHITECTURES, Architecture, FOLDER, ptx_folder};
use super::compile;
use super::jobs::{self, ORDERS, on_interpreter};
use crate::mutate::{self, Mutation};
use crate::simulated::{self, CRATE, Outcome, SOURCES};

/// The list of mistakes.
const LIST: &str = "kernels/cuda/kernels/sm90/mutations.txt";
/// The source that they are in, unless they name another one.
const SOURCE: &str = "sm90/prefill";
/// The tests that must fail.
const TESTS: &str = "prefill::the_hopper_kernel_at_the_edges";
/// The time after which a run with a mistake counts as failed: usually it takes some seconds.
const LIMIT: Duration = Duration::from_secs(120);
/// The time after which the run without mistakes, which must pass, counts as failed.
const LONG_LIMIT: Duration = Duration::from_secs(1800);

/// Tries all mistakes.
///
/// # Errors
/// Those that nobody noticed, or the tests failing without any.
pub(super) fn run(home: &Path, tests: &Path) -> Result<(), String> {
    let hopper = ARCHITECTURES.into_iter().find(|a| a.is_hopper).ok_or("no architecture is Hopper")?;
    for order in ORDERS {
        match try_tests(tests, &ptx_folder(hopper), order, LONG_LIMIT)? {
            Outcome::Passed(n) if n > 0 => {}
            other => return Err(format!("the tests {TESTS} do not pass as they are: {other:?}")),
        }
    }
    let text = fs::read_to_string(LIST).map_err(|e| format!("{LIST}: {e}"))?;
    let all = mutate::parse(SOURCE, &text).map_err(|e| format!("{LIST}: {e}"))?;
    let numbered: Vec<(usize, &Mutation)> = all.iter().enumerate().collect();
    jobs::in_parallel(&numbered, |(number, mutation)| {
        let what = mutation.what();
        match try_one(home, tests, hopper, *number, mutation).map_err(|e| format!("{what}: {e}"))? {
            Some(by) => {
                eprintln!("caught {what} ({by})");
                Ok(())
            }
            None => Err(format!("not caught: {what}")),
        }
    })
}

/// Runs the tests with one mistake. Returns what noticed it.
fn try_one(
    home: &Path,
    tests: &Path,
    hopper: Architecture,
    number: usize,
    mutation: &Mutation,
) -> Result<Option<String>, String> {
    let folder = Path::new(FOLDER).join(format!("planted-{number}"));
    let _ = fs::remove_dir_all(&folder);
    let io = |e: std::io::Error| format!("{}: {e}", folder.display());
    let tree = folder.join("cuda");
    mutate::plant(Path::new(SOURCES), &tree, mutation)?;
    let ptx = folder.join("ptx");
    fs::create_dir_all(&ptx).map_err(io)?;
    // The device reads its architecture from this module.
    fs::copy(ptx_folder(hopper).join("norm.ptx"), ptx.join("norm.ptx")).map_err(io)?;
    compile::one(home, hopper, &tree, &tree.join("sm90/prefill.cu"), &ptx.join("sm90_prefill.ptx"))?;
    let mut caught = None;
    for order in ORDERS {
        caught = match try_tests(tests, &ptx, order, LIMIT)? {
            Outcome::Passed(_) => continue,
            Outcome::Failed(_) => Some(reason(tests, &ptx, order)?),
            Outcome::TimedOut => Some(format!("{}: no end in {LIMIT:?}", order.0)),
        };
        break;
    }
    fs::remove_dir_all(&folder).map_err(io)?;
    Ok(caught)
}

fn command(tests: &Path, ptx: &Path, order: jobs::Order) -> Result<Command, String> {
    let mut command = Command::new(tests);
    on_interpreter(&mut command, ptx, order)?;
    Ok(command)
}

fn try_tests(tests: &Path, ptx: &Path, order: jobs::Order, limit: Duration) -> Result<Outcome, String> {
    simulated::run(&mut command(tests, ptx, order)?, TESTS, limit)
}

/// The line of the tests' output that tells why they fail.
fn reason(tests: &Path, ptx: &Path, order: jobs::Order) -> Result<String, String> {
    let output = command(tests, ptx, order)?.arg(TESTS).current_dir(CRATE).output();
    let output = output.map_err(|e| format!("the tests: {e}"))?;
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    let line = text.lines().find(|line| line.contains("PTX line") || line.contains(": element "));
    Ok(format!("{}: {}", order.0, line.unwrap_or("a test failed").trim()))
}
