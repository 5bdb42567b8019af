//! A model in Hugging Face layout: `config.json`, and weights in one or many safetensors files, or
//! in PyTorch's files.
//!
//! Files are mapped, not read. A file that is truncated while it is mapped is an error and no crash
//! ([`crate::guard`]), and so is a file that has been changed when the weights are loaded again
//! ([`crate::identity`]).

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use serde::Deserialize;

use crate::dtype::DType;
use crate::error::{Error, IndexFault, TensorFault};
use crate::header::{self, Entry, Pairs};
use crate::identity::MAX_IDENTITY;
use crate::mapped_file::MappedFile;
use crate::pytorch;
use crate::source::Source;
use crate::translated::{Derivation, DerivedTensor, ModelFile};

pub(crate) const SINGLE: &str = "model.safetensors";
pub(crate) const INDEX: &str = "model.safetensors.index.json";

/// The mapped weights of a model.
#[derive(Debug)]
pub struct Checkpoint {
    place: String,
    source: Source,
    /// Sizes and times of the files that were opened, see [`Source::check_unchanged`].
    identity: String,
    files: Vec<OpenFile>,
    tensors: BTreeMap<String, StoredTensor>,
}

/// A mapped file, and its bytes as an owner that tensors can share.
#[derive(Debug)]
struct OpenFile {
    mapped: Arc<MappedFile>,
    bytes: Bytes,
}

/// The place of a tensor.
#[derive(Debug)]
struct StoredTensor {
    /// Index into [`Checkpoint::files`].
    file: usize,
    dtype: DType,
    shape: Vec<usize>,
    range: Range<usize>,
    derived: Option<Derived>,
}

/// The way in which a tensor is made from the bytes of its file, and the result once it has been
/// made. It is kept as long as the checkpoint.
#[derive(Debug)]
struct Derived {
    derivation: Derivation,
    bytes: OnceLock<Bytes>,
}

impl StoredTensor {
    /// Returns the length of the data in bytes.
    fn bytes(&self) -> usize {
        let stored = self.range.len();
        self.derived.as_ref().map_or(stored, |derived| derived.derivation.bytes(stored))
    }
}

/// A tensor of a checkpoint, row-major and little-endian.
#[derive(Debug, Clone)]
pub struct Tensor<'a> {
    /// Element type.
    pub dtype: &'a DType,
    /// Length of each axis.
    pub shape: &'a [usize],
    /// The data.
    pub bytes: &'a [u8],
    /// The file that the data is in.
    owner: &'a Bytes,
}

impl Tensor<'_> {
    /// Returns the data with a share in the ownership of its file. The file stays mapped as long as
    /// the data exists, even if the checkpoint is dropped.
    pub fn shared_bytes(&self) -> Bytes {
        self.owner.slice_ref(self.bytes)
    }
}

/// The description of a stored tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name of the tensor.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Length of each axis.
    pub shape: Vec<usize>,
    /// Length of the data in bytes.
    pub bytes: usize,
    /// Name of the file that holds the tensor.
    pub file: String,
}

impl Checkpoint {
    /// Maps the weights of `source`: those of a file with a whole model, or `model.safetensors`, or
    /// the files that `model.safetensors.index.json` names, or the only safetensors file of the
    /// source. If there is no safetensors file, those of `pytorch_model.bin`, or the files that
    /// `pytorch_model.bin.index.json` names.
    ///
    /// # Errors
    /// If there are no weights, or a file contradicts itself or the index.
    pub fn open(source: &Source) -> Result<Self, Error> {
        if let Some(model) = source.model_file()? {
            return Self::of_model_file(source, model);
        }
        let mut checkpoint = Checkpoint {
            place: source.place(),
            source: source.clone(),
            identity: source.identity(["config.json", INDEX, pytorch::INDEX]),
            files: Vec::new(),
            tensors: BTreeMap::new(),
        };
        if let Some(file) = source.map(SINGLE)? {
            checkpoint.add(file, |_| true)?;
        } else if let Some(index) = source.text(INDEX)? {
            checkpoint.add_indexed(source, INDEX, ".safetensors", &index)?;
        } else if !checkpoint.add_only(source)? {
            checkpoint.add_pytorch(source)?;
        }
        Ok(checkpoint)
    }

    /// Maps the first of the files `names` that a folder has, and nothing else. Files whose names
    /// end with `.bin` are files of PyTorch, and the others are safetensors files.
    ///
    /// # Errors
    /// If a file contradicts itself.
    pub fn open_only(source: &Source, names: &[&str]) -> Result<Option<Self>, Error> {
        let mut checkpoint = Checkpoint {
            place: source.place(),
            source: source.clone(),
            identity: String::new(),
            files: Vec::new(),
            tensors: BTreeMap::new(),
        };
        for name in names {
            if let Some(file) = source.map(name)? {
                checkpoint.add(file, |_| true)?;
                return Ok(Some(checkpoint));
            }
        }
        Ok(None)
    }

