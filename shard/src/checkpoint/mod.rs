//! A model in Hugging Face layout: `config.json`, and weights in one or many safetensors files.
//!
//! Files are mapped, not read, and none of their numbers is believed before it is checked. Each failure is one error that
//! names the file and the tensor. A file that is truncated while it is mapped is one such error too ([`guard`]), and so is
//! one that has been changed when the weights are loaded again ([`identity`]).

mod error;
mod guard;
mod header;
mod identity;
mod source;

use std::collections::BTreeMap;
use std::ops::Range;

use millrace_kernels::{DType, HostTensor, Part};
use serde::Deserialize;

pub use error::{Error, HeaderFault, IndexFault, TensorFault};
pub use source::Source;

use header::Pairs;
use source::MappedFile;

/// Rows of so many bytes are of several pages.
const LONG_ROW: usize = 16 << 10;

/// The longest text about files that is handed on. Linux allows an argument 128 KiB.
const MAX_IDENTITY: usize = 100_000;

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// The weights of a model, mapped.
#[derive(Debug)]
pub struct Checkpoint {
    place: String,
    source: Source,
    /// The files that were looked at, as [`identity`] describes them.
    identity: String,
    files: Vec<MappedFile>,
    tensors: BTreeMap<String, Stored>,
}

#[derive(Debug)]
struct Stored {
    file: usize,
    dtype: String,
    shape: Vec<usize>,
    range: Range<usize>,
}

/// What is known of a stored tensor without looking at its numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// Its name.
    pub name: String,
    /// Element type as the file calls it.
    pub dtype: String,
    /// Length of each axis.
    pub shape: Vec<usize>,
    /// Bytes of its data.
    pub bytes: usize,
    /// Name of its file.
    pub file: String,
}

impl Checkpoint {
    /// Maps the weights of `source`: `model.safetensors`, or the files that `model.safetensors.index.json` names, or the
    /// only safetensors file there is.
    ///
    /// # Errors
    /// If there are none, or a file contradicts itself or the index.
    pub fn open(source: &Source) -> Result<Self, Error> {
        let mut checkpoint = Checkpoint {
            place: source.place(),
            source: source.clone(),
            identity: source.identity(["config.json", INDEX]),
            files: Vec::new(),
            tensors: BTreeMap::new(),
        };
        if let Some(file) = source.map(SINGLE)? {
            checkpoint.add(file, |_| true)?;
        } else if let Some(index) = source.text(INDEX)? {
            checkpoint.add_indexed(source, &index)?;
        } else {
            checkpoint.add_only(source)?;
        }
        Ok(checkpoint)
    }

