//! What lies in `cuda/`.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The CUDA sources, modules by name.
pub(crate) struct Sources {
    /// Modules for every card, and for the simulated device.
    pub(crate) modules: Vec<(String, PathBuf)>,
    /// Modules that only Hopper runs, `sm90_` before the file's name.
    pub(crate) sm90: Vec<(String, PathBuf)>,
    /// Modules that test the simulated device, and exist nowhere else.
    pub(crate) sim_tests: Vec<(String, PathBuf)>,
    /// What modules include.
    pub(crate) headers: Vec<PathBuf>,
    /// What the simulated device consists of.
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

/// Those of the extension, sorted; none where there is no folder.
fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut all: Vec<PathBuf> = entries.map(|entry| entry.expect("the folder can be read").path()).collect();
    all.retain(|file| file.extension().is_some_and(|e| e == extension));
    all.sort();
    all
}

/// Whether `made` is newer than everything it is made of.
pub(crate) fn is_fresh<'a>(made: &Path, from: impl IntoIterator<Item = &'a PathBuf>) -> bool {
    let time = |path: &Path| -> Option<SystemTime> { fs::metadata(path).ok()?.modified().ok() };
    let Some(made) = time(made) else { return false };
    from.into_iter().all(|file| time(file).is_some_and(|t| t < made))
}
