//! Writes checkpoints: tensors in safetensors files of a limited size, and their index.
//!
//! All shapes are known before the first number, so headers come first and numbers go to their
//! places as they are made. A [`CheckpointWriter`] therefore needs no memory for tensors.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use crate::checkpoint::{INDEX, SINGLE};
use crate::dtype::DType;

/// The description of a tensor that will be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewTensor {
    /// Name of the tensor.
    pub name: String,
    /// Element type, which must be a known one.
    pub dtype: DType,
    /// Length of each axis.
    pub shape: Vec<usize>,
}

impl NewTensor {
    /// Returns the bytes of the tensor's numbers.
    pub fn bytes(&self) -> usize {
        let elements = self.shape.iter().fold(1usize, |all, &size| all.saturating_mul(size));
        elements.saturating_mul(self.dtype.bits().unwrap_or(0)).div_ceil(8)
    }
}

/// The reason why a checkpoint cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The operating system could not write a file.
    #[error("cannot write {file}: {source}")]
    Io {
        /// Path of the file.
        file: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A tensor was given other bytes than its shape says. This is a bug.
    #[error("tensor {tensor} of the new checkpoint has been given {given} of {bytes} bytes; this is a bug")]
    Bytes {
        /// Name of the tensor.
        tensor: String,
        /// Bytes that were given.
        given: usize,
        /// Bytes that its shape takes.
        bytes: usize,
    },
}

/// A file that is being written.
#[derive(Debug)]
struct NewFile {
    name: String,
    file: File,
}

/// The header of a file, and its length.
struct PlannedFile {
    header: Vec<u8>,
    bytes: u64,
}

/// The place of a tensor that is being written.
#[derive(Debug)]
struct Place {
    /// Index into [`CheckpointWriter::files`].
    file: usize,
    /// Place of the tensor in its file, in bytes.
    start: u64,
    bytes: usize,
    written: usize,
}

/// Writes the files of a checkpoint's weights.
#[derive(Debug)]
pub struct CheckpointWriter {
    folder: PathBuf,
    files: Vec<NewFile>,
    places: BTreeMap<String, Place>,
    total: usize,
}

impl CheckpointWriter {
    /// Creates the files for `groups` of tensors in an existing folder. A file has at most
    /// `max_file_bytes` bytes of numbers, unless a single group has more. Tensors of a group are in
    /// one file.
    ///
    /// # Errors
    /// If a file cannot be created.
    pub fn create(
        folder: &Path,
        groups: Vec<Vec<NewTensor>>,
        max_file_bytes: usize,
    ) -> Result<CheckpointWriter, WriteError> {
        let mut writer = CheckpointWriter::empty(folder);
        for (name, tensors) in files(groups, max_file_bytes) {
            let planned = writer.plan(tensors);
            let created = File::options().write(true).create_new(true).open(folder.join(&name));
            let created = created.and_then(|mut file| {
                file.write_all(&planned.header)?;
                file.set_len(planned.bytes)?;
                Ok(file)
            });
            let file = created.map_err(|source| writer.error(&name, source))?;
            writer.files.push(NewFile { name, file });
        }
        Ok(writer)
    }

