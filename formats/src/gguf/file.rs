//! The header of a GGUF file: its metadata, and the places of its tensors.

use std::collections::BTreeMap;
use std::ops::Range;

use millrace_numbers::BlockType;
use safetensors::Dtype;

use super::value::{Lengths, Value};
use crate::cursor::Cursor;
use crate::dtype::DType;
use crate::error::{Error, TensorFault};
use crate::fault::FileFault;

/// The first bytes of a file.
pub(crate) const MAGIC: &[u8; 4] = b"GGUF";

/// The name of the format in messages.
const FORMAT: &str = "GGUF";

const MAX_KEYS: u64 = 1 << 16;
const MAX_TENSORS: u64 = 1 << 18;
const MAX_AXES: u32 = 4;
const MAX_NAME: usize = 256;
const DEFAULT_ALIGNMENT: u64 = 32;

/// The header of one file.
#[derive(Debug)]
pub(super) struct Header<'a> {
    path: &'a str,
    keys: BTreeMap<&'a str, Value<'a>>,
    pub(super) tensors: Vec<StoredTensor>,
}

/// A tensor of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StoredTensor {
    /// Name in the file.
    pub(super) name: String,
    pub(super) dtype: DType,
    /// Length of each axis, the outer one first, as in other formats. The file has the inner one
    /// first.
    pub(super) shape: Vec<usize>,
    /// Place of the data in the file, in bytes. It lies within the file.
    pub(super) range: Range<usize>,
}

/// A tensor whose place is not known yet.
struct Listed {
    name: String,
    dtype: DType,
    shape: Vec<usize>,
    bytes: u64,
    /// Offset from the begin of the data.
    offset: u64,
}

impl<'a> Header<'a> {
    /// Reads the header of the file at `path`, whose contents are `bytes`.
    pub(super) fn read(path: &'a str, bytes: &'a [u8]) -> Result<Self, Error> {
        Self::read_begin(path, bytes, bytes.len())
    }

    /// Reads the header of the file at `path`, which has `length` bytes and begins with `bytes`.
    pub(super) fn read_begin(path: &'a str, bytes: &'a [u8], length: usize) -> Result<Self, Error> {
        let fault = |fault| Error::ModelFile { file: path.to_owned(), format: FORMAT, fault };
        let mut cursor = Cursor::new(bytes);
        let (lengths, tensors, keys) = counts(&mut cursor).map_err(fault)?;
        let keys = metadata(&mut cursor, lengths, keys).map_err(fault)?;
        let mut header = Header { path, keys, tensors: Vec::new() };

        // The count has been checked against the file's size.
        let mut listed = Vec::with_capacity(tensors);
        for _ in 0..tensors {
            listed.push(header.tensor(&mut cursor, lengths)?);
        }
        let alignment = header.count("general.alignment")?.unwrap_or(DEFAULT_ALIGNMENT);
        if !alignment.is_power_of_two() || !(8..=1 << 16).contains(&alignment) {
            return Err(fault(FileFault::Alignment(alignment)));
        }
        let data = (cursor.at() as u64).next_multiple_of(alignment);
        for tensor in listed {
            let tensor = header.place(tensor, data, alignment, length)?;
            header.tensors.push(tensor);
        }
        header.check_names()?;
        Ok(header)
    }

    fn tensor(&self, cursor: &mut Cursor<'a>, lengths: Lengths) -> Result<Listed, Error> {
        let fault = |fault| self.fault(fault);
        let name = lengths.text(cursor, "the name of a tensor").map_err(fault)?;
        let name = std::str::from_utf8(name).ok().filter(|name| (1..=MAX_NAME).contains(&name.len()));
        let Some(name) = name else {
            let what = format!("the name of a tensor before byte {}, or too short or too long,", cursor.at());
            return Err(fault(FileFault::NotText { what }));
        };
        let axes = cursor.u32("a tensor's number of axes").map_err(fault)?;
        let mut shape = Vec::new();
        for _ in 0..axes.min(MAX_AXES) {
            shape.push(lengths.read(cursor, "a tensor's shape").map_err(fault)?);
        }
        if axes > MAX_AXES {
            let fault = TensorFault::Axes { found: axes, limit: MAX_AXES };
            return Err(self.tensor_fault(name, fault));
        }
        shape.reverse();
        let id = cursor.u32("a tensor's type").map_err(fault)?;
        let offset = cursor.u64("a tensor's offset").map_err(fault)?;
        let Some(kind) = GgmlType::of(id) else {
            return Err(fault(FileFault::UnknownType { what: format!("the tensor {name}"), id }));
        };
        let (sizes, bytes) = kind.size(&shape).map_err(|fault| self.tensor_fault(name, fault))?;
        Ok(Listed { name: name.to_owned(), dtype: kind.dtype(), shape: sizes, bytes, offset })
    }

