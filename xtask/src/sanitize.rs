//! The kernels' tests with their simulated libraries compiled for AddressSanitizer and
//! UndefinedBehaviorSanitizer.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::simulated::{self, CRATE, SOURCES};

/// Compiler flags. Both sanitizers stop at the first finding. Alignment is checked too, because a
/// GPU cannot read 16 bytes from an unaligned address.
const FLAGS: [&str; 3] =
    ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer"];

/// Tests that must fail under a sanitizer, and the finding that it must report.
const PLANTED: [(&str, &str); 3] = [
    ("sim::memory::planted_overflow_of_dynamic_shared_memory", "heap-buffer-overflow"),
    ("sim::memory::planted_overflow_of_static_shared_memory", "heap-buffer-overflow"),
    ("sim::memory::planted_write_behind_an_allocation", "heap-buffer-overflow"),
];

/// Runs the planted mistakes, and the tests whose names contain `filter`, or all. Returns whether
/// only the planted mistakes were found.
pub(crate) fn run(filter: Option<&str>) -> bool {
    match all(filter) {
        Ok(()) => {
            println!("the sanitizers found what was planted, and nothing else");
            true
        }
        Err(e) => {
            eprintln!("{e}");
            false
        }
    }
}

fn all(filter: Option<&str>) -> Result<(), String> {
    let tests = simulated::tests()?;
    let folder = Path::new("target/sanitized");
    std::fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let folder = folder.canonicalize().map_err(|e| e.to_string())?;
    compile(&folder)?;
    let runtime = runtime()?;
    let command = || {
        let mut command = Command::new(&tests);
        command.current_dir(CRATE).env("LD_PRELOAD", &runtime);
        command.env("MILLRACE_SIM_LIBRARIES", &folder).env("MILLRACE_SIM_EXACT", "1");
        // Memory that the process holds when it ends is no defect of a kernel.
        command.env("ASAN_OPTIONS", "detect_leaks=0").env("UBSAN_OPTIONS", "print_stacktrace=1");
        command
    };
    for (test, finding) in PLANTED {
        let done = command().args(["--ignored", "--exact", "--nocapture", test]).output();
        let done = done.map_err(|e| e.to_string())?;
        let said = String::from_utf8_lossy(&done.stderr) + String::from_utf8_lossy(&done.stdout);
        if done.status.success() || !said.contains(finding) {
            return Err(format!("{test} was to end with `{finding}`, and said:\n{said}"));
        }
        println!("found: {test}");
    }
    let status = command().args(filter).status().map_err(|e| e.to_string())?;
    if status.success() { Ok(()) } else { Err(format!("the sanitized tests ended with {status}")) }
}

/// Compiles every module that has changed since it was last compiled.
fn compile(folder: &Path) -> Result<(), String> {
    let modules = simulated::modules(Path::new(SOURCES))?;
    let newest = newest(Path::new(SOURCES));
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(None));
    let work = || {
        while let Some((name, file)) = modules.get(next.fetch_add(1, Ordering::Relaxed)) {
            let library = folder.join(format!("{name}.so"));
            let made = std::fs::metadata(&library).and_then(|m| m.modified()).ok();
            if made.is_some_and(|made| Some(made) > newest) {
                continue;
            }
            // The code that sanitizers insert causes warnings that the kernels' own code does not.
            let flags = [&FLAGS[..], &["-w"]].concat();
            if let Err(said) = simulated::compile(Path::new(SOURCES), file, &flags, &library) {
                *failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(format!("{name}:\n{said}"));
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}

fn newest(folder: &Path) -> Option<std::time::SystemTime> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let times = entries.map(|entry| match entry.path() {
        path if path.is_dir() => newest(&path),
        _ => entry.metadata().and_then(|m| m.modified()).ok(),
    });
    times.max().flatten()
}

/// Finds the library of AddressSanitizer, which must be loaded before all others.
fn runtime() -> Result<PathBuf, String> {
    let compiler = std::env::var_os("CXX").unwrap_or_else(|| "c++".into());
    let done =
        Command::new(compiler).arg("-print-file-name=libasan.so").output().map_err(|e| e.to_string())?;
    let path = PathBuf::from(String::from_utf8_lossy(&done.stdout).trim());
    if path.is_absolute() { Ok(path) } else { Err("the C++ compiler has no libasan.so".to_owned()) }
}
