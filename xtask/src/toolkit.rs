//! Installs a pinned version of NVIDIA's CUDA compiler below `target/`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::install;

/// Requirements file with the wheels of the toolkit.
const WHEELS: &str = "kernels/cuda/toolkit.txt";

/// Folder that the wheels are installed into.
const FOLDER: &str = "target/cuda-toolkit";

/// Installs the toolkit unless it is there. Returns the folder to use as `CUDA_HOME`.
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
    // A mixture of two versions would not work.
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(|e| format!("{FOLDER}: {e}"))?;
    }
    let options = ["install", "--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:"];
    let pip = |python: &Path| {
        let mut command = Command::new(python);
        command.args(["-m", "pip"]).args(options).args(["--target", FOLDER, "--requirement", WHEELS]);
        install::download("pip", &mut command)
    };
    // A virtual environment has pip even where the system's Python has none.
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