    /// Returns a tensor with its place in a file of `file` bytes, whose data begins at `data`.
    fn place(&self, tensor: Listed, data: u64, alignment: u64, file: usize) -> Result<StoredTensor, Error> {
        let Listed { name, dtype, shape, bytes, offset } = tensor;
        if !offset.is_multiple_of(alignment) {
            return Err(self.tensor_fault(&name, TensorFault::Unaligned { offset, alignment }));
        }
        let end = offset.checked_add(bytes);
        let range = end.and_then(|end| end.checked_add(data)).and_then(|end| {
            let end = usize::try_from(end).ok().filter(|&end| end <= file)?;
            Some(end - usize::try_from(bytes).ok()?..end)
        });
        match range {
            Some(range) => Ok(StoredTensor { name, dtype, shape, range }),
            None => {
                let data = file.saturating_sub(usize::try_from(data).unwrap_or(usize::MAX));
                let end = end.unwrap_or(u64::MAX);
                Err(self.tensor_fault(&name, TensorFault::Truncated { end, data }))
            }
        }
    }

    /// Checks that no two tensors have the same name, and none shares bytes with another.
    fn check_names(&self) -> Result<(), Error> {
        let mut order: Vec<&StoredTensor> = self.tensors.iter().collect();
        order.sort_by(|a, b| a.name.cmp(&b.name));
        if let Some(pair) = order.windows(2).find(|pair| pair[0].name == pair[1].name) {
            return Err(self.tensor_fault(&pair[0].name, TensorFault::Duplicate));
        }
        order.sort_by_key(|tensor| (tensor.range.start, tensor.range.end));
        match order.windows(2).find(|pair| pair[1].range.start < pair[0].range.end) {
            Some(pair) => {
                let other = pair[0].name.clone();
                Err(self.tensor_fault(&pair[1].name, TensorFault::Overlap { other }))
            }
            None => Ok(()),
        }
    }

    pub(super) fn fault(&self, fault: FileFault) -> Error {
        Error::ModelFile { file: self.path.to_owned(), format: FORMAT, fault }
    }

    pub(super) fn tensor_fault(&self, tensor: &str, fault: TensorFault) -> Error {
        Error::Tensor { file: self.path.to_owned(), tensor: tensor.to_owned(), fault: fault.into() }
    }

    /// Returns the value of a key.
    pub(super) fn value(&self, key: &str) -> Option<Value<'a>> {
        self.keys.get(key).copied()
    }

    /// Returns all keys, sorted.
    pub(super) fn keys(&self) -> impl Iterator<Item = &'a str> {
        self.keys.keys().copied()
    }

    fn read_value<T>(
        &self,
        key: &str,
        read: impl FnOnce(&Value<'a>, &str) -> Result<T, FileFault>,
    ) -> Result<Option<T>, Error> {
        self.value(key).map(|value| read(&value, key)).transpose().map_err(|fault| self.fault(fault))
    }

    /// Reads a whole number of at least 0, if the key exists.
    pub(super) fn count(&self, key: &str) -> Result<Option<u64>, Error> {
        self.read_value(key, Value::count)
    }

    /// Reads a number, if the key exists.
    pub(super) fn number(&self, key: &str) -> Result<Option<f64>, Error> {
        self.read_value(key, Value::number)
    }

    /// Reads a truth value, if the key exists.
    pub(super) fn truth(&self, key: &str) -> Result<Option<bool>, Error> {
        self.read_value(key, Value::truth)
    }

    /// Reads a text, if the key exists.
    pub(super) fn text(&self, key: &str) -> Result<Option<&'a str>, Error> {
        self.read_value(key, Value::text)
    }

    /// Reads an array with `read`, if the key exists.
    pub(super) fn array<T>(
        &self,
        key: &str,
        read: impl FnOnce(&super::value::Array<'a>, &str) -> Result<T, FileFault>,
    ) -> Result<Option<T>, Error> {
        self.read_value(key, |value, key| value.array(key).and_then(|array| read(&array, key)))
    }
}

