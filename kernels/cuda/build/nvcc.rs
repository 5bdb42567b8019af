//! Compiles fat binaries with nvcc, if it is installed.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::in_parallel;
use crate::sources::{FOLDER, Sources, is_fresh};

/// The architectures that get their own machine code. Later GPUs compile the PTX of the first.
const ARCHITECTURES: &str = "80,86,89,90a,100f,120";

/// Compiles every module. Returns nothing if there is no nvcc.
///
/// # Panics
/// If a module does not compile, or if `required` and there is no nvcc.
pub(crate) fn compile(sources: &Sources, out: &Path, required: bool) -> Vec<(String, PathBuf)> {
    println!("cargo:rerun-if-env-changed=MILLRACE_CUDA_ARCHITECTURES");
    let Some(nvcc) = find() else {
        assert!(!required, "feature embed-cubin: nvcc was not found (set NVCC or CUDA_HOME)");
        return Vec::new();
    };
    let requested = env::var("MILLRACE_CUDA_ARCHITECTURES").ok().filter(|list| !list.is_empty());
    let architectures = requested.unwrap_or_else(|| ARCHITECTURES.to_owned());
    let all: Vec<&str> = architectures.split(',').collect();
    let hopper: Vec<&str> = all.iter().copied().filter(|a| *a == "90a").collect();
    let mut jobs: Vec<(&String, &PathBuf, &[&str], bool)> =
        sources.modules.iter().map(|(module, file)| (module, file, &all[..], true)).collect();
    if !hopper.is_empty() {
        jobs.extend(sources.sm90.iter().map(|(module, file)| (module, file, &hopper[..], false)));
    }
    let fatbin = |module: &str| out.join(format!("{module}.{}.fatbin", architectures.replace(',', "-")));
    in_parallel(&jobs, |(module, file, architectures, ptx)| {
        let target = fatbin(module);
        if !is_fresh(&target, sources.headers.iter().chain([*file])) {
            run(&nvcc, file, &target, architectures, *ptx);
        }
    });
    jobs.iter().map(|(module, ..)| ((*module).clone(), fatbin(module))).collect()
}

fn run(nvcc: &Path, file: &Path, target: &Path, architectures: &[&str], ptx: bool) {
    let mut command = Command::new(nvcc);
    command.args([
        "-fatbin",
        "-O3",
        "-std=c++17",
        &format!("-I{FOLDER}/include"),
        "-Xfatbin",
        "-compress-all",
    ]);
    command.args(["-Werror", "all-warnings", "-Xptxas", "-warn-spills,-warn-lmem-usage"]);
    for a in architectures {
        command.arg(format!("-gencode=arch=compute_{a},code=sm_{a}"));
    }
    if ptx {
        let lowest = architectures.first().expect("at least one architecture");
        command.arg(format!("-gencode=arch=compute_{lowest},code=compute_{lowest}"));
    }
    let partial = target.with_extension("partial");
    let done = command.arg(file).arg("-o").arg(&partial).output().expect("nvcc was found");
    let output = String::from_utf8_lossy(&done.stderr) + String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "nvcc failed on {}:\n{output}", file.display());
    std::fs::rename(&partial, target).expect("OUT_DIR can be written");
}

/// The major version of the toolkit, which is the lowest that a driver must have; 0 if there is
/// none.
pub(crate) fn toolkit() -> u32 {
    let output = find().and_then(|nvcc| Command::new(nvcc).arg("--version").output().ok());
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let version = text.split_once("release ").and_then(|(_, rest)| rest.split_once('.'));
    version.and_then(|(major, _)| major.parse().ok()).unwrap_or(0)
}

fn find() -> Option<PathBuf> {
    let mut candidates = Vec::new();
    println!("cargo:rerun-if-env-changed=NVCC");
    candidates.extend(env::var_os("NVCC").map(PathBuf::from));
    for variable in ["CUDA_HOME", "CUDA_PATH"] {
        println!("cargo:rerun-if-env-changed={variable}");
        candidates.extend(env::var_os(variable).map(|home| Path::new(&home).join("bin/nvcc")));
    }
    candidates.push("nvcc".into());
    candidates.push("/usr/local/cuda/bin/nvcc".into());
    candidates
        .into_iter()
        .find(|nvcc| Command::new(nvcc).arg("--version").output().is_ok_and(|o| o.status.success()))
}
