//! Compiles the CUDA kernels for every architecture and checks their machine code against the table
//! of promises.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use crate::sass::{self, Kernel, Promise};
use crate::{cargo, resources, toolkit};

/// The table of promises.
const PROMISES: &str = "kernels/cuda/sass.txt";

/// The file that the table of registers and shared memory is written to.
const REPORT: &str = "target/cuda-kernels.txt";

/// Returns whether everything compiled without a warning and keeps its promises.
pub(crate) fn run() -> bool {
    match all() {
        Ok(()) => true,
        Err(e) => {
            eprintln!("{e}");
            false
        }
    }
}

fn all() -> Result<(), String> {
    let clock = Instant::now();
    let done = |what: &str| eprintln!("[{:>4.0} s] {what}", clock.elapsed().as_secs_f64());
    let home = toolkit::install()?;
    done("the toolkit is there");
    let (home_text, libraries) = (home.to_string_lossy(), home.join("lib"));
    let (nvcc, libraries) = (home.join("bin/nvcc"), libraries.to_string_lossy());
    let environment = [
        ("CUDA_HOME", &*home_text),
        ("NVCC", &*nvcc.to_string_lossy()),
        // Empty means every architecture.
        ("MILLRACE_CUDA_ARCHITECTURES", ""),
    ];
    let arguments = ["test", "--package", "millrace-cuda", "--features", "embed-cubin", "--lib", "--no-run"];
    let built = cargo::build(&arguments, &environment, "millrace_cuda")?;
    let (Some(tests), Some(out)) = (built.executable, built.kernels_out) else {
        return Err("cargo has not said where the build is".to_owned());
    };
    done("every kernel compiles for every architecture, without warnings or spills");
    let mut nvrtc = Command::new(tests);
    nvrtc.env("LD_LIBRARY_PATH", &*libraries).env("MILLRACE_TEST_NVRTC", "1");
    if !nvrtc.status().is_ok_and(|status| status.success()) {
        return Err("the tests of NVRTC failed".to_owned());
    }
    done("NVRTC compiles them too");
    let promises = fs::read_to_string(PROMISES).map_err(|e| format!("{PROMISES}: {e}"))?;
    let promises = sass::parse(&promises).map_err(|e| format!("{PROMISES}: {e}"))?;
    let kernels = disassemble(&home, &fatbins(&out)?, &promises)?;
    let report = table(&kernels);
    fs::write(REPORT, &report).map_err(|e| format!("{REPORT}: {e}"))?;
    println!("{report}");
    let broken = sass::broken(&promises, &kernels);
    if !broken.is_empty() {
        return Err(format!(
            "promises of {PROMISES} that the machine code does not keep:\n  {}",
            broken.join("\n  ")
        ));
    }
    done("the machine code keeps its promises");
    resources::check(&kernels)?;
    done("the simulated device knows the resources of every kernel");
    Ok(())
}

/// Returns the fat binaries of the newest build, which the generated table of modules names.
fn fatbins(out: &Path) -> Result<Vec<PathBuf>, String> {
    let table = fs::read_to_string(out.join("modules.rs")).map_err(|e| format!("{}: {e}", out.display()))?;
    let files = table.split("include_bytes!(\"").skip(1).filter_map(|rest| rest.split('"').next());
    let files: Vec<PathBuf> = files.map(PathBuf::from).collect();
    if files.is_empty() { Err("the build has made no machine code".to_owned()) } else { Ok(files) }
}

/// Disassembles the kernels for every architecture that a promise names.
fn disassemble(home: &Path, files: &[PathBuf], promises: &[Promise]) -> Result<Vec<Kernel>, String> {
    let mut architectures: Vec<&String> = promises.iter().flat_map(|p| &p.architectures).collect();
    architectures.sort();
    architectures.dedup();
    let jobs: Vec<(&PathBuf, &String)> =
        files.iter().flat_map(|file| architectures.iter().map(move |a| (file, *a))).collect();
    let (next, found) = (AtomicUsize::new(0), Mutex::new(Ok(Vec::new())));
    let work = || {
        while let Some((file, architecture)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
            let one = cuobjdump(home, file, architecture);
            let mut all = found.lock().unwrap_or_else(PoisonError::into_inner);
            match (one, &mut *all) {
                (Ok(kernels), Ok(all)) => all.extend(kernels),
                (Err(e), all) => *all = Err(e),
                (Ok(_), Err(_)) => {}
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    found.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn cuobjdump(home: &Path, file: &Path, architecture: &str) -> Result<Vec<Kernel>, String> {
    let dump = |what: &str| {
        let mut command = Command::new(home.join("bin/cuobjdump"));
        // cuobjdump looks for nvdisasm in PATH.
        let path = std::env::var_os("PATH").unwrap_or_default();
        let paths = std::iter::once(home.join("bin")).chain(std::env::split_paths(&path));
        command.env("PATH", std::env::join_paths(paths).unwrap_or(path));
        command.args([what, "-arch", &format!("sm_{architecture}")]).arg(file);
        let done = command.output().map_err(|e| format!("cuobjdump: {e}"))?;
        let said = String::from_utf8_lossy(&done.stdout).into_owned();
        match done.status.success() {
            true => Ok(said),
            false => Err(format!("{command:?}: {}", String::from_utf8_lossy(&done.stderr))),
        }
    };
    let mut kernels = sass::instructions(&dump("-sass")?, architecture);
    sass::resources(&dump("-res-usage")?, &mut kernels);
    Ok(kernels)
}

/// Formats registers per thread and bytes of static shared memory, per kernel and architecture.
fn table(kernels: &[Kernel]) -> String {
    let mut rows: BTreeMap<&str, Vec<&Kernel>> = BTreeMap::new();
    for kernel in kernels {
        rows.entry(&kernel.name).or_default().push(kernel);
    }
    let mut text = format!("{:<56} registers per thread, static shared memory, instructions\n", "kernel");
    for (name, mut all) in rows {
        all.sort_by(|a, b| a.architecture.cmp(&b.architecture));
        let each: Vec<String> = all
            .iter()
            .map(|k| format!("sm_{}: {:>3} {:>6} B {:>6}", k.architecture, k.registers, k.shared, k.length))
            .collect();
        writeln!(text, "{name:<56} {}", each.join(" | ")).expect("strings take all");
    }
    text
}
