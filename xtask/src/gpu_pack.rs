//! The server, the tests that can use a GPU and the kernels' benchmarks as programs for a machine
//! with a GPU but without Rust and without a network.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::{cargo, toolkit};

/// The folder of the programs.
pub(crate) const FOLDER: &str = "target/gpu";

/// The programs as one archive, which `integration-tests/gpu/check.sh` unpacks. They have most of
/// their bytes, the kernels, in common.
pub(crate) const ARCHIVE: &str = "target/gpu.tar.xz";

/// The parts of the repository that the check needs. The rest can stay here.
pub(crate) const FILES: [&str; 4] =
    ["integration-tests/gpu", "integration-tests/golden", "integration-tests/golden-encoders", "models/demo"];

/// Largest size of the archive and [`FILES`] together, in bytes.
const MAX_BYTES: u64 = 60 << 20;

/// Builds the programs. Returns whether all were built and are small enough.
pub(crate) fn run() -> bool {
    match pack() {
        Ok((programs, files)) => {
            let mib = |bytes| bytes as f64 / 1048576.0;
            println!("{ARCHIVE}: {:.1} MiB; integration-tests/gpu/check.sh runs them", mib(programs));
            println!("it needs {:.1} MiB of the repository: {}", mib(files), FILES.join(", "));
            true
        }
        Err(e) => {
            eprintln!("{e}");
            false
        }
    }
}

/// Returns the bytes of the archive and of the files that it needs.
fn pack() -> Result<(u64, u64), String> {
    let home = toolkit::install()?;
    let nvcc = home.join("bin/nvcc");
    // Machine code for Hopper alone, unless the environment asks for more.
    let architectures = std::env::var("MILLRACE_CUDA_ARCHITECTURES").unwrap_or_else(|_| "90a".to_owned());
    let environment = [
        ("CUDA_HOME", &*home.to_string_lossy()),
        ("NVCC", &*nvcc.to_string_lossy()),
        ("MILLRACE_CUDA_ARCHITECTURES", &*architectures),
    ];
    let features = ["--features", "cpu-sim,millrace-cuda/embed-cubin"];
    let tests = |package, kind, name| {
        [&["test", "--no-run", "--package", package, kind, name][..], &features].concat()
    };
    // The server is measured there, so it is built as it is shipped.
    let server = ["build", "--profile=dist", "--package", "millrace", "--features", "embed-cubin"];
    let programs = [
        ("kernel-tests", tests("millrace-cuda", "--test", "cuda"), "cuda"),
        ("kernel-bench", tests("millrace-cuda", "--bench", "cuda"), "cuda"),
        ("kernel-suite", tests("millrace-kernel-suite", "--test", "suite"), "suite"),
        ("shard-suite", tests("millrace-shard", "--test", "suite"), "suite"),
        ("millrace", server.to_vec(), "millrace"),
    ];
    fs::create_dir_all(FOLDER).map_err(|e| format!("{FOLDER}: {e}"))?;
    for (name, arguments, target_name) in &programs {
        let built = cargo::build(arguments, &environment, target_name)?;
        let program = built.executable.ok_or("cargo has not said where the program is")?;
        let target = Path::new(FOLDER).join(name);
        fs::copy(&program, &target).map_err(|e| format!("{}: {e}", target.display()))?;
        // A program that is not stripped works as well; it is only larger.
        let _ = Command::new("strip").arg("--strip-all").arg(&target).status();
    }
    archive(programs.map(|(name, ..)| name))?;
    let bytes = fs::metadata(ARCHIVE).map_err(|e| format!("{ARCHIVE}: {e}"))?.len();
    let files = size_of_files()?;
    if bytes + files > MAX_BYTES {
        Err(format!("{ARCHIVE} has {bytes} bytes and its files {files}, together more than {MAX_BYTES}"))
    } else {
        Ok((bytes, files))
    }
}

/// Packs the programs of [`FOLDER`]. The dictionary holds all of them, so that the kernels are in
/// the archive once.
fn archive(programs: [&str; 5]) -> Result<(), String> {
    let mut tar = Command::new("tar");
    tar.args(["--use-compress-program", "xz --threads=1 --lzma2=preset=6,dict=512MiB"]);
    tar.args(["--create", "--file", ARCHIVE, "--directory", FOLDER]).args(programs);
    match tar.status() {
        Ok(status) if status.success() => Ok(()),
        other => Err(format!("{tar:?}: {other:?}; it needs tar and xz")),
    }
}

/// The bytes of [`FILES`].
fn size_of_files() -> Result<u64, String> {
    let size = |name: String| fs::metadata(&name).map(|file| file.len()).map_err(|e| format!("{name}: {e}"));
    files()?.into_iter().map(size).sum()
}

/// The names of the tracked [`FILES`].
pub(crate) fn files() -> Result<Vec<String>, String> {
    let listed = Command::new("git").args(["ls-files", "-z"]).args(FILES).output();
    let listed = listed.map_err(|e| format!("git: {e}"))?.stdout;
    let names = String::from_utf8_lossy(&listed).into_owned();
    Ok(names.split('\0').filter(|name| !name.is_empty()).map(str::to_owned).collect())
}