    /// The tensor `name` exists.
    pub fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// All tensors, by name.
    pub fn tensors(&self) -> impl Iterator<Item = TensorInfo> + '_ {
        self.tensors.iter().map(|(name, stored)| TensorInfo {
            name: name.clone(),
            dtype: stored.dtype.clone(),
            shape: stored.shape.clone(),
            bytes: stored.range.len(),
            file: self.files[stored.file].name.clone(),
        })
    }

    /// Names and sizes in bytes of all files.
    pub fn files(&self) -> impl Iterator<Item = (&str, usize)> + '_ {
        self.files.iter().map(|file| (file.name.as_str(), file.len()))
    }

    /// The tensor `name`, which must have the shape `expected`, of one or two axes.
    ///
    /// # Errors
    /// If it is missing, or its shape or element type is another.
    pub fn tensor(&self, name: &str, expected: &[usize]) -> Result<HostTensor<'_>, Error> {
        let Some(stored) = self.tensors.get(name) else {
            let (place, tensor) = (self.place.clone(), name.to_owned());
            return Err(Error::MissingTensor { place, tensor, expected: expected.to_vec() });
        };
        if stored.shape != expected {
            let (found, expected) = (stored.shape.clone(), expected.to_vec());
            return Err(self.fault(name, stored, TensorFault::Shape { found, expected }));
        }
        let dtype = match stored.dtype.as_str() {
            "F32" => DType::F32,
            "F16" => DType::F16,
            "BF16" => DType::BF16,
            _ => return Err(self.fault(name, stored, TensorFault::DType { dtype: stored.dtype.clone() })),
        };
        let (rows, cols) = match *expected {
            [rows, cols] => (rows, cols),
            // Callers ask for vectors and matrices only; anything else is one long vector.
            _ => (1, expected.iter().product()),
        };
        Ok(HostTensor { dtype, rows, cols, bytes: &self.files[stored.file][stored.range.clone()] })
    }

    /// Asks the operating system to read what `part` takes of its tensor ahead of its use.
    pub fn will_need(&self, part: &Part<'_>) {
        let row = part.tensor.cols * part.tensor.dtype.size();
        let bytes = &part.tensor.bytes[part.rows.start * row..part.rows.end * row];
        let Some(file) = self.files.iter().find(|file| file.as_ptr_range().contains(&bytes.as_ptr())) else {
            return;
        };
        let start = bytes.as_ptr().addr() - file.as_ptr().addr();
        let cols = part.cols.start * part.tensor.dtype.size()..part.cols.end * part.tensor.dtype.size();
        // Where a rank's columns are a small part of the rows, what lies between them is left alone.
        if cols.len() == row || row < LONG_ROW {
            file.will_need(&(start..start + bytes.len()));
        } else {
            for at in (start..start + bytes.len()).step_by(row) {
                file.will_need(&(at + cols.start..at + cols.end));
            }
        }
    }

    /// The files with their sizes and times, as one text; empty if they are in memory, or if there are so many that no
    /// command line could hold the text.
    pub fn identity(&self) -> &str {
        if self.identity.len() <= MAX_IDENTITY { &self.identity } else { "" }
    }

    /// Checks that every byte that was read of the files was there.
    ///
    /// # Errors
    /// If a file was truncated while it was mapped, or its disk failed.
    pub fn check_readable(&self) -> Result<(), Error> {
        self.files.iter().try_for_each(MappedFile::check_readable)
    }

    /// Checks that what was read is what the files held when they were opened.
    ///
    /// # Errors
    /// If a file was changed meanwhile.
    pub fn verify(&self) -> Result<(), Error> {
        self.check_readable()?;
        self.source.check_unchanged(&self.identity)
    }

    /// The error that the tensor `name` would change results but is not used.
    pub(crate) fn unused(&self, name: &str) -> Option<Error> {
        self.tensors.get(name).map(|stored| self.fault(name, stored, TensorFault::Unused))
    }

    fn fault(&self, name: &str, stored: &Stored, fault: TensorFault) -> Error {
        Error::Tensor {
            file: self.files[stored.file].path.clone(),
            tensor: name.to_owned(),
            fault: fault.into(),
        }
    }

    /// Takes the tensors of `file` that `wanted` names.
    fn add(&mut self, file: MappedFile, wanted: impl Fn(&str) -> bool) -> Result<(), Error> {
        self.identity += &self.source.identity([file.name.as_str()]);
        let entries = header::read(&file.path, &file);
        // What is wrong with the header of a file that was cut is not the point.
        file.check_readable()?;
        for entry in entries? {
            if wanted(&entry.name) {
                let header::Entry { name, dtype, shape, range } = entry;
                self.tensors.insert(name, Stored { file: self.files.len(), dtype, shape, range });
            }
        }
        self.files.push(file);
        Ok(())
    }

    fn add_indexed(&mut self, source: &Source, index: &[u8]) -> Result<(), Error> {
        #[derive(Deserialize)]
        struct Index {
            weight_map: Pairs<String>,
        }

        let error = |fault| Error::Index { file: source.path(INDEX), fault };
        let index: Index = serde_json::from_slice(index).map_err(|e| error(IndexFault::Json(e)))?;
        let mut by_file: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (tensor, name) in index.weight_map.0 {
            // The index is not trusted with a path: only plain names of files next to it.
            if !name.ends_with(".safetensors") || name.contains(['/', '\\', ':', '\0']) {
                return Err(error(IndexFault::FileName { tensor, name }));
            }
            by_file.entry(name).or_default().push(tensor);
        }
        if by_file.is_empty() {
            return Err(error(IndexFault::Empty));
        }
        for (name, mut tensors) in by_file {
            tensors.sort();
            let Some(file) = source.map(&name)? else {
                let tensor = tensors.swap_remove(0);
                return Err(error(IndexFault::MissingFile { name, tensor }));
            };
            for tensor in &tensors {
                if self.contains(tensor) {
                    return Err(error(IndexFault::Duplicate(tensor.clone())));
                }
            }
            self.add(file, |tensor| tensors.binary_search_by(|listed| listed.as_str().cmp(tensor)).is_ok())?;
            if let Some(pair) = tensors.windows(2).find(|pair| pair[0] == pair[1]) {
                return Err(error(IndexFault::Duplicate(pair[0].clone())));
            }
            if let Some(tensor) = tensors.into_iter().find(|tensor| !self.contains(tensor)) {
                return Err(error(IndexFault::MissingTensor { name, tensor }));
            }
        }
        Ok(())
    }

    /// A folder with neither of the usual names: its only safetensors file, or advice.
    fn add_only(&mut self, source: &Source) -> Result<(), Error> {
        let names = source.names()?;
        let found: Vec<&String> = names.iter().filter(|name| name.ends_with(".safetensors")).collect();
        let other =
            names.iter().find(|name| [".bin", ".pt", ".pth", ".gguf"].iter().any(|end| name.ends_with(end)));
        let advice = match (found.as_slice(), other) {
            ([name], _) => {
                if let Some(file) = source.map(name)? {
                    return self.add(file, |_| true);
                }
                format!("{name} has just been removed")
            }
            ([first, second, ..], _) => {
                format!("it has {first}, {second} and perhaps more; the index says which tensors are where")
            }
            ([], Some(other)) => format!("it has {other}; convert the model to safetensors first"),
            ([], None) => "download the weights".to_owned(),
        };
        Err(Error::NoWeights { place: self.place.clone(), advice })
    }
}

#[cfg(test)]
mod tests;