    /// Opens the files that [`create`](Self::create) has made in another process with the same
    /// arguments. The first `done` groups were written there and are on the disk. Returns `None`
    /// if the files are not those that it would make.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn reopen(
        folder: &Path,
        groups: Vec<Vec<NewTensor>>,
        max_file_bytes: usize,
        done: usize,
    ) -> Result<Option<CheckpointWriter>, WriteError> {
        let written: Vec<String> =
            groups.iter().take(done).flatten().map(|tensor| tensor.name.clone()).collect();
        let mut writer = CheckpointWriter::empty(folder);
        for (name, tensors) in files(groups, max_file_bytes) {
            let planned = writer.plan(tensors);
            let path = folder.join(&name);
            let Ok(mut file) = File::options().read(true).write(true).open(path) else { return Ok(None) };
            let mut header = vec![0; planned.header.len()];
            let length = file.metadata().map_err(|source| writer.error(&name, source))?.len();
            if length != planned.bytes || file.read_exact(&mut header).is_err() || header != planned.header {
                return Ok(None);
            }
            writer.files.push(NewFile { name, file });
        }
        for tensor in written {
            if let Some(place) = writer.places.get_mut(&tensor) {
                place.written = place.bytes;
            }
        }
        Ok(Some(writer))
    }

    fn empty(folder: &Path) -> CheckpointWriter {
        CheckpointWriter { folder: folder.to_owned(), files: Vec::new(), places: BTreeMap::new(), total: 0 }
    }

    /// Notes the places of a file's tensors, and returns its header and its length.
    fn plan(&mut self, mut tensors: Vec<NewTensor>) -> PlannedFile {
        // PyTorch views the bytes of a file as numbers, so each tensor must be aligned.
        tensors.sort_by_key(|tensor| std::cmp::Reverse(tensor.dtype.bits()));
        let mut header = Map::new();
        // transformers refuses files without this entry.
        header.insert("__metadata__".to_owned(), json!({"format": "pt"}));
        let (mut end, mut ends) = (0, Vec::new());
        for tensor in &tensors {
            let start = end;
            end += tensor.bytes();
            ends.push((start, end));
            let entry = json!({
                "dtype": tensor.dtype.to_string(), "shape": tensor.shape, "data_offsets": [start, end],
            });
            header.insert(tensor.name.clone(), entry);
        }
        let mut text = Value::Object(header).to_string().into_bytes();
        text.resize(text.len().next_multiple_of(8), b' ');
        let data = 8 + text.len() as u64;
        for (tensor, (start, end)) in tensors.into_iter().zip(ends) {
            let (file, start, bytes) = (self.files.len(), data + start as u64, end - start);
            self.places.insert(tensor.name, Place { file, start, bytes, written: 0 });
        }
        self.total += end;
        let header = [&(text.len() as u64).to_le_bytes()[..], &text].concat();
        PlannedFile { header, bytes: data + end as u64 }
    }

    /// Writes the next bytes of a tensor.
    ///
    /// # Errors
    /// If the file cannot be written, or the tensor has fewer bytes.
    pub fn write(&mut self, tensor: &str, bytes: &[u8]) -> Result<(), WriteError> {
        let wrong = |given, bytes| WriteError::Bytes { tensor: tensor.to_owned(), given, bytes };
        let Some(place) = self.places.get_mut(tensor) else { return Err(wrong(bytes.len(), 0)) };
        let end = place.written + bytes.len();
        if end > place.bytes {
            return Err(wrong(end, place.bytes));
        }
        let (index, at) = (place.file, place.start + place.written as u64);
        place.written = end;
        let NewFile { name, file } = &mut self.files[index];
        let written = file.seek(SeekFrom::Start(at)).and_then(|_| file.write_all(bytes));
        written
            .map_err(|source| WriteError::Io { file: self.folder.join(name).display().to_string(), source })
    }

    /// Waits until all bytes that have been written are on the disk.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn sync(&self) -> Result<(), WriteError> {
        self.files.iter().try_for_each(|NewFile { name, file }| {
            file.sync_data().map_err(|source| self.error(name, source))
        })
    }

    /// Writes the index if there are several files, and waits until all bytes are on the disk.
    ///
    /// # Errors
    /// If a file cannot be written, or a tensor lacks bytes.
    pub fn finish(self) -> Result<(), WriteError> {
        if let Some((name, place)) = self.places.iter().find(|(_, place)| place.written != place.bytes) {
            let (tensor, given, bytes) = (name.clone(), place.written, place.bytes);
            return Err(WriteError::Bytes { tensor, given, bytes });
        }
        for NewFile { name, file } in &self.files {
            file.sync_all().map_err(|source| self.error(name, source))?;
        }
        if self.files.len() < 2 {
            return Ok(());
        }
        let of_tensor = |(name, place): (&String, &Place)| (name.clone(), json!(self.files[place.file].name));
        let map: Map<String, Value> = self.places.iter().map(of_tensor).collect();
        let index = json!({"metadata": {"total_size": self.total}, "weight_map": map});
        // An earlier process may have written it.
        let written = File::create(self.folder.join(INDEX)).and_then(|mut file| {
            file.write_all(format!("{index:#}\n").as_bytes())?;
            file.sync_all()
        });
        written.map_err(|source| self.error(INDEX, source))
    }

    fn error(&self, name: &str, source: io::Error) -> WriteError {
        WriteError::Io { file: self.folder.join(name).display().to_string(), source }
    }
}

