//! The kernels that tests have launched, and those that exist.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::architecture::{ARCHITECTURES, FOLDER, ptx_folder};

fn folder(of: &Path) -> PathBuf {
    of.join("launched")
}

/// Forgets what earlier runs have launched.
///
/// # Errors
/// If the folder cannot be made.
pub(super) fn clear(of: &Path) -> Result<(), String> {
    let folder = folder(of);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))
}

/// The file to which the job of this name writes the kernels that it launches, one to a line.
///
/// # Errors
/// If the folder does not exist.
pub(super) fn file(job: &str) -> Result<PathBuf, String> {
    let folder = folder(Path::new(FOLDER));
    let folder = folder.canonicalize().map_err(|e| format!("{}: {e}", folder.display()))?;
    Ok(folder.join(job))
}

/// Checks that every kernel was launched on at least one architecture.
///
/// # Errors
/// The kernels that were not.
pub(super) fn check(of: &Path) -> Result<(), String> {
    let mut launched = BTreeSet::new();
    for text in texts(&folder(of))? {
        launched.extend(text.lines().map(str::to_owned));
    }
    let mut missing = BTreeSet::new();
    for architecture in ARCHITECTURES {
        for text in texts(&ptx_folder(architecture))? {
            missing.extend(entries(&text).filter(|name| !launched.contains(*name)).map(str::to_owned));
        }
    }
    match missing.is_empty() {
        true => Ok(()),
        false => {
            let names: Vec<String> = missing.into_iter().collect();
            Err(format!("kernels that no test has launched:\n  {}", names.join("\n  ")))
        }
    }
}

/// The names of the kernels of a PTX text.
fn entries(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| line.strip_prefix(".visible .entry ")?.split('(').next())
}

fn texts(folder: &Path) -> Result<Vec<String>, String> {
    let error = |e: std::io::Error| format!("{}: {e}", folder.display());
    let files = fs::read_dir(folder).map_err(error)?;
    files.map(|file| fs::read_to_string(file.map_err(error)?.path()).map_err(error)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_of_a_text_are_found() {
        let text = ".version 9.0\n.visible .entry one(\n\t.param .u64 p\n)\n{\n}\n.visible .entry two()\n";
        assert_eq!(entries(text).collect::<Vec<_>>(), ["one", "two"]);
    }
}
