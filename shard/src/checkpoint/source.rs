//! Where the files of a checkpoint are: in a folder, or inside this program.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::ops::{Deref, Range};
use std::path::PathBuf;

use memmap2::{Advice, Mmap};

use super::Error;

/// JSON files beyond this size are not read.
const MAX_TEXT: u64 = 100 << 20;

/// The files of a checkpoint.
#[derive(Debug, Clone)]
pub enum Source {
    /// A folder in Hugging Face layout.
    Directory(PathBuf),
    /// Files by name, such as those of a model that is part of the program.
    Memory(&'static [(&'static str, &'static [u8])]),
}

impl Source {
    /// The folder, for messages.
    pub fn place(&self) -> String {
        match self {
            Source::Directory(path) => path.display().to_string(),
            Source::Memory(_) => "the built-in model".to_owned(),
        }
    }

    /// The file `name`, for messages.
    pub fn path(&self, name: &str) -> String {
        match self {
            Source::Directory(path) => path.join(name).display().to_string(),
            Source::Memory(_) => format!("{name} of the built-in model"),
        }
    }

    /// The contents of the small file `name`; `None` when there is none.
    ///
    /// # Errors
    /// If it cannot be read, or is larger than 100 MiB.
    pub fn text(&self, name: &str) -> Result<Option<Vec<u8>>, Error> {
        let path = match self {
            Source::Directory(path) => path.join(name),
            Source::Memory(files) => {
                return Ok(files.iter().find(|(file, _)| *file == name).map(|(_, bytes)| bytes.to_vec()));
            }
        };
        let read = |source| Error::Read { file: self.path(name), source };
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(read(error)),
        };
        let bytes = file.metadata().map_err(read)?.len();
        if bytes > MAX_TEXT {
            return Err(Error::TooLarge { file: self.path(name), bytes, limit: MAX_TEXT });
        }
        let mut text = Vec::new();
        file.take(MAX_TEXT).read_to_end(&mut text).map_err(read)?;
        Ok(Some(text))
    }

    /// The contents of `config.json`.
    ///
    /// # Errors
    /// If the folder or the file is missing or cannot be read.
    pub fn config(&self) -> Result<Vec<u8>, Error> {
        if let Source::Directory(path) = self
            && !path.is_dir()
        {
            return Err(Error::NoFolder { place: self.place() });
        }
        let name = "config.json";
        self.text(name)?.ok_or_else(|| Error::MissingFile { file: self.path(name), place: self.place() })
    }

    /// Maps the file `name`; `None` when there is none.
    pub(super) fn map(&self, name: &str) -> Result<Option<MappedFile>, Error> {
        let path = match self {
            Source::Directory(path) => path.join(name),
            Source::Memory(files) => {
                let found = files.iter().find(|(file, _)| *file == name);
                return Ok(found.map(|&(_, bytes)| MappedFile {
                    name: name.to_owned(),
                    path: self.path(name),
                    bytes: Bytes::Static(bytes),
                }));
            }
        };
        let read = |source| Error::Read { file: self.path(name), source };
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(read(error)),
        };
        if !file.metadata().map_err(read)?.is_file() {
            return Err(read(ErrorKind::InvalidInput.into()));
        }
        // SAFETY: the mapping is read-only and private to this process. Weights are only ever read as plain bytes, whose
        // every value is valid; that nobody shortens a checkpoint while it is served is the operator's part, as for every
        // program that maps its model.
        let map = unsafe { Mmap::map(&file) }.map_err(read)?;
        Ok(Some(MappedFile { name: name.to_owned(), path: self.path(name), bytes: Bytes::Mapped(map) }))
    }

    /// The names of all files, sorted.
    pub(super) fn names(&self) -> Result<Vec<String>, Error> {
        let mut names = match self {
            Source::Memory(files) => files.iter().map(|(name, _)| (*name).to_owned()).collect(),
            Source::Directory(path) => {
                let read = |source| Error::Read { file: self.place(), source };
                let mut names = Vec::new();
                for entry in std::fs::read_dir(path).map_err(read)? {
                    names.extend(entry.map_err(read)?.file_name().into_string());
                }
                names
            }
        };
        names.sort();
        Ok(names)
    }
}

/// A file whose bytes can be borrowed without reading them all.
#[derive(Debug)]
pub(super) struct MappedFile {
    /// Its name in the checkpoint.
    pub(super) name: String,
    /// Its name for messages.
    pub(super) path: String,
    bytes: Bytes,
}

#[derive(Debug)]
enum Bytes {
    Mapped(Mmap),
    Static(&'static [u8]),
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Mapped(map) => map,
            Bytes::Static(bytes) => bytes,
        }
    }
}

impl MappedFile {
    /// Asks the operating system to read these bytes ahead.
    pub(super) fn will_need(&self, range: &Range<usize>) {
        if let Bytes::Mapped(map) = &self.bytes {
            // Only speed depends on it: a file system that cannot do it is no fault.
            let _ = map.advise_range(Advice::WillNeed, range.start, range.len());
        }
    }
}
