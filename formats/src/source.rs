//! The place of a checkpoint's files: a folder, a file with a whole model, or this program.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::ops::{Deref, Range};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use memmap2::{Advice, Mmap};

use crate::error::Error;
use crate::guard::Guard;
use crate::identity::Stamp;
use crate::model_file::{self, ModelFile};
use crate::tokenizer_data::TokenizerData;

/// The largest size of a JSON file. The index of a model with many experts has tens of megabytes.
const MAX_TEXT: u64 = 100 << 20;

/// The largest size of a `config.json`.
const MAX_CONFIG: u64 = 16 << 20;

const CONFIG: &str = "config.json";

/// The place of a checkpoint's files.
#[derive(Debug, Clone)]
pub enum Source {
    /// A folder in Hugging Face layout.
    Directory(PathBuf),
    /// A file that holds a whole model, such as a GGUF file, or the first file of a model that is
    /// split. Its configuration is translated to `config.json`.
    File(PathBuf),
    /// Names and contents of files in memory, such as those of a model that is part of the program.
    Memory(&'static [(&'static str, &'static [u8])]),
}

impl Source {
    /// Returns the folder or the file, for messages.
    pub fn place(&self) -> String {
        match self {
            Source::Directory(path) | Source::File(path) => path.display().to_string(),
            Source::Memory(_) => "the built-in model".to_owned(),
        }
    }

    /// Returns the path of the file `name`, for messages.
    pub fn path(&self, name: &str) -> String {
        match self {
            Source::Directory(path) => path.join(name).display().to_string(),
            // Its configuration is inside.
            Source::File(path) if name == CONFIG => path.display().to_string(),
            Source::File(path) => folder(path).join(name).display().to_string(),
            Source::Memory(_) => format!("{name} of the built-in model"),
        }
    }

    /// Returns the contents of the small file `name`, or `None` if the file does not exist. A file
    /// with a whole model has no other small file than `config.json`.
    ///
    /// # Errors
    /// If it is not a regular file, cannot be read, or is larger than 100 MiB (16 MiB for
    /// `config.json`), or if the file with the model is damaged.
    pub fn text(&self, name: &str) -> Result<Option<Vec<u8>>, Error> {
        let path = match self {
            Source::Directory(path) => path.join(name),
            Source::File(_) if name == CONFIG => {
                let config = self.model_file()?.map(|model| model.config);
                return Ok(config.map(|config| serde_json::Value::from(config).to_string().into_bytes()));
            }
            Source::File(_) => return Ok(None),
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

    /// Returns the contents of `config.json`.
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

    /// Opens the model of a [`Source::File`]. Returns `None` for other sources.
    pub(crate) fn model_file(&self) -> Result<Option<ModelFile>, Error> {
        match self {
            Source::File(_) => model_file::open(self.first_file()?, |name| self.map(name)).map(Some),
            Source::Directory(_) | Source::Memory(_) => Ok(None),
        }
    }

    /// Returns the tokenizer that is part of a file with a whole model. Returns `None` for a model
    /// in several files, whose tokenizer is in files of its own, and for a file without one.
    ///
    /// # Errors
    /// If the file cannot be read, or is damaged.
    pub fn tokenizer_data(&self) -> Result<Option<TokenizerData>, Error> {
        match self {
            Source::File(_) => model_file::tokenizer(&self.first_file()?),
            Source::Directory(_) | Source::Memory(_) => Ok(None),
        }
    }

    /// Maps the file of a [`Source::File`].
    fn first_file(&self) -> Result<MappedFile, Error> {
        let place = self.place();
        let missing = || Error::MissingFile { file: place.clone(), place: place.clone() };
        let Source::File(path) = self else { return Err(missing()) };
        let name = path.file_name().and_then(|name| name.to_str()).ok_or_else(missing)?;
        self.map(name)?.ok_or_else(missing)
    }

    /// Returns the sizes and times of those of these files that exist, as text.
    pub(crate) fn identity<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> String {
        match self {
            Source::Directory(_) | Source::File(_) => {
                let folder = self.folder();
                let line = |name: &str| Some(Stamp::of(&folder.join(name)).ok()?.line(name));
                names.into_iter().filter(|name| !name.contains('\n')).filter_map(line).collect()
            }
            Source::Memory(_) => String::new(),
        }
    }

    /// Checks that the files that `identity` describes have not changed. [`Checkpoint::identity`]
    /// returns such a text. A missing file does not count as changed, because it may come back.
    ///
    /// [`Checkpoint::identity`]: crate::Checkpoint::identity
    ///
    /// # Errors
    /// [`Error::Changed`] names the first file that differs.
    pub fn check_unchanged(&self, identity: &str) -> Result<(), Error> {
        if let Source::Memory(_) = self {
            return Ok(());
        }
        let folder = self.folder();
        for (was, name) in identity.lines().filter_map(Stamp::parse) {
            let how = Stamp::of(&folder.join(name)).ok().and_then(|now| was.change(now));
            if let Some(how) = how {
                return Err(Error::Changed { file: self.path(name), how });
            }
        }
        Ok(())
    }

    /// Returns the folder of the files. It is empty for files in memory, which have no identity.
    fn folder(&self) -> &Path {
        match self {
            Source::Directory(path) => path,
            Source::File(path) => folder(path),
            Source::Memory(_) => Path::new(""),
        }
    }

    /// Maps the file `name`. Returns `None` if the file does not exist.
    pub(crate) fn map(&self, name: &str) -> Result<Option<MappedFile>, Error> {
        let path = match self {
            Source::Directory(_) | Source::File(_) => self.folder().join(name),
            Source::Memory(files) => {
                let found = files.iter().find(|(file, _)| *file == name);
                return Ok(found.map(|&(_, bytes)| MappedFile {
                    name: name.to_owned(),
                    path: self.path(name),
                    contents: Contents::Static(bytes),
                }));
            }
        };
        let read = |source| Error::Read { file: self.path(name), source };
        let Some(file) = open(&path).map_err(read)? else { return Ok(None) };
        // SAFETY: the mapping is read-only and private to this process. The bytes are only read as
        // numbers, for which every bit pattern is valid. If others change the file meanwhile, the
        // worst result is wrong weights, which `Checkpoint::verify` detects. The guard handles a
        // file that becomes shorter.
        let map = unsafe { Mmap::map(&file) }.map_err(read)?;
        let guard = Guard::new(&map).map_err(read)?;
        Ok(Some(MappedFile {
            name: name.to_owned(),
            path: self.path(name),
            contents: Contents::Mapped { guard, map },
        }))
    }

    /// Returns the names of all files, sorted.
    pub(crate) fn names(&self) -> Result<Vec<String>, Error> {
        let mut names = match self {
            Source::Memory(files) => files.iter().map(|(name, _)| (*name).to_owned()).collect(),
            // The file is the only one that is used.
            Source::File(_) => Vec::new(),
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

/// Returns the folder of a file.
fn folder(file: &Path) -> &Path {
    file.parent().unwrap_or(Path::new(""))
}

/// Opens a regular file for reading. Returns `None` if the file does not exist. Anything but a
/// regular file is refused at once, because opening a FIFO without a writer would block forever.
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
