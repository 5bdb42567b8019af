//! Compiles CUDA sources to PTX.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::architecture::Architecture;
use super::jobs;
use crate::simulated::SOURCES;

/// A module's name and its source.
type Module = (String, PathBuf);

/// The modules of an architecture, below the folder of the sources.
fn modules(sources: &Path, architecture: Architecture) -> Result<Vec<Module>, String> {
    let mut all = Vec::new();
    let folders: &[(&str, &str)] =
        if architecture.is_hopper { &[("", ""), ("sm90", "sm90_")] } else { &[("", "")] };
    for (folder, prefix) in folders {
        let folder = sources.join(folder);
        let entries = fs::read_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        let files = entries.filter_map(|entry| entry.ok().map(|entry| entry.path()));
        all.extend(files.filter(|file| file.extension().is_some_and(|e| e == "cu")).map(|file| {
            let stem = file.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
            (format!("{prefix}{stem}"), file)
        }));
    }
    all.sort();
    Ok(all)
}

/// Compiles every module to a file of a folder.
///
/// # Errors
/// What nvcc says.
pub(super) fn all(home: &Path, architecture: Architecture, folder: &Path) -> Result<(), String> {
    fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let modules = modules(Path::new(SOURCES), architecture)?;
    jobs::in_parallel(&modules, |(name, file)| {
        one(home, architecture, Path::new(SOURCES), file, &folder.join(format!("{name}.ptx")))
    })
}

/// Compiles one source with the headers of a tree.
///
/// # Errors
/// What nvcc says.
pub(super) fn one(
    home: &Path,
    architecture: Architecture,
    tree: &Path,
    file: &Path,
    target: &Path,
) -> Result<(), String> {
    let mut command = Command::new(home.join("bin/nvcc"));
    command.args(["-ptx", "-O3", "-std=c++17", "-I"]).arg(tree.join("include"));
    command.arg(format!("-arch={}", architecture.name)).arg(file).arg("-o").arg(target);
    let done = command.output().map_err(|e| format!("nvcc: {e}"))?;
    match done.status.success() {
        true => Ok(()),
        false => Err(format!("{}: {}", file.display(), String::from_utf8_lossy(&done.stderr))),
    }
}
