//! PyTorch checkpoints (`pytorch_model.bin`): a ZIP archive with the bytes of each storage, and a
//! pickle that says which tensors are in them.
//!
//! Tensors are ranges of the mapped file. The pickle is read by a machine that can make tensors and
//! nothing else ([`pickle`]). The format before PyTorch 1.6, which was no archive, is refused.

mod pickle;
#[cfg(test)]
mod tests;
mod zip;

use std::collections::HashMap;
use std::ops::Range;

use pickle::{Global, StorageType, Value, ValueId, Values};
use safetensors::Dtype;

use crate::dtype::DType;
use crate::error::{Error, TensorFault};
use crate::fault::FileFault;
use crate::header::Entry;

pub(crate) const SINGLE: &str = "pytorch_model.bin";
pub(crate) const INDEX: &str = "pytorch_model.bin.index.json";

const FORMAT: &str = "PyTorch";
const MAX_AXES: usize = 8;
const MAX_TENSORS: usize = 1 << 18;

/// Returns whether a file of this name is one of PyTorch.
pub(crate) fn is_name(name: &str) -> bool {
    name.ends_with(".bin")
}

/// Returns whether a file begins as an archive.
pub(crate) fn is_archive(file: &[u8]) -> bool {
    file.starts_with(zip::MAGIC)
}

/// Reads the tensors of the file at `path`, whose contents are `file`. They are sorted by name.
pub(crate) fn read(path: &str, file: &[u8]) -> Result<Vec<Entry>, Error> {
    let fault = |fault| Error::ModelFile { file: path.to_owned(), format: FORMAT, fault };
    let archive = Archive::open(file).map_err(fault)?;
    let (values, result) = pickle::run(&file[archive.pickle.clone()]).map_err(fault)?;
    let Value::Dict(pairs) = values.get(result) else {
        return Err(fault(FileFault::Kind(NOT_A_DICTIONARY.to_owned())));
    };
    if pairs.len() > MAX_TENSORS {
        let (count, limit) = (pairs.len() as u64, MAX_TENSORS as u64);
        return Err(fault(FileFault::TooMany { what: "tensors", count, limit }));
    }
    let mut tensors: Vec<Entry> = Vec::new();
    // A file can repeat a long name in a few bytes. Each is hashed and copied once.
    let (mut by_value, mut by_name) = (HashMap::new(), HashMap::new());
    for &(id, value) in pairs {
        let Some(name) = values.text(id) else {
            return Err(fault(FileFault::Kind(NOT_A_DICTIONARY.to_owned())));
        };
        let shown = || name.chars().filter(|c| !c.is_control()).take(200).collect::<String>();
        let (dtype, shape, range) = archive.tensor(&values, value).map_err(|error| match error {
            TensorError::Value(reason) => fault(FileFault::SpecialTensor { tensor: shown(), reason }),
            TensorError::Fault(fault) => {
                Error::Tensor { file: path.to_owned(), tensor: shown(), fault: fault.into() }
            }
        })?;
        let new = tensors.len();
        let place = *by_value.entry(id).or_insert_with(|| *by_name.entry(name).or_insert(new));
        if place == new {
            tensors.push(Entry { name: name.to_owned(), dtype, shape, range });
        } else {
            // A name that is given twice has its last value, as in Python.
            let entry = &mut tensors[place];
            (entry.dtype, entry.shape, entry.range) = (dtype, shape, range);
        }
    }
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(tensors)
}

const NOT_A_DICTIONARY: &str =
    "it is not a dictionary of tensors by name; save one with `torch.save(model.state_dict(), …)`";

/// How to write a file of the old format anew.
const LEGACY: &str = "it has the format from before PyTorch 1.6, which is no archive. Write it again with \
                      `torch.save(torch.load(\"pytorch_model.bin\", weights_only=True), \"new.bin\")`, or \
                      convert the model to safetensors";

/// The places of an archive's entries.
struct Archive {
    entries: zip::Entries,
    /// The name of the folder in the archive, with its slash.
    folder: String,
    pickle: Range<usize>,
}

/// The reason why a tensor cannot be used.
enum TensorError {
    /// The entry is none, or of a kind that is not supported. The text follows its name.
    Value(String),
    Fault(TensorFault),
}

impl From<TensorFault> for TensorError {
    fn from(fault: TensorFault) -> Self {
        TensorError::Fault(fault)
    }
}

fn unusable(reason: &str) -> TensorError {
    TensorError::Value(reason.to_owned())
}

