//! Runs the PTX that nvcc makes of the CUDA kernels on the interpreter, and plants mistakes in the
//! kernel for Hopper: `cargo xtask ptx`.

mod architecture;
mod compile;
mod coverage;
mod jobs;
mod planted;

use std::path::Path;
use std::time::Instant;

use crate::{simulated, toolkit};
use architecture::{ARCHITECTURES, FOLDER, ptx_folder};
use jobs::Job;

/// The part of the tests that runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scope<'a> {
    /// All tests in one order for each architecture, and the planted mistakes.
    Usual,
    /// All tests in both orders, with as many random cases as on the simulated GPU.
    Whole,
    /// The planted mistakes alone.
    Mutations,
    /// The tests whose names contain a text.
    Named(&'a str),
}

/// Runs the tests whose names contain `filter`, or all and the planted mistakes. The filter `all`
/// stands for all tests in both orders, `mutations` for the planted mistakes alone. Returns whether
/// everything passed.
pub(crate) fn run(filter: Option<&str>) -> bool {
    let scope = match filter {
        None => Scope::Usual,
        Some("all") => Scope::Whole,
        Some("mutations") => Scope::Mutations,
        Some(name) => Scope::Named(name),
    };
    match everything(scope) {
        Ok(()) => true,
        Err(e) => {
            eprintln!("{e}");
            false
        }
    }
}

fn everything(scope: Scope<'_>) -> Result<(), String> {
    let clock = Instant::now();
    let done = |what: &str| eprintln!("[{:>4.0} s] {what}", clock.elapsed().as_secs_f64());
    let home = toolkit::install()?;
    let folder = Path::new(FOLDER);
    for architecture in ARCHITECTURES {
        compile::all(&home, architecture, &ptx_folder(architecture))?;
    }
    done("nvcc has made the PTX of every module");
    let tests = simulated::tests()?;
    done("the tests are built");
    if scope != Scope::Mutations {
        coverage::clear(folder)?;
        jobs::run(&tests, &chosen(&tests, scope)?)?;
        done("the tests pass");
    }
    if matches!(scope, Scope::Usual | Scope::Whole) {
        coverage::check(folder)?;
        done("every kernel ran");
    }
    if !matches!(scope, Scope::Named(_)) {
        planted::run(&home, &tests)?;
        done("every planted mistake was caught");
    }
    Ok(())
}

/// The runs of the tests of a scope, the longest first.
fn chosen(tests: &Path, scope: Scope<'_>) -> Result<Vec<Job>, String> {
    let mut chosen = Vec::new();
    for module in jobs::modules(tests)? {
        for architecture in ARCHITECTURES {
            let orders: &[jobs::Order] = match scope {
                Scope::Whole => &jobs::ORDERS,
                // Each architecture has one order, so that both are tried.
                _ if architecture.is_hopper => &jobs::ORDERS[..1],
                _ => &jobs::ORDERS[1..],
            };
            for order in orders {
                let filter = match scope {
                    Scope::Named(name) => Some(name.to_owned()),
                    _ => None,
                };
                let is_whole = scope == Scope::Whole;
                chosen.push(Job { module: module.clone(), architecture, order: *order, filter, is_whole });
            }
        }
    }
    if let Scope::Named(name) = scope {
        chosen.retain(|job| name.starts_with(&job.module) || job.module.starts_with(name));
        if chosen.is_empty() {
            return Err(format!("{name}: must begin with the name of a module of kernels/cuda/tests/cuda"));
        }
    }
    Ok(chosen)
}
