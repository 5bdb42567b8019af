//! NVIDIA's compiler, pinned, in a folder of its own below `target`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The wheels, as pip reads them.
const WHEELS: &str = "kernels/cuda/toolkit.txt";

/// Where they are installed.
const FOLDER: &str = "target/cuda-toolkit";

/// Installs the toolkit unless it is there; its folder, as `CUDA_HOME` wants it.
///
/// # Errors
/// If there is no pip, or it fails.
pub(crate) fn install() -> Result<PathBuf, String> {
    let wanted = fs::read_to_string(WHEELS).map_err(|e| format!("{WHEELS}: {e}"))?;
    let folder = Path::new(FOLDER);
    let stamp = folder.join("toolkit.txt");
    if fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
        return home(folder);
    }
    // Half of another version is worse than nothing.
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(|e| format!("{FOLDER}: {e}"))?;
    }
    let options = ["install", "--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:"];
    let pip = |python: &Path| {
        let mut command = Command::new(python);
        command.args(["-m", "pip"]).args(options).args(["--target", FOLDER, "--requirement", WHEELS]);
        eprintln!("$ {command:?}");
        command.status().is_ok_and(|status| status.success())
    };
    // Where the system's Python has no pip, a virtual environment may.
    let own = Path::new("target/cuda-venv");
    let in_venv = || {
        let made = Command::new("python3").args(["-m", "venv"]).arg(own).status();
        made.is_ok_and(|status| status.success()) && pip(&own.join("bin/python3"))
    };
    if !pip(Path::new("python3")) && !in_venv() {
        return Err(
            "the CUDA toolkit cannot be installed: it needs python3 with pip, and a package index".to_owned()
        );
    }
    fs::write(&stamp, wanted).map_err(|e| format!("{}: {e}", stamp.display()))?;
    home(folder)
}

fn home(folder: &Path) -> Result<PathBuf, String> {
    let home = folder.join("nvidia/cu13");
    home.canonicalize().map_err(|e| format!("{}: {e}", home.display()))
}