impl Archive {
    fn open(file: &[u8]) -> Result<Self, FileFault> {
        if file.starts_with(b"version https://git-lfs") {
            let reason = "it is a Git LFS pointer, not the file itself; run `git lfs pull` in its folder";
            return Err(FileFault::Kind(reason.to_owned()));
        }
        if !is_archive(file) {
            // The first pickle of the old format is a number.
            let reason = match file.starts_with(&[0x80, 2, 0x8a, 10, 0x6c, 0xfc]) {
                true => LEGACY,
                false => "it is no archive as torch.save writes it; download it again",
            };
            return Err(FileFault::Kind(reason.to_owned()));
        }
        let entries = zip::entries(file)?;
        let pickle = entries.iter().find_map(|(name, range)| {
            let folder = name.strip_suffix("data.pkl")?;
            let is_folder = folder.ends_with('/') && folder.matches('/').count() == 1;
            is_folder.then(|| (folder.to_owned(), range.clone()))
        });
        let Some((folder, pickle)) = pickle else {
            let reason = "it is an archive without data.pkl, and not one that torch.save wrote";
            return Err(FileFault::Kind(reason.to_owned()));
        };
        if let Some(order) = entries.get(&format!("{folder}byteorder"))
            && &file[order.clone()] != b"little"
        {
            return Err(FileFault::BigEndian);
        }
        Ok(Archive { entries, folder, pickle })
    }

    /// Returns element type, shape and place of a tensor.
    fn tensor(
        &self,
        values: &Values<'_>,
        value: ValueId,
    ) -> Result<(DType, Vec<usize>, Range<usize>), TensorError> {
        let Value::Tensor(arguments) = values.get(value) else {
            return Err(unusable("is no tensor; give a file that has nothing but the tensors of the model"));
        };
        let damaged = || unusable("has a description that contradicts itself; the file is damaged");
        let Some(&[storage, offset, shape, strides, ..]) = values.tuple(*arguments) else {
            return Err(damaged());
        };
        let counts = |id| -> Option<Vec<u64>> {
            let items = values.tuple(id).filter(|items| items.len() <= MAX_AXES)?;
            items.iter().map(|&item| values.count(item)).collect()
        };
        let (dtype, stored) = self.storage(values, storage)?;
        let (Some(offset), Some(shape), Some(strides)) =
            (values.count(offset), counts(shape), counts(strides))
        else {
            return Err(damaged());
        };
        if strides.len() != shape.len() {
            return Err(damaged());
        }
        let overflow = || TensorFault::Overflow { shape: shape.clone() };
        let elements = contiguous(&shape, &strides).ok_or_else(overflow)?;
        let Some(elements) = elements else {
            let reason = format!(
                "has the strides {strides:?} for the shape {shape:?}: it is a view of another tensor; call \
                 `.contiguous()` on it before it is saved"
            );
            return Err(TensorError::Value(reason));
        };
        let size = dtype.bits().unwrap_or(8) as u64 / 8;
        let start = offset.checked_mul(size).ok_or_else(overflow)?;
        let end =
            elements.checked_mul(size).and_then(|bytes| bytes.checked_add(start)).ok_or_else(overflow)?;
        // An empty tensor may begin anywhere.
        let (start, end) = if elements == 0 { (0, 0) } else { (start, end) };
        if end > stored.len() as u64 {
            return Err(TensorFault::Truncated { end, data: stored.len() }.into());
        }
        let sizes: Option<Vec<usize>> = shape.iter().map(|&size| usize::try_from(size).ok()).collect();
        let range = stored.start + start as usize..stored.start + end as usize;
        Ok((dtype, sizes.ok_or_else(overflow)?, range))
    }

    /// Returns the element type and the place of a storage: a tuple of the word `storage`, a class,
    /// a key, a device, and a number of elements.
    fn storage(&self, values: &Values<'_>, id: ValueId) -> Result<(DType, Range<usize>), TensorError> {
        let Value::Storage(arguments) = values.get(id) else {
            return Err(unusable("has no storage; the file is damaged"));
        };
        let storage = match values.tuple(*arguments) {
            Some(&[word, class, key, _, _]) if values.text(word) == Some("storage") => {
                values.text(key).map(|key| (values.get(class), key))
            }
            _ => None,
        };
        let Some((Value::Global(Global::Storage(kind)), key)) = storage else {
            return Err(unusable("has a storage of an unknown kind; the file is damaged"));
        };
        match self.entries.get(&format!("{}data/{key}", self.folder)) {
            Some(range) => Ok((dtype(*kind), range.clone())),
            None => Err(unusable("has a storage that is not in the archive; download the file again")),
        }
    }
}

/// Returns the number of elements of a tensor whose rows follow each other, `Some(None)` if they do
/// not, and `None` if the number overflows.
fn contiguous(shape: &[u64], strides: &[u64]) -> Option<Option<u64>> {
    let mut elements = 1u64;
    let mut is_contiguous = true;
    for (&size, &stride) in shape.iter().zip(strides).rev() {
        is_contiguous &= size == 1 || stride == elements;
        elements = elements.checked_mul(size)?;
    }
    Some((is_contiguous || elements == 0).then_some(elements))
}

fn dtype(kind: StorageType) -> DType {
    DType::Known(match kind {
        StorageType::F64 => Dtype::F64,
        StorageType::F32 => Dtype::F32,
        StorageType::F16 => Dtype::F16,
        StorageType::BF16 => Dtype::BF16,
        StorageType::I64 => Dtype::I64,
        StorageType::I32 => Dtype::I32,
        StorageType::I16 => Dtype::I16,
        StorageType::I8 => Dtype::I8,
        StorageType::U8 => Dtype::U8,
        StorageType::Bool => Dtype::BOOL,
    })
}
