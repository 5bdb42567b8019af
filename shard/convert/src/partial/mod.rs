//! A new model while it is being written: a file or folder that appears in its place when it is
//! complete.
//!
//! Beside the place of `NAME` lies a folder `.NAME.partial` meanwhile, with these files:
//!
//! | file | content |
//! |---|---|
//! | `job` | the description of the source and of what is made of it; locked by the process that writes |
//! | `journal` | how many parts are on the disk, a line for each time that this became true |
//! | `result` | the new file or folder |
//!
//! A process that fails removes the folder. If a process is killed, the folder stays, and the next
//! run with the same description continues behind the parts of the journal. A run with another
//! description removes what it finds.

mod error;
#[cfg(test)]
mod tests;

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use millrace_model::Bytes;

pub use error::PlaceError;

const JOB: &str = "job";
const JOURNAL: &str = "journal";
const RESULT: &str = "result";

/// The longest description of a job. Longer ones are never continued.
const MAX_JOB: u64 = 1 << 20;
/// The longest journal that is read: more lines than a model has tensors.
const MAX_JOURNAL: u64 = 64 << 20;

/// The kind of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResultKind {
    File,
    Folder,
}

/// The description of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Job {
    /// Everything that the bytes of the result depend on.
    pub(crate) description: String,
    /// Whether a run with the same description gives the same bytes, so that it can continue.
    pub(crate) can_continue: bool,
}

/// A result that is being written. It is removed when it is dropped before it is complete.
#[derive(Debug)]
pub(crate) struct Partial {
    /// The folder beside the place.
    folder: PathBuf,
    place: PathBuf,
    kind: ResultKind,
    journal: File,
    /// Parts that an earlier run has written.
    done: usize,
    is_complete: bool,
    /// Locked as long as this exists.
    _job: File,
}

impl Partial {
    /// Begins or continues the result at `place`, which must not exist, or be an empty folder if
    /// the result is a folder.
    ///
    /// # Errors
    /// If there is something at the place, or another process writes there.
    pub(crate) fn open(place: &Path, kind: ResultKind, job: &Job) -> Result<Partial, PlaceError> {
        let place = free_place(place, kind)?;
        let folder = folder_of(&place).ok_or_else(|| exists(&place, kind))?;
        let error = |path: &Path| {
            let path = path.display().to_string();
            move |source| PlaceError::Io { path, source }
        };
        if let Err(found) = fs::create_dir(&folder)
            && found.kind() != ErrorKind::AlreadyExists
        {
            return Err(error(&place)(found));
        }
        let foreign = || PlaceError::Foreign { path: folder.display().to_string() };
        let has_files = fs::read_dir(&folder).map_err(|_| foreign())?.next().is_some();
        let path = folder.join(JOB);
        if has_files && !path.is_file() {
            return Err(foreign());
        }
        let open = File::options().read(true).write(true).create(true).truncate(false).open(&path);
        let mut lock = open.map_err(error(&path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => {
                return Err(PlaceError::Busy { path: place.display().to_string() });
            }
            Err(fs::TryLockError::Error(source)) => return Err(error(&path)(source)),
        }
        // A process that has just ended may have removed the locked file.
        if !path.is_file() {
            return Err(PlaceError::Busy { path: place.display().to_string() });
        }
        let done = match found_job(&mut lock).as_deref() == Some(job.description.as_str()) {
            true if job.can_continue && folder.join(RESULT).exists() => parts(&folder.join(JOURNAL)),
            _ => 0,
        };
        if done == 0 {
            discard(&folder, &mut lock, job).map_err(error(&folder))?;
        }
        if kind == ResultKind::Folder && done == 0 {
            fs::create_dir(folder.join(RESULT)).map_err(error(&folder))?;
        }
        let journal = File::options().append(true).create(true).open(folder.join(JOURNAL));
        let journal = journal.map_err(error(&folder))?;
        Ok(Partial { folder, place, kind, journal, done, is_complete: false, _job: lock })
    }

    /// Returns the path of the result while it is being written.
    pub(crate) fn result(&self) -> PathBuf {
        self.folder.join(RESULT)
    }

    /// Returns how many parts an earlier run has written.
    pub(crate) fn done(&self) -> usize {
        self.done
    }

    /// Removes the parts that an earlier run has written, because they are not what they should be.
    ///
    /// # Errors
    /// If they cannot be removed.
    pub(crate) fn start_again(&mut self) -> Result<(), PlaceError> {
        let error = |source| PlaceError::Io { path: self.folder.display().to_string(), source };
        self.journal.set_len(0).map_err(error)?;
        remove(&self.result()).map_err(error)?;
        if self.kind == ResultKind::Folder {
            fs::create_dir(self.result()).map_err(error)?;
        }
        self.done = 0;
        Ok(())
    }

    /// Records that so many parts are on the disk.
    ///
    /// # Errors
    /// If the journal cannot be written.
    pub(crate) fn record(&mut self, parts: usize) -> Result<(), PlaceError> {
        let written = self.journal.write_all(format!("{parts}\n").as_bytes());
        let written = written.and_then(|()| self.journal.sync_data());
        written.map_err(|source| PlaceError::Io { path: self.folder.display().to_string(), source })
    }

    /// Checks that the file system has room for `needed` bytes.
    ///
    /// # Errors
    /// If it has not.
    pub(crate) fn check_space(&self, needed: usize) -> Result<(), PlaceError> {
        match free_bytes(&self.folder) {
            Some(free) if free < needed => {
                let path = self.place.display().to_string();
                Err(PlaceError::Space { path, needed: Bytes(needed), free: Bytes(free) })
            }
            _ => Ok(()),
        }
    }

    /// Writes a small file in a folder. One that an earlier run has written is replaced.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> Result<(), PlaceError> {
        let path = self.result().join(name);
        let folder = path.parent().map_or(Ok(()), std::fs::create_dir_all);
        let written = folder.and_then(|()| File::create(&path)).and_then(|mut file| {
            file.write_all(bytes)?;
            file.sync_all()
        });
        written.map_err(|source| PlaceError::Io { path: path.display().to_string(), source })
    }

