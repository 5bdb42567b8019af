//! The server, the kernels' tests and their benchmarks as programs for a machine with a GPU but
//! without Rust and without a network.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::{cargo, toolkit};

/// The folder that `integration-tests/gpu/check.sh` takes the programs from.
const FOLDER: &str = "target/gpu";

/// Largest size of all programs together, in bytes. Repository and programs together may have
/// 64 MiB.
const MAX_BYTES: u64 = 48 << 20;

/// Builds the programs. Returns whether all were built and are small enough.
pub(crate) fn run() -> bool {
    match pack() {
        Ok(bytes) => {
            println!(
                "{FOLDER}: {:.1} MiB; integration-tests/gpu/check.sh runs them",
                bytes as f64 / 1048576.0
            );
            true
        }
        Err(e) => {
            eprintln!("{e}");
            false
        }
    }
}

fn pack() -> Result<u64, String> {
    let home = toolkit::install()?;
    let nvcc = home.join("bin/nvcc");
    // Machine code for Hopper alone, unless the environment asks for more.
    let architectures = std::env::var("MILLRACE_CUDA_ARCHITECTURES").unwrap_or_else(|_| "90a".to_owned());
    let environment = [
        ("CUDA_HOME", &*home.to_string_lossy()),
        ("NVCC", &*nvcc.to_string_lossy()),
        ("MILLRACE_CUDA_ARCHITECTURES", &*architectures),
    ];
    let kernels = ["--package", "millrace-cuda", "--features", "embed-cubin,cpu-sim"];
    let tests = |kind| [&["test", kind, "cuda", "--no-run"][..], &kernels].concat();
    // The server is measured there, so it is built as it is shipped.
    let server = ["build", "--profile=dist", "--package", "millrace", "--features", "embed-cubin"];
    let programs = [
        ("kernel-tests", tests("--test"), "cuda"),
        ("kernel-bench", tests("--bench"), "cuda"),
        ("millrace", server.to_vec(), "millrace"),
    ];
    fs::create_dir_all(FOLDER).map_err(|e| format!("{FOLDER}: {e}"))?;
    let mut bytes = 0;
    for (name, arguments, target_name) in programs {
        let built = cargo::build(&arguments, &environment, target_name)?;
        let program = built.executable.ok_or("cargo has not said where the program is")?;
        let target = Path::new(FOLDER).join(name);
        fs::copy(&program, &target).map_err(|e| format!("{}: {e}", target.display()))?;
        // A program that is not stripped works as well; it is only larger.
        let _ = Command::new("strip").arg("--strip-debug").arg(&target).status();
        bytes += fs::metadata(&target).map_err(|e| e.to_string())?.len();
    }
    if bytes > MAX_BYTES {
        Err(format!("{FOLDER} has {bytes} bytes, more than {MAX_BYTES}"))
    } else {
        Ok(bytes)
    }
}
