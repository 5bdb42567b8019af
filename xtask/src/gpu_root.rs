//! Starts the programs of `target/gpu` in an empty root file system with a stand-in for NVIDIA's
//! driver, as on a bare machine: a file that lies at a path of the build, or a library that is
//! missing there, makes this fail. Then the whole check runs without a GPU, at another path.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::gpu_pack::{self, ARCHIVE, FOLDER as PROGRAMS};

/// The root file system.
const ROOT: &str = "target/gpu-root";
/// Source of the stand-in for the driver.
const STUB: &str = "integration-tests/gpu/stub_driver.c";
/// Folder of the stand-in in the root.
const DRIVER: &str = "driver";

/// Tests of the kernels that need memory and streams of a GPU but no kernel. Those of the groups of
/// ranks skip themselves.
const TESTS: [&str; 6] = [
    "arena::",
    "nccl::",
    "peers::",
    "streams::pinned_memory_goes_there_and_back",
    "streams::streams_wait_for_events_of_each_other",
    "streams::time_passes_between_timed_events",
];

/// Runs the programs. Returns whether all of them work.
pub(crate) fn run() -> bool {
    let checked = check().and_then(|tests| {
        println!("the programs of {PROGRAMS} start in an empty root; {tests} tests passed");
        dry_run()
    });
    match checked {
        Ok(()) => true,
        Err(e) => {
            eprintln!("{e}");
            false
        }
    }
}

fn check() -> Result<usize, String> {
    let programs = ["kernel-tests", "millrace"];
    let root = prepare(&programs)?;
    let version = inside(&root, "millrace", &["--version"])?;
    if !version.starts_with("millrace ") {
        return Err(format!("millrace --version: {version}"));
    }
    // The stand-in has no NVRTC beside it, so `doctor` fails; but it must see the GPU.
    let examined = inside_any(&root, "millrace", &["doctor"])?;
    if !examined.contains("Stub GPU, compute capability 8.0") {
        return Err(format!("millrace doctor does not see the GPU:\n{examined}"));
    }
    let tests =
        inside(&root, "kernel-tests", &[&["--test-threads=1", "--show-output"], &TESTS[..]].concat())?;
    let passed = tests.lines().filter(|line| line.starts_with("test ") && line.ends_with("ok")).count();
    let skipped = tests.lines().filter(|line| line.starts_with("skipped: ")).count();
    if passed <= skipped {
        return Err(format!("{passed} tests passed and {skipped} were skipped:\n{tests}"));
    }
    Ok(passed)
}

/// Runs the parts of the check that need no PyTorch, on simulated GPUs and the CPU, with nothing
/// but the files that go to a machine with a GPU.
fn dry_run() -> Result<(), String> {
    let root = fs::canonicalize("target").map_err(|e| format!("target: {e}"))?.join("gpu-dry");
    let _ = fs::remove_dir_all(&root);
    for file in gpu_pack::files()?.into_iter().chain([ARCHIVE.to_owned()]) {
        let to = root.join(&file);
        let folder = to.parent().map_or(Ok(()), fs::create_dir_all);
        folder.and_then(|()| fs::copy(&file, &to)).map_err(|e| format!("{}: {e}", to.display()))?;
    }
    let mut check = Command::new("bash");
    check.args(["integration-tests/gpu/check.sh", "tests", "bench", "serve"]).current_dir(&root).env_clear();
    check.env("PATH", std::env::var_os("PATH").unwrap_or_default()).env("OUT", root.join("out"));
    check.env("MILLRACE_CHECK_DEVICE", "cpu").env("MILLRACE_CHECK_SECONDS", "900").stdin(Stdio::null());
    match check.status() {
        Ok(status) if status.success() => {}
        other => return Err(format!("{check:?} in {}: {other:?}", root.display())),
    }
    let results = fs::read_dir(root.join("out")).map_err(|e| e.to_string())?.count();
    if results > 8 { Err(format!("{results} files are results, more than 8")) } else { Ok(()) }
}

/// Makes the root: the programs, the libraries that they are linked with, and the stand-in.
fn prepare(programs: &[&str]) -> Result<PathBuf, String> {
    let root = PathBuf::from(ROOT);
    let _ = fs::remove_dir_all(&root);
    let io = |path: &Path| {
        let path = path.display().to_string();
        move |e: std::io::Error| format!("{path}: {e}")
    };
    let driver = root.join(DRIVER);
    fs::create_dir_all(&driver).map_err(io(&driver))?;
    // Tests write temporary files.
    fs::create_dir_all(root.join("tmp")).map_err(io(&root))?;
    let mut libraries = BTreeSet::new();
    for program in programs {
        let from = Path::new(PROGRAMS).join(program);
        fs::copy(&from, root.join(program))
            .map_err(|e| format!("{}: {e}; `cargo xtask gpu-pack` makes it", from.display()))?;
        libraries.extend(libraries_of(&from)?);
    }
    for library in libraries {
        let to = root.join(library.strip_prefix("/").unwrap_or(&library));
        if let Some(folder) = to.parent() {
            fs::create_dir_all(folder).map_err(io(folder))?;
        }
        fs::copy(&library, &to).map_err(io(&library))?;
    }
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let mut command = Command::new(compiler);
    command.args(["-shared", "-fPIC", "-O1", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror"]);
    command.arg(STUB).arg("-o").arg(driver.join("libcuda.so.1"));
    match command.status() {
        Ok(status) if status.success() => Ok(root),
        other => Err(format!("{STUB} does not compile: {other:?}")),
    }
}

/// The files of the shared libraries that the loader maps for this program, the loader included.
fn libraries_of(program: &Path) -> Result<Vec<PathBuf>, String> {
    let listed = Command::new("ldd").arg(program).output().map_err(|e| format!("ldd: {e}"))?;
    let text = String::from_utf8_lossy(&listed.stdout).into_owned();
    let paths = text.lines().filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')));
    let paths: Vec<PathBuf> = paths.map(PathBuf::from).collect();
    if paths.is_empty() { Err(format!("ldd {}: {text}", program.display())) } else { Ok(paths) }
}

/// Runs a program in the root and returns its output.
///
/// # Errors
/// The output, if the program fails.
fn inside(root: &Path, program: &str, arguments: &[&str]) -> Result<String, String> {
    let (text, succeeded) = output(root, program, arguments)?;
    if succeeded { Ok(text) } else { Err(format!("{program} {} in {ROOT}:\n{text}", arguments.join(" "))) }
}

/// Runs a program in the root and returns its output, whether it succeeds or not.
fn inside_any(root: &Path, program: &str, arguments: &[&str]) -> Result<String, String> {
    output(root, program, arguments).map(|(text, _)| text)
}

fn output(root: &Path, program: &str, arguments: &[&str]) -> Result<(String, bool), String> {
    let mut command = Command::new("unshare");
    command.arg("--map-root-user").arg("--").arg("chroot").arg(root).arg(format!("/{program}"));
    command.args(arguments).env_clear().stdin(Stdio::null());
    command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command.env("LD_LIBRARY_PATH", format!("/{DRIVER}")).env("MILLRACE_TEST_DEVICE", "cuda");
    let done = command.output().map_err(|e| format!("unshare: {e}"))?;
    let text = String::from_utf8_lossy(&done.stdout) + String::from_utf8_lossy(&done.stderr);
    Ok((text.into_owned(), done.status.success()))
}