    /// Returns whether the tensor `name` exists.
    pub fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// Returns the descriptions of all tensors, sorted by name.
    pub fn tensors(&self) -> impl Iterator<Item = TensorInfo> + '_ {
        self.tensors.iter().map(|(name, stored)| TensorInfo {
            name: name.clone(),
            dtype: stored.dtype.clone(),
            shape: stored.shape.clone(),
            bytes: stored.bytes(),
            file: self.files[stored.file].mapped.name.clone(),
        })
    }

    /// Returns the names of all files, and their sizes in bytes.
    pub fn files(&self) -> impl Iterator<Item = (&str, usize)> + '_ {
        self.files.iter().map(|file| (file.mapped.name.as_str(), file.bytes.len()))
    }

    /// Returns the tensor `name`, which must have the shape `expected`.
    ///
    /// # Errors
    /// If the tensor is missing, or has another shape.
    pub fn tensor(&self, name: &str, expected: &[usize]) -> Result<Tensor<'_>, Error> {
        let Some(tensor) = self.find(name) else {
            let (place, tensor) = (self.place.clone(), name.to_owned());
            return Err(Error::MissingTensor { place, tensor, expected: expected.to_vec() });
        };
        if tensor.shape != expected {
            let fault = TensorFault::Shape { found: tensor.shape.to_vec(), expected: expected.to_vec() };
            let (file, tensor) = (self.path_of(name).unwrap_or_default().to_owned(), name.to_owned());
            return Err(Error::Tensor { file, tensor, fault: fault.into() });
        }
        Ok(tensor)
    }

    /// Returns the tensor `name`, whatever its shape, if it exists.
    pub fn find(&self, name: &str) -> Option<Tensor<'_>> {
        let stored = self.tensors.get(name)?;
        let file = &self.files[stored.file].bytes;
        let (owner, bytes) = match &stored.derived {
            None => (file, &file[stored.range.clone()]),
            Some(Derived { derivation, bytes }) => {
                let made = bytes.get_or_init(|| derivation.derive(&file[stored.range.clone()]).into());
                (made, &made[..])
            }
        };
        Some(Tensor { dtype: &stored.dtype, shape: &stored.shape, bytes, owner })
    }

    /// Returns the path of the file that holds the tensor `name`.
    pub fn path_of(&self, name: &str) -> Option<&str> {
        self.tensors.get(name).map(|stored| self.files[stored.file].mapped.path.as_str())
    }

    /// Asks the operating system to read these bytes of a tensor ahead of their use.
    pub fn will_need(&self, bytes: &[u8]) {
        let holds = |file: &&OpenFile| file.bytes.as_ptr_range().contains(&bytes.as_ptr());
        if let Some(file) = self.files.iter().find(holds) {
            let start = bytes.as_ptr().addr() - file.bytes.as_ptr().addr();
            file.mapped.will_need(start..start + bytes.len());
        }
    }

    /// Returns the files with their sizes and times, as one text. The text is empty if the files
    /// are in memory, or if there are so many of them that no command line could hold the text.
    pub fn identity(&self) -> &str {
        if self.identity.len() <= MAX_IDENTITY { &self.identity } else { "" }
    }

    /// Returns the folder, for messages.
    pub fn place(&self) -> String {
        self.source.place()
    }

    /// Checks that all bytes that have been read so far were in the files.
    ///
    /// # Errors
    /// If a file was truncated while it was mapped, or its disk failed.
    pub fn check_readable(&self) -> Result<(), Error> {
        self.files.iter().try_for_each(|file| file.mapped.check_readable())
    }

    /// Checks that everything that has been read so far is what the files held when they were
    /// opened.
    ///
    /// # Errors
    /// If a file has been changed since then, or could not be read.
    pub fn verify(&self) -> Result<(), Error> {
        self.check_readable()?;
        self.source.check_unchanged(&self.identity)
    }

    /// Creates the checkpoint of a file with a whole model.
    fn of_model_file(source: &Source, model: ModelFile) -> Result<Self, Error> {
        let ModelFile { files, tensors, derived, .. } = model;
        let mut checkpoint = Checkpoint {
            place: source.place(),
            source: source.clone(),
            identity: source.identity(files.iter().map(|file| file.name.as_str())),
            files: Vec::new(),
            tensors: BTreeMap::new(),
        };
        for (file, entry) in tensors {
            let Entry { name, dtype, shape, range } = entry;
            // Parts of a split model could have the same tensor.
            if checkpoint.contains(&name) {
                let (file, fault) = (files[file].path.clone(), TensorFault::Duplicate.into());
                return Err(Error::Tensor { file, tensor: name, fault });
            }
            checkpoint.tensors.insert(name, StoredTensor { file, dtype, shape, range, derived: None });
        }
        for DerivedTensor { name, dtype, shape, file, range, derivation } in derived {
            if checkpoint.contains(&name) {
                let (file, fault) = (files[file].path.clone(), TensorFault::Duplicate.into());
                return Err(Error::Tensor { file, tensor: name, fault });
            }
            let derived = match derivation {
                Derivation::Same => None,
                derivation => Some(Derived { derivation, bytes: OnceLock::new() }),
            };
            checkpoint.tensors.insert(name, StoredTensor { file, dtype, shape, range, derived });
        }
        for mapped in files {
            let bytes = MappedFile::shared_bytes(&mapped);
            checkpoint.files.push(OpenFile { mapped, bytes });
        }
        Ok(checkpoint)
    }

    /// Adds the tensors of `file` for whose names `wanted` holds.
    fn add(&mut self, file: MappedFile, wanted: impl Fn(&str) -> bool) -> Result<(), Error> {
        self.identity += &self.source.identity([file.name.as_str()]);
        let entries = match pytorch::is_name(&file.name) {
            true => pytorch::read(&file.path, &file),
            false => header::read(&file.path, &file),
        };
        // The header of a truncated file is damaged too, but the truncation is the reason to
        // report.
        file.check_readable()?;
        for entry in entries? {
            if wanted(&entry.name) {
                let Entry { name, dtype, shape, range } = entry;
                let file = self.files.len();
                self.tensors.insert(name, StoredTensor { file, dtype, shape, range, derived: None });
            }
        }
        let mapped = Arc::new(file);
        let bytes = MappedFile::shared_bytes(&mapped);
        self.files.push(OpenFile { mapped, bytes });
        Ok(())
    }

    /// Adds the files and tensors that the index of this name lists. Its files have names with this
    /// ending.
    fn add_indexed(
        &mut self,
        source: &Source,
        index_name: &str,
        ending: &'static str,
        index: &[u8],
    ) -> Result<(), Error> {
        #[derive(Deserialize)]
        struct Index {
            weight_map: Pairs<String>,
        }

        let error = |fault| Error::Index { file: source.path(index_name), fault };
        let index: Index = serde_json::from_slice(index).map_err(|e| error(IndexFault::Json(e)))?;
        let mut by_file: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (tensor, name) in index.weight_map.0 {
            // The index is not trusted: only plain names of files beside it are opened.
            if !name.ends_with(ending) || name.contains(['/', '\\', ':', '\0']) {
                return Err(error(IndexFault::FileName { tensor, name, ending }));
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

    /// Adds the only safetensors file of a folder that has neither of the usual names. Returns
    /// whether there is one.
    fn add_only(&mut self, source: &Source) -> Result<bool, Error> {
        let names = source.names()?;
        let found: Vec<&String> = names.iter().filter(|name| name.ends_with(".safetensors")).collect();
        let advice = match found.as_slice() {
            [] => return Ok(false),
            [name] => {
                if let Some(file) = source.map(name)? {
                    return self.add(file, |_| true).map(|()| true);
                }
                format!("{name} has just been removed")
            }
            [first, second, ..] => {
                format!("it has {first}, {second} and perhaps more; the index says which tensors are where")
            }
        };
        Err(Error::NoWeights { place: self.place.clone(), advice })
    }

    /// Adds PyTorch's files, or explains what to do.
    fn add_pytorch(&mut self, source: &Source) -> Result<(), Error> {
        if let Some(file) = source.map(pytorch::SINGLE)? {
            return self.add(file, |_| true);
        }
        if let Some(index) = source.text(pytorch::INDEX)? {
            return self.add_indexed(source, pytorch::INDEX, ".bin", &index);
        }
        let names = source.names()?;
        let is_other =
            |name: &&String| [".bin", ".pt", ".pth", ".gguf"].iter().any(|end| name.ends_with(end));
        let advice = match names.iter().find(is_other) {
            Some(other) if other.ends_with(".gguf") => format!("it has {other}; give this file as the model"),
            Some(other) => format!(
                "it has {other}, but of PyTorch's files only {} and those of {} are read",
                pytorch::SINGLE,
                pytorch::INDEX
            ),
            None => "download the weights".to_owned(),
        };
        Err(Error::NoWeights { place: self.place.clone(), advice })
    }
}
