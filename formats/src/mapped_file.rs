//! Files that are mapped, or part of the program.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::ops::{Deref, Range};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use memmap2::{Advice, Mmap};

use crate::error::Error;
use crate::guard::Guard;
use crate::regular_file;

/// Opens a regular file for reading. Returns `None` if the file does not exist.
pub(crate) fn open(path: &Path) -> io::Result<Option<File>> {
    match regular_file::open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            dangling_link(path).map_or(Ok(None), |link| Err(link.into()))
        }
        Err(error) => Err(error),
    }
}

/// A link to a file that does not exist, such as a file in a Hugging Face cache whose blob was
/// deleted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("it is a link to {}, which does not exist", target.display())]
pub struct DanglingLink {
    target: PathBuf,
}

impl From<DanglingLink> for io::Error {
    fn from(link: DanglingLink) -> Self {
        io::Error::new(ErrorKind::InvalidData, link)
    }
}

/// Returns the link at `path`, if there is one whose target does not exist.
pub fn dangling_link(path: &Path) -> Option<DanglingLink> {
    let target = std::fs::read_link(path).ok()?;
    let is_missing = matches!(path.try_exists(), Ok(false));
    is_missing.then_some(DanglingLink { target })
}

/// A file in memory, or a mapped file whose pages are read when they are used.
#[derive(Debug)]
pub(crate) struct MappedFile {
    /// Name of the file in the checkpoint.
    pub(crate) name: String,
    /// Path of the file, for messages.
    pub(crate) path: String,
    contents: Contents,
}

#[derive(Debug)]
enum Contents {
    /// The guard comes first, so that it is dropped before the mapping.
    Mapped {
        guard: Guard,
        map: Mmap,
    },
    Static(&'static [u8]),
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.contents {
            Contents::Mapped { map, .. } => map,
            Contents::Static(bytes) => bytes,
        }
    }
}

/// Shared ownership of a mapped file.
struct SharedFile(Arc<MappedFile>);

impl AsRef<[u8]> for SharedFile {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl MappedFile {
    /// Maps the file at `path`, whose path in messages is `shown`. Returns `None` if the file does
    /// not exist.
    pub(crate) fn map(name: &str, shown: String, path: &Path) -> Result<Option<Self>, Error> {
        let read = |source| Error::Read { file: shown.clone(), source };
        let Some(file) = open(path).map_err(read)? else { return Ok(None) };
        // SAFETY: the mapping is read-only and private to this process. The bytes are only read as
        // numbers, for which every bit pattern is valid. If others change the file meanwhile, the
        // worst result is wrong weights, which `Checkpoint::verify` detects. The guard handles a
        // file that becomes shorter.
        let map = unsafe { Mmap::map(&file) }.map_err(read)?;
        let guard = Guard::new(&map).map_err(read)?;
        let contents = Contents::Mapped { guard, map };
        Ok(Some(MappedFile { name: name.to_owned(), path: shown, contents }))
    }

    /// Returns a file that is part of the program.
    pub(crate) fn of_program(name: &str, path: String, bytes: &'static [u8]) -> Self {
        MappedFile { name: name.to_owned(), path, contents: Contents::Static(bytes) }
    }

    /// Returns the bytes as an owner that keeps the file mapped.
    pub(crate) fn shared_bytes(file: &Arc<Self>) -> Bytes {
        match &file.contents {
            Contents::Static(bytes) => Bytes::from_static(bytes),
            Contents::Mapped { .. } => Bytes::from_owner(SharedFile(Arc::clone(file))),
        }
    }

    /// Asks the operating system to read these bytes ahead of their use.
    pub(crate) fn will_need(&self, range: Range<usize>) {
        if let Contents::Mapped { map, .. } = &self.contents {
            // Some file systems cannot read ahead. Only the speed depends on it.
            let _ = map.advise_range(Advice::WillNeed, range.start, range.len());
        }
    }

    /// Checks that all bytes that have been read so far were in the file.
    pub(crate) fn check_readable(&self) -> Result<(), Error> {
        match &self.contents {
            Contents::Mapped { guard, .. } if guard.has_failed() => {
                Err(Error::Cut { file: self.path.clone() })
            }
            _ => Ok(()),
        }
    }
}
