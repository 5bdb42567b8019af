//! Builds the binaries of a release.

use std::path::{Path, PathBuf};

use super::steps;
use crate::arm64::root::{self, Root};
use crate::{cargo, install, toolkit};

/// The folder of the builds. Development builds have other flags.
const FOLDER: &str = "target/release-build";

/// The profile of what is shipped, with optimization across crates.
const PROFILE: &str = "--profile=dist";

/// Builds the binaries of both architectures and returns their paths.
///
/// # Errors
/// If a tool cannot be installed, or a build fails.
pub(super) fn all() -> Result<Vec<PathBuf>, String> {
    Ok(vec![native()?, arm64()?])
}

/// Removes the builds, so that the next ones begin from nothing.
pub(super) fn clean() -> Result<(), String> {
    steps::remove(Path::new(FOLDER))?;
    steps::remove(&Path::new(root::FOLDER).join("release"))
}

/// Builds for this machine, with the machine code of the CUDA kernels.
fn native() -> Result<PathBuf, String> {
    let home = toolkit::install()?;
    let here = std::env::current_dir().map_err(|e| e.to_string())?;
    let cargo_home = root::cargo_home()?;
    // No path of this machine gets into the binary.
    let flags = [(&here, root::REPOSITORY), (&cargo_home, "/cargo")]
        .map(|(from, to)| format!("--remap-path-prefix={}={to}", from.display()))
        .join("\x1f");
    let nvcc = home.join("bin/nvcc");
    let environment = [
        ("CUDA_HOME", &*home.to_string_lossy()),
        ("NVCC", &*nvcc.to_string_lossy()),
        ("CARGO_ENCODED_RUSTFLAGS", &*flags),
        ("CARGO_TARGET_DIR", FOLDER),
        ("CARGO_INCREMENTAL", "0"),
    ];
    let build = ["build", "--locked", PROFILE, "--package", "millrace", "--features", "embed-cubin"];
    let built = cargo::build(&build, &environment, "millrace")?;
    built.executable.ok_or_else(|| "cargo has not said where the program is".to_owned())
}

/// Builds for 64-bit ARM. CUDA kernels are compiled at run time there, by NVRTC.
fn arm64() -> Result<PathBuf, String> {
    let root = Root::make()?.with_older_libraries()?;
    let folder = format!("{}/{}/release", root::REPOSITORY, root::FOLDER);
    let environment = [("CARGO_TARGET_DIR", &*folder)];
    let mut cargo = root.cargo("", &environment);
    cargo.args(["build", "--locked", PROFILE, "--package", "millrace"]);
    if !install::command("cargo", &mut cargo) {
        return Err("millrace cannot be built for 64-bit ARM".to_owned());
    }
    Ok(Path::new(root::FOLDER).join("release").join(root::TARGET).join("dist/millrace"))
}