/// Distributes groups of tensors over files, and names the files.
fn files(groups: Vec<Vec<NewTensor>>, max_file_bytes: usize) -> Vec<(String, Vec<NewTensor>)> {
    let mut files: Vec<Vec<NewTensor>> = Vec::new();
    let mut room = 0;
    for group in groups {
        let bytes: usize = group.iter().map(NewTensor::bytes).sum();
        match files.last_mut().filter(|_| bytes <= room) {
            Some(file) => {
                file.extend(group);
                room -= bytes;
            }
            None => {
                files.push(group);
                room = max_file_bytes.saturating_sub(bytes);
            }
        }
    }
    let count = files.len();
    let name = |index: usize| match count {
        1 => SINGLE.to_owned(),
        _ => format!("model-{:05}-of-{count:05}.safetensors", index + 1),
    };
    files.into_iter().enumerate().map(|(index, tensors)| (name(index), tensors)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Checkpoint, Source};

    fn new(name: &str, dtype: DType, shape: &[usize]) -> NewTensor {
        NewTensor { name: name.to_owned(), dtype, shape: shape.to_vec() }
    }

    fn groups() -> Vec<Vec<NewTensor>> {
        vec![
            vec![new("a.codes", DType::U8, &[3, 1]), new("a.scales", DType::F32, &[2])],
            vec![new("b", DType::I64, &[])],
            vec![new("c", DType::BF16, &[2, 2])],
        ]
    }

    fn write(writer: &mut CheckpointWriter) {
        writer.write("a.codes", &[1, 2]).unwrap();
        writer.write("a.scales", &[4; 8]).unwrap();
        writer.write("a.codes", &[3]).unwrap();
        writer.write("b", &[5; 8]).unwrap();
        writer.write("c", &[6; 8]).unwrap();
    }

    #[test]
    fn checkpoints_are_read_as_they_were_written() {
        for (limit, files) in [(1 << 20, 1), (19, 2), (1, 3)] {
            let folder = tempfile::tempdir().unwrap();
            let mut writer = CheckpointWriter::create(folder.path(), groups(), limit).unwrap();
            write(&mut writer);
            writer.finish().unwrap();
            let found = Checkpoint::open(&Source::Directory(folder.path().to_owned())).unwrap();
            assert_eq!(found.files().count(), files);
            for tensor in groups().into_iter().flatten() {
                let stored = found.find(&tensor.name).unwrap();
                assert_eq!((stored.dtype, stored.shape), (&tensor.dtype, &tensor.shape[..]));
            }
            assert_eq!(found.find("a.codes").unwrap().bytes, [1, 2, 3]);
            assert_eq!(found.find("c").unwrap().bytes, [6; 8]);
        }
    }

    #[test]
    fn tensors_are_aligned_to_their_elements() {
        let folder = tempfile::tempdir().unwrap();
        let writer = CheckpointWriter::create(folder.path(), groups(), 1 << 20).unwrap();
        for tensor in groups().into_iter().flatten() {
            let place = &writer.places[&tensor.name];
            assert!(place.start.is_multiple_of(tensor.dtype.bits().unwrap() as u64 / 8), "{tensor:?}");
        }
    }

    #[test]
    fn too_many_and_too_few_bytes_are_errors() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = CheckpointWriter::create(folder.path(), groups(), 1 << 20).unwrap();
        let error = writer.write("a.codes", &[0; 4]).unwrap_err().to_string();
        assert!(
            error.starts_with("tensor a.codes of the new checkpoint has been given 4 of 3 bytes"),
            "{error}"
        );
        assert!(writer.write("d", &[0]).is_err());
        writer.write("a.codes", &[0; 3]).unwrap();
        let error = writer.finish().unwrap_err().to_string();
        assert!(
            error.contains("tensor a.scales of the new checkpoint has been given 0 of 8 bytes"),
            "{error}"
        );
    }

    #[test]
    fn files_are_opened_again_behind_what_they_have() {
        for limit in [1 << 20, 1] {
            let folder = tempfile::tempdir().unwrap();
            let mut writer = CheckpointWriter::create(folder.path(), groups(), limit).unwrap();
            writer.write("a.codes", &[1, 2, 3]).unwrap();
            writer.write("a.scales", &[4; 8]).unwrap();
            writer.write("b", &[9; 4]).unwrap();
            writer.sync().unwrap();
            drop(writer);
            let reopened = |limit, done| CheckpointWriter::reopen(folder.path(), groups(), limit, done);
            assert!(reopened(if limit == 1 { 1 << 20 } else { 1 }, 1).unwrap().is_none());
            // The half of `b` is written again.
            let mut writer = reopened(limit, 1).unwrap().unwrap();
            assert!(writer.write("a.codes", &[0]).is_err());
            writer.write("b", &[5; 8]).unwrap();
            writer.write("c", &[6; 8]).unwrap();
            writer.finish().unwrap();
            let found = Checkpoint::open(&Source::Directory(folder.path().to_owned())).unwrap();
            assert_eq!(found.find("a.codes").unwrap().bytes, [1, 2, 3]);
            assert_eq!(found.find("b").unwrap().bytes, [5; 8]);
            let mut other = groups();
            other[2][0].name = "d".to_owned();
            assert!(CheckpointWriter::reopen(folder.path(), other, limit, 1).unwrap().is_none());
        }
    }

    #[test]
    fn files_are_never_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("model.safetensors"), "old").unwrap();
        let error = CheckpointWriter::create(folder.path(), groups(), 1 << 20).unwrap_err().to_string();
        assert!(error.contains("cannot write") && error.contains("model.safetensors"), "{error}");
    }
}
