//! Lists the files in `kernels/`.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The folder of the CUDA sources.
pub(crate) const FOLDER: &str = "kernels";

/// The CUDA sources: modules by name, and the files that they need.
pub(crate) struct Sources {
    /// Modules for every GPU and for the simulated device.
    pub(crate) modules: Vec<(String, PathBuf)>,
    /// Modules for Hopper only; their names are `sm90_` and the file's name.
    pub(crate) sm90: Vec<(String, PathBuf)>,
    /// Modules that test the simulated device and exist only there.
    pub(crate) sim_tests: Vec<(String, PathBuf)>,
    /// Headers that modules include.
    pub(crate) headers: Vec<PathBuf>,
    /// Sources of the simulated device itself.
    pub(crate) simulator: Vec<PathBuf>,
}

impl Sources {
    pub(crate) fn find(folder: &Path) -> Self {
        Sources {
            modules: modules(folder, ""),
            sim_tests: modules(&folder.join("sim"), ""),
            sm90: modules(&folder.join("sm90"), "sm90_"),
            headers: files(&folder.join("include"), "cuh"),
            simulator: [files(&folder.join("sim"), "h"), files(&folder.join("sim"), "cpp")].concat(),
        }
    }
}

fn modules(folder: &Path, before: &str) -> Vec<(String, PathBuf)> {
    let name = |file: &PathBuf| format!("{before}{}", file.file_stem().expect("a file").to_string_lossy());
    files(folder, "cu").into_iter().map(|file| (name(&file), file)).collect()
}

/// The files with this extension, sorted; none if there is no such folder.
fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut all: Vec<PathBuf> = entries.map(|entry| entry.expect("the folder can be read").path()).collect();
    all.retain(|file| file.extension().is_some_and(|e| e == extension));
    all.sort();
    all
}

/// Whether `made` is newer than everything it is made from.
pub(crate) fn is_fresh<'a>(made: &Path, from: impl IntoIterator<Item = &'a PathBuf>) -> bool {
    let time = |path: &Path| -> Option<SystemTime> { fs::metadata(path).ok()?.modified().ok() };
    let Some(made) = time(made) else { return false };
    from.into_iter().all(|file| time(file).is_some_and(|t| t < made))
}
