//! The folder of a new checkpoint, which appears under its name when it is complete.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use millrace_formats::Source;

use super::error::QuantizeError;
use crate::Bytes;

/// The largest size of a file that is copied.
const MAX_COPIED: u64 = 100 << 20;

/// Ends of the names of weights, and of what describes the former weights.
const NOT_COPIED: [&str; 11] = [
    ".safetensors",
    ".index.json",
    ".bin",
    ".pt",
    ".pth",
    ".gguf",
    ".h5",
    ".msgpack",
    ".onnx",
    "quantize_config.json",
    "quant_config.json",
];

const CONFIG: &str = "config.json";

/// A folder that is being filled under another name beside its place. It is removed when it is
/// dropped before it is complete.
#[derive(Debug)]
pub(crate) struct NewFolder {
    /// Path of the folder while it is being filled.
    path: PathBuf,
    place: PathBuf,
    is_complete: bool,
}

impl NewFolder {
    /// Creates the folder for a checkpoint at `place`, which must not exist, or be an empty folder.
    pub(crate) fn create(place: &Path) -> Result<NewFolder, QuantizeError> {
        let error = |source| QuantizeError::Folder { path: place.display().to_string(), source };
        let place = match fs::canonicalize(place) {
            Ok(place) => {
                if !place.is_dir() || fs::read_dir(&place).map_err(error)?.next().is_some() {
                    return Err(QuantizeError::Occupied { path: place.display().to_string() });
                }
                place
            }
            Err(absent) if absent.kind() == ErrorKind::NotFound => {
                std::path::absolute(place).map_err(error)?
            }
            Err(other) => return Err(error(other)),
        };
        let (Some(parent), Some(name)) = (place.parent(), place.file_name()) else {
            return Err(QuantizeError::Occupied { path: place.display().to_string() });
        };
        let path = parent.join(format!(".{}.partial-{}", name.to_string_lossy(), std::process::id()));
        fs::create_dir(&path).map_err(error)?;
        Ok(NewFolder { path, place, is_complete: false })
    }

    /// Returns the path of the folder while it is being filled.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Checks that the file system has room for `needed` bytes.
    pub(crate) fn check_space(&self, needed: usize) -> Result<(), QuantizeError> {
        match free_bytes(&self.path) {
            Some(free) if free < needed => {
                let path = self.place.display().to_string();
                Err(QuantizeError::Space { path, needed: Bytes(needed), free: Bytes(free) })
            }
            _ => Ok(()),
        }
    }

    /// Writes a small file.
    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> Result<(), QuantizeError> {
        let path = self.path.join(name);
        let written = File::options().write(true).create_new(true).open(&path).and_then(|mut file| {
            file.write_all(bytes)?;
            file.sync_all()
        });
        written.map_err(|source| QuantizeError::Folder { path: path.display().to_string(), source })
    }

    /// Gives the complete folder its name.
    pub(crate) fn complete(mut self) -> Result<(), QuantizeError> {
        let error = |source| QuantizeError::Folder { path: self.place.display().to_string(), source };
        sync(&self.path).map_err(error)?;
        // An empty folder at this place is replaced. If something else has appeared there, this
        // fails.
        fs::rename(&self.path, &self.place).map_err(error)?;
        if let Some(parent) = self.place.parent() {
            sync(parent).map_err(error)?;
        }
        self.is_complete = true;
        Ok(())
    }
}