    /// Gives the complete result its name.
    ///
    /// # Errors
    /// If something has appeared there meanwhile, or the system cannot rename it.
    pub(crate) fn complete(mut self) -> Result<(), PlaceError> {
        let error = |source| PlaceError::Io { path: self.place.display().to_string(), source };
        let result = self.result();
        sync(&result).map_err(error)?;
        match self.kind {
            // An empty folder at this place is replaced. If something else has appeared there, this
            // fails.
            ResultKind::Folder => fs::rename(&result, &self.place).map_err(error)?,
            // A hard link, unlike a rename, does not replace a file that has appeared meanwhile.
            ResultKind::File => fs::hard_link(&result, &self.place)
                .or_else(|refused| match refused.kind() {
                    ErrorKind::AlreadyExists => Err(refused),
                    // Some file systems have no links.
                    _ => fs::rename(&result, &self.place),
                })
                .map_err(error)?,
        }
        self.is_complete = true;
        if let Some(parent) = self.place.parent() {
            sync(parent).map_err(error)?;
        }
        // The result is complete, whether or not this succeeds.
        let _ = fs::remove_dir_all(&self.folder);
        Ok(())
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if !self.is_complete {
            // The error that ended the work is the one to report.
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}

fn exists(place: &Path, kind: ResultKind) -> PlaceError {
    let path = place.display().to_string();
    match kind {
        ResultKind::File => PlaceError::FileExists { path },
        ResultKind::Folder => PlaceError::FolderExists { path },
    }
}

/// Returns the absolute path of the place, if a result may be put there.
fn free_place(place: &Path, kind: ResultKind) -> Result<PathBuf, PlaceError> {
    let error = |source| PlaceError::Io { path: place.display().to_string(), source };
    match fs::canonicalize(place) {
        Ok(found) => {
            let is_empty = || Ok(fs::read_dir(&found).map_err(error)?.next().is_none());
            if kind == ResultKind::Folder && found.is_dir() && is_empty()? {
                return Ok(found);
            }
            remove_leftover(&found);
            Err(exists(&found, kind))
        }
        Err(absent) if absent.kind() == ErrorKind::NotFound => std::path::absolute(place).map_err(error),
        Err(other) => Err(error(other)),
    }
}

/// Returns the folder for a result at `place`.
fn folder_of(place: &Path) -> Option<PathBuf> {
    let (parent, name) = (place.parent()?, place.file_name()?);
    Some(parent.join(format!(".{}.partial", name.to_string_lossy())))
}

/// Removes the folder of a process that was killed when its result had got its name.
fn remove_leftover(place: &Path) {
    let Some(folder) = folder_of(place) else { return };
    let is_leftover =
        !folder.join(RESULT).is_dir() && File::open(folder.join(JOB)).is_ok_and(|job| job.try_lock().is_ok());
    if is_leftover {
        // The message that follows does not depend on this.
        let _ = fs::remove_dir_all(&folder);
    }
}

/// Reads the description of the job that a folder belongs to.
fn found_job(job: &mut File) -> Option<String> {
    let mut text = String::new();
    Read::by_ref(job).take(MAX_JOB + 1).read_to_string(&mut text).ok()?;
    (text.len() as u64 <= MAX_JOB).then_some(text)
}

/// Returns the number in the last whole line of a journal.
fn parts(journal: &Path) -> usize {
    let Ok(file) = File::open(journal) else { return 0 };
    let mut text = String::new();
    if file.take(MAX_JOURNAL).read_to_string(&mut text).is_err() {
        return 0;
    }
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole.lines().next_back().and_then(|line| line.parse().ok()).unwrap_or(0)
}

/// Removes what an earlier run has left, and then describes the new one: a run that is killed
/// between leaves nothing that could be continued.
fn discard(folder: &Path, lock: &mut File, job: &Job) -> io::Result<()> {
    remove(&folder.join(JOURNAL))?;
    remove(&folder.join(RESULT))?;
    lock.set_len(0)?;
    lock.seek(SeekFrom::Start(0))?;
    lock.write_all(job.description.as_bytes())?;
    lock.sync_all()
}

/// Removes a file or a folder, if it exists.
fn remove(path: &Path) -> io::Result<()> {
    let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    match removed {
        Err(absent) if absent.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Waits until a file, or the entries of a folder, are on the disk.
#[cfg(unix)]
fn sync(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

#[cfg(not(unix))]
fn sync(_path: &Path) -> io::Result<()> {
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
