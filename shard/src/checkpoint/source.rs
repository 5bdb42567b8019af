//! Where the files of a checkpoint are: in a folder, or inside this program.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::ops::{Deref, Range};
use std::path::{Path, PathBuf};

use memmap2::{Advice, Mmap};

use super::Error;
use super::guard::Guard;
use super::identity::Stamp;

/// JSON files beyond this size are not read. The index of a model with many experts has tens of megabytes.
const MAX_TEXT: u64 = 100 << 20;

/// A `config.json` beyond this size is not read.
const MAX_CONFIG: u64 = 16 << 20;

const CONFIG: &str = "config.json";

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
    /// If it is not a regular file, cannot be read, or is larger than 100 MiB (16 MiB for `config.json`).
    pub fn text(&self, name: &str) -> Result<Option<Vec<u8>>, Error> {
        let path = match self {
            Source::Directory(path) => path.join(name),
            Source::Memory(files) => {
                return Ok(files.iter().find(|(file, _)| *file == name).map(|(_, bytes)| bytes.to_vec()));
            }
        };
        let read = |source| Error::Read { file: self.path(name), source };
        let Some(file) = open(&path).map_err(read)? else { return Ok(None) };
        let bytes = file.metadata().map_err(read)?.len();
        let limit = if name == CONFIG { MAX_CONFIG } else { MAX_TEXT };
        if bytes > limit {
            return Err(Error::TooLarge { file: self.path(name), bytes, limit });
        }
        let mut text = Vec::new();
        file.take(limit).read_to_end(&mut text).map_err(read)?;
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
        self.text(CONFIG)?.ok_or_else(|| Error::MissingFile { file: self.path(CONFIG), place: self.place() })
    }

    /// The sizes and times of the files of these names that there are, as text.
    pub(super) fn identity<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> String {
        match self {
            Source::Directory(folder) => {
                let line = |name: &str| Some(Stamp::of(&folder.join(name)).ok()?.line(name));
                names.into_iter().filter(|name| !name.contains('\n')).filter_map(line).collect()
            }
            Source::Memory(_) => String::new(),
        }
    }

    /// Checks that the files which `identity` describes ([`Checkpoint::identity`](super::Checkpoint::identity)) still are
    /// what they were. A file that is missing is no change: it may come back.
    ///
    /// # Errors
    /// [`Error::Changed`] names the first file that differs.
    pub fn check_unchanged(&self, identity: &str) -> Result<(), Error> {
        let Source::Directory(folder) = self else { return Ok(()) };
        for (was, name) in identity.lines().filter_map(Stamp::parse) {
            let how = Stamp::of(&folder.join(name)).ok().and_then(|now| was.change(now));
            if let Some(how) = how {
                return Err(Error::Changed { file: self.path(name), how });
            }
        }
        Ok(())
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
        let Some(file) = open(&path).map_err(read)? else { return Ok(None) };
        // SAFETY: the mapping is read-only and private to this process. Weights are only ever read as plain bytes, whose
        // every value is valid, so that a file which others change while it is read gives wrong weights at worst, which
        // are refused in the end. The guard takes care of a file that becomes shorter.
        let map = unsafe { Mmap::map(&file) }.map_err(read)?;
        let guard = Guard::new(&map).map_err(read)?;
        Ok(Some(MappedFile {
            name: name.to_owned(),
            path: self.path(name),
            bytes: Bytes::Mapped { guard, map },
        }))
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

/// Opens a regular file for reading; `None` when there is none. Anything else is refused without waiting for it: a FIFO
/// that nobody writes to would block for ever.
fn open(path: &Path) -> io::Result<Option<File>> {
    let mut options = File::options();
    options.read(true);
    #[cfg(target_os = "linux")]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK);
    let file = match options.open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    match file.metadata()?.is_file() {
        true => Ok(Some(file)),
        false => Err(io::Error::new(ErrorKind::InvalidInput, "it is not a regular file")),
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
    /// The guard comes first, so that it is dropped before the mapping ends.
    Mapped {
        guard: Guard,
        map: Mmap,
    },
    Static(&'static [u8]),
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Mapped { map, .. } => map,
            Bytes::Static(bytes) => bytes,
        }
    }
}

impl MappedFile {
    /// Asks the operating system to read these bytes ahead.
    pub(super) fn will_need(&self, range: &Range<usize>) {
        if let Bytes::Mapped { map, .. } = &self.bytes {
            // Only speed depends on it: a file system that cannot do it is no fault.
            let _ = map.advise_range(Advice::WillNeed, range.start, range.len());
        }
    }

    /// Checks that every byte that was read was there.
    pub(super) fn check_readable(&self) -> Result<(), Error> {
        match &self.bytes {
            Bytes::Mapped { guard, .. } if guard.has_failed() => Err(Error::Cut { file: self.path.clone() }),
            _ => Ok(()),
        }
    }
}