impl Drop for NewFolder {
    fn drop(&mut self) {
        if !self.is_complete {
            // The error that ended the work is the one to report.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// Waits until the entries of a folder are on the disk.
#[cfg(unix)]
fn sync(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

#[cfg(not(unix))]
fn sync(_folder: &Path) -> io::Result<()> {
    Ok(())
}

/// Returns the free bytes of the file system of `folder`, if the system says.
#[cfg(target_os = "linux")]
fn free_bytes(folder: &Path) -> Option<usize> {
    use std::os::unix::ffi::OsStrExt;
    let path = std::ffi::CString::new(folder.as_os_str().as_bytes()).ok()?;
    // SAFETY: all-zero bytes are a valid `statvfs`, which consists of integers.
    let mut found: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path ends with a zero byte, and `found` is valid for writes.
    let status = unsafe { libc::statvfs(path.as_ptr(), &raw mut found) };
    (status == 0).then(|| (found.f_bavail as usize).saturating_mul(found.f_frsize as usize))
}

#[cfg(not(target_os = "linux"))]
fn free_bytes(_folder: &Path) -> Option<usize> {
    None
}

/// Returns the names of the files beside the weights and `config.json` that belong to a model:
/// tokenizer, templates, licence, and so on.
pub(crate) fn small_files(source: &Source) -> Result<Vec<String>, QuantizeError> {
    let is_wanted = |name: &str| {
        name != CONFIG && !name.starts_with('.') && !NOT_COPIED.iter().any(|end| name.ends_with(end))
    };
    let mut names = Vec::new();
    match source {
        // Configuration and tokenizer are in the file with the weights.
        Source::File(_) => {}
        Source::Memory(files) => names.extend(files.iter().map(|(name, _)| (*name).to_owned())),
        Source::Directory(folder) => {
            let error = |source| QuantizeError::Folder { path: folder.display().to_string(), source };
            for entry in fs::read_dir(folder).map_err(error)? {
                let Ok(name) = entry.map_err(error)?.file_name().into_string() else { continue };
                // Files of a cache are links.
                let kind = fs::metadata(folder.join(&name)).map_err(error)?;
                if kind.is_file() && kind.len() <= MAX_COPIED {
                    names.push(name);
                }
            }
        }
    }
    names.retain(|name| is_wanted(name));
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_folder_appears_when_it_is_complete() {
        let parent = tempfile::tempdir().unwrap();
        for exists in [false, true] {
            let place = parent.path().join(if exists { "empty" } else { "absent" });
            if exists {
                fs::create_dir(&place).unwrap();
            }
            let folder = NewFolder::create(&place).unwrap();
            folder.write("config.json", b"{}").unwrap();
            assert!(!place.join("config.json").exists());
            folder.complete().unwrap();
            assert_eq!(entries(&place), ["config.json"]);
        }
        assert_eq!(entries(parent.path()), ["absent", "empty"]);
    }

    #[test]
    fn an_incomplete_folder_is_removed() {
        let parent = tempfile::tempdir().unwrap();
        let folder = NewFolder::create(&parent.path().join("new")).unwrap();
        folder.write("config.json", b"{}").unwrap();
        drop(folder);
        assert!(entries(parent.path()).is_empty());
    }

    #[test]
    fn other_folders_and_files_are_left_alone() {
        let parent = tempfile::tempdir().unwrap();
        fs::write(parent.path().join("file"), "text").unwrap();
        for place in [parent.path().to_owned(), parent.path().join("file")] {
            let error = NewFolder::create(&place).unwrap_err().to_string();
            assert!(
                error.ends_with("exists and is not an empty folder; give the path of a new folder"),
                "{error}"
            );
        }
        let error = NewFolder::create(&parent.path().join("absent/new")).unwrap_err().to_string();
        assert!(error.contains("absent/new: ") && error.contains("No such file"), "{error}");
        // A folder that appears meanwhile is not replaced.
        let place = parent.path().join("new");
        let folder = NewFolder::create(&place).unwrap();
        fs::create_dir(&place).unwrap();
        fs::write(place.join("theirs"), "text").unwrap();
        assert!(folder.complete().is_err());
        assert_eq!(
            (entries(&place), entries(parent.path())),
            (vec!["theirs".to_owned()], vec!["file".to_owned(), "new".to_owned()])
        );
    }

    #[test]
    fn a_full_disk_is_noticed_first() {
        let parent = tempfile::tempdir().unwrap();
        let folder = NewFolder::create(&parent.path().join("new")).unwrap();
        folder.check_space(1).unwrap();
        if cfg!(target_os = "linux") {
            let error = folder.check_space(usize::MAX).unwrap_err().to_string();
            assert!(error.contains("the new checkpoint takes 16384.00 PiB, but only "), "{error}");
        }
    }
}
