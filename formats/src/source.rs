//! The place of a checkpoint's files: a folder, a file with a whole model, or this program.

use std::io::Read;
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::identity::Stamp;
use crate::mapped_file::{self, MappedFile};
use crate::model_file;
use crate::translated::ModelFile;
use crate::vocabulary::TokenizerData;

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
        let Some(file) = mapped_file::open(&path).map_err(read)? else { return Ok(None) };
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
    /// and [`identity_of`](crate::identity_of) return such texts, and they may be joined. A missing
    /// file does not count as changed, because it may come back.
    ///
    /// [`Checkpoint::identity`]: crate::Checkpoint::identity
    ///
    /// # Errors
    /// [`Error::Changed`] names the first file that differs.
    pub fn check_unchanged(&self, identity: &str) -> Result<(), Error> {
        let folder = self.folder();
        // A path from the root replaces the folder.
        for (was, name) in identity.lines().filter_map(Stamp::parse) {
            let how = Stamp::of(&folder.join(name)).ok().and_then(|now| was.change(now));
            if let Some(how) = how {
                let is_beside = Path::new(name).is_absolute();
                let file = if is_beside { name.to_owned() } else { self.path(name) };
                return Err(Error::Changed { file, how });
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
                return Ok(found.map(|&(_, bytes)| MappedFile::of_program(name, self.path(name), bytes)));
            }
        };
        MappedFile::map(name, self.path(name), &path)
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
