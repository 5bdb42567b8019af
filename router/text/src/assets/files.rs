//! Reads the files of a model.

use std::borrow::Cow;
use std::io;
use std::path::Path;

use millrace_formats::{dangling_link, regular_file, without_special_numbers};
use serde::Deserialize;

use super::error::AssetError;

/// The maximum size of `tokenizer.json` in bytes. Large ones of today have 35 MB.
pub(super) const MAX_TOKENIZER: u64 = 256 << 20;

/// The maximum size of the other files in bytes.
pub(super) const MAX_CONFIG: u64 = 16 << 20;

/// The files of a model: in a folder, in memory, or in both.
#[derive(Debug, Clone)]
pub struct ModelFiles<'a> {
    folder: Option<&'a Path>,
    /// The files in memory. They take precedence over those in the folder.
    inside: Vec<(&'a str, &'a [u8])>,
}

impl<'a> ModelFiles<'a> {
    /// Returns the files of a folder.
    pub fn in_folder(folder: &'a Path) -> Self {
        ModelFiles { folder: Some(folder), inside: Vec::new() }
    }

    /// Returns the files of a model that is one file: those of its folder, unless `inside` has a
    /// file of that name, as it was translated from the model's file.
    pub fn in_model_file(folder: &'a Path, inside: &'a [(&'a str, Vec<u8>)]) -> Self {
        let inside = inside.iter().map(|(name, bytes)| (*name, &bytes[..])).collect();
        ModelFiles { folder: Some(folder), inside }
    }

    /// Returns files in memory.
    pub fn in_memory(files: &'a [(&'a str, &'a [u8])]) -> Self {
        ModelFiles { folder: None, inside: files.to_vec() }
    }

    /// Returns the folder, if there is one.
    pub fn folder(&self) -> Option<&'a Path> {
        self.folder
    }

    /// Returns the content of a file, or `None` if it does not exist.
    ///
    /// # Errors
    /// [`AssetError::Io`] if the file cannot be read, or is too large.
    pub fn read(&self, name: &str) -> Result<Option<Cow<'a, [u8]>>, AssetError> {
        match (self.inside.iter().find(|(file, _)| *file == name), self.folder) {
            (Some((_, bytes)), _) => Ok(Some(Cow::Borrowed(bytes))),
            (None, Some(folder)) => read_optional(folder, name),
            (None, None) => Ok(None),
        }
    }

    /// Reads a JSON file. A file that does not exist has the default.
    ///
    /// # Errors
    /// The same as [`ModelFiles::read`], and [`AssetError::Invalid`] if the file is not what is
    /// expected.
    pub fn json<T: Default + for<'de> Deserialize<'de>>(&self, name: &'static str) -> Result<T, AssetError> {
        match self.read(name)? {
            Some(bytes) => serde_json::from_slice(&without_special_numbers(&bytes))
                .map_err(|error| AssetError::Invalid { file: name.to_owned(), error }),
            None => Ok(T::default()),
        }
    }

    /// Returns the path of the folder, for names and errors.
    pub(super) fn origin(&self) -> String {
        self.folder.map_or_else(|| "embedded model".into(), |folder| folder.display().to_string())
    }
}

/// Reads the file `name` of a folder. Returns `None` if it does not exist.
fn read_optional(folder: &Path, name: &str) -> Result<Option<Cow<'static, [u8]>>, AssetError> {
    let path = folder.join(name);
    match read_file(&path) {
        Ok(bytes) => Ok(Some(Cow::Owned(bytes))),
        Err(AssetError::Io { file, error }) if error.kind() == io::ErrorKind::NotFound => {
            match dangling_link(&path) {
                Some(link) => Err(AssetError::Io { file, error: link.into() }),
                None => Ok(None),
            }
        }
        Err(error) => Err(error),
    }
}

/// Reads a regular file of a reasonable size.
pub(super) fn read_file(path: &Path) -> Result<Vec<u8>, AssetError> {
    let is_large = path.ends_with("tokenizer.json") || path.ends_with("tekken.json");
    let limit = if is_large { MAX_TOKENIZER } else { MAX_CONFIG };
    regular_file::read(path, limit)
        .map_err(|error| AssetError::Io { file: path.display().to_string(), error })
}
