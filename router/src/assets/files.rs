//! Reads the files of a folder.

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

/// Reads the file `name` of a folder. Returns `None` if it does not exist.
pub(super) fn read_optional(folder: &Path, name: &str) -> Result<Option<Cow<'static, [u8]>>, AssetError> {
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

/// Reads a JSON file. A file that does not exist has the default.
pub(super) fn json<'a, T: Default + for<'de> Deserialize<'de>>(
    file: &impl Fn(&'static str) -> Result<Option<Cow<'a, [u8]>>, AssetError>,
    name: &'static str,
) -> Result<T, AssetError> {
    match file(name)? {
        Some(bytes) => serde_json::from_slice(&without_special_numbers(&bytes))
            .map_err(|error| AssetError::Invalid { file: name.to_owned(), error }),
        None => Ok(T::default()),
    }
}