/// Reads the begin of a file: the width of lengths, and the numbers of tensors and keys.
fn counts(cursor: &mut Cursor<'_>) -> Result<(Lengths, usize, u64), FileFault> {
    let magic = cursor.take(4, "the first word")?;
    if magic != MAGIC {
        return Err(FileFault::Kind("its first bytes are not those of such a file".to_owned()));
    }
    let version = cursor.u32("the version")?;
    let lengths = match version {
        1 => Lengths::Short,
        2 | 3 => Lengths::Long,
        // The word of a big-endian file, read in the other order.
        _ if version & 0xffff == 0 && version != 0 => return Err(FileFault::BigEndian),
        _ => return Err(FileFault::Version { found: version.into(), known: "1, 2 and 3" }),
    };
    let tensors = lengths.read(cursor, "the number of tensors")?;
    let keys = lengths.read(cursor, "the number of keys")?;
    // The shortest entries have an empty name and no axis.
    let (tensor, key) = if lengths == Lengths::Short { (20, 9) } else { (24, 13) };
    let left = cursor.left() as u64;
    for (what, count, limit) in
        [("tensors", tensors, MAX_TENSORS.min(left / tensor)), ("keys", keys, MAX_KEYS.min(left / key))]
    {
        if count > limit {
            return Err(FileFault::TooMany { what, count, limit });
        }
    }
    let tensors = usize::try_from(tensors).unwrap_or(usize::MAX);
    Ok((lengths, tensors, keys))
}

fn metadata<'a>(
    cursor: &mut Cursor<'a>,
    lengths: Lengths,
    count: u64,
) -> Result<BTreeMap<&'a str, Value<'a>>, FileFault> {
    let mut keys = BTreeMap::new();
    for _ in 0..count {
        let at = cursor.at();
        let key = lengths.text(cursor, "a key")?;
        let Ok(key) = std::str::from_utf8(key) else {
            return Err(FileFault::NotText { what: format!("the key at byte {at}") });
        };
        let value = Value::read(cursor, lengths, key)?;
        if keys.insert(key, value).is_some() {
            return Err(FileFault::Duplicate { what: format!("the key {key}") });
        }
    }
    Ok(keys)
}

/// The type of a tensor's elements.
#[derive(Debug, Clone, Copy)]
pub(crate) enum GgmlType {
    Plain(Dtype),
    Blocks(BlockType),
    /// A type of blocks that no part of this program can read: name, elements and bytes of a block.
    Other(&'static str, usize, usize),
}

impl GgmlType {
    /// Returns the type with this number.
    pub(crate) fn of(id: u32) -> Option<Self> {
        use GgmlType::{Other, Plain};
        if let Some(blocks) = BlockType::from_ggml_id(id) {
            return Some(GgmlType::Blocks(blocks));
        }
        Some(match id {
            0 => Plain(Dtype::F32),
            1 => Plain(Dtype::F16),
            9 => Other("Q8_1", 32, 36),
            15 => Other("Q8_K", 256, 292),
            24 => Plain(Dtype::I8),
            25 => Plain(Dtype::I16),
            26 => Plain(Dtype::I32),
            27 => Plain(Dtype::I64),
            28 => Plain(Dtype::F64),
            30 => Plain(Dtype::BF16),
            _ => return None,
        })
    }

    pub(crate) fn dtype(self) -> DType {
        match self {
            GgmlType::Plain(dtype) => DType::Known(dtype),
            GgmlType::Blocks(blocks) => DType::Blocks(blocks),
            GgmlType::Other(name, ..) => DType::Unknown(name.to_owned()),
        }
    }

    /// Returns the shape `axes`, whose last axis is the inner one, and the bytes of a tensor. Its
    /// rows are whole blocks.
    pub(crate) fn size(self, axes: &[u64]) -> Result<(Vec<usize>, u64), TensorFault> {
        let overflow = || TensorFault::Overflow { shape: axes.to_vec() };
        let shape: Vec<usize> = axes
            .iter()
            .map(|&size| usize::try_from(size))
            .collect::<Result<_, _>>()
            .map_err(|_| overflow())?;
        let elements =
            shape.iter().try_fold(1usize, |product, &size| product.checked_mul(size)).ok_or_else(overflow)?;
        let (block, bytes) = match self {
            GgmlType::Plain(dtype) => (1, dtype.bitsize() / 8),
            GgmlType::Blocks(blocks) => (blocks.cols(), blocks.bytes()),
            GgmlType::Other(_, elements, bytes) => (elements, bytes),
        };
        let cols = shape.last().copied().unwrap_or(1);
        if !cols.is_multiple_of(block) {
            let dtype = self.dtype().to_string();
            return Err(TensorFault::PartialBlock { dtype, cols, block });
        }
        let bytes = (elements / block).checked_mul(bytes).ok_or_else(overflow)?;
        Ok((shape, bytes as u64))
    }
}
