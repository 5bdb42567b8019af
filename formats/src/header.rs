//! The header of a safetensors file: eight bytes of length, a JSON table of tensors, then their
//! data without gaps.
//!
//! The `safetensors` crate parses and checks the header. Its errors mostly do not name the tensor,
//! and it refuses a file with an element type that it does not know. Therefore [`examine`] reads
//! the table of a refused file once more: it finds the tensor at fault, or accepts the file if an
//! unknown element type is the only reason.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;

use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;
use serde::de::value::{Error as NameError, StrDeserializer};
use serde::de::{Deserializer, Error as _, IgnoredAny, IntoDeserializer, MapAccess, Visitor};

use crate::dtype::DType;
use crate::error::{Error, HeaderFault, TensorFault};

/// The longest header that is accepted, as in other readers of the format.
const MAX_HEADER: usize = 100_000_000;

/// The largest number of tensors in a file. The largest mixtures of experts have half as many in
/// all of their files.
const MAX_TENSORS: usize = 1 << 19;

/// A tensor of one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<usize>,
    /// Place of the data in the file, in bytes. It lies within the file.
    pub(crate) range: Range<usize>,
}

/// Reads the header of the file at `path`, whose contents are `bytes`. The tensors are sorted by
/// name.
pub(crate) fn read(path: &str, bytes: &[u8]) -> Result<Vec<Entry>, Error> {
    let (header, data) = split(bytes).map_err(|fault| Error::Header { file: path.to_owned(), fault })?;
    let Ok((_, metadata)) = SafeTensors::read_metadata(bytes) else { return examine(path, header, data) };
    let offset = bytes.len() - data.len();
    let entry = |(name, info): (String, &safetensors::tensor::TensorInfo)| {
        let (start, end) = info.data_offsets;
        let range = start + offset..end + offset;
        Entry { name, dtype: DType::Known(info.dtype), shape: info.shape.clone(), range }
    };
    let mut entries: Vec<Entry> = metadata.tensors().into_iter().map(entry).collect();
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(entries)
}

/// Splits a file into header and data.
fn split(bytes: &[u8]) -> Result<(&[u8], &[u8]), HeaderFault> {
    if bytes.starts_with(b"version https://git-lfs") {
        return Err(HeaderFault::LfsPointer);
    }
    let Some((length, rest)) = bytes.split_first_chunk::<8>() else {
        return Err(HeaderFault::TooShort(bytes.len()));
    };
    let announced = u64::from_le_bytes(*length);
    let (header, data) = match usize::try_from(announced) {
        Ok(length) if length <= MAX_HEADER => rest
            .split_at_checked(length)
            .ok_or(HeaderFault::Truncated { header: announced, file: bytes.len() })?,
        _ => return Err(HeaderFault::TooLong(announced, MAX_HEADER)),
    };
    // Each tensor is an object, and so is the table. This is counted before anything is parsed.
    let objects = header.iter().filter(|&&byte| byte == b'{').count();
    if objects > MAX_TENSORS + 1 {
        return Err(HeaderFault::TooManyTensors(objects - 1, MAX_TENSORS));
    }
    Ok((header, data))
}

/// Finds what is wrong with a file that the `safetensors` crate refuses.
fn examine(path: &str, header: &[u8], data: &[u8]) -> Result<Vec<Entry>, Error> {
    let header_fault = |fault| Error::Header { file: path.to_owned(), fault };
    let tensor_fault =
        |tensor, fault: TensorFault| Error::Tensor { file: path.to_owned(), tensor, fault: fault.into() };
    let table: Pairs<Row> =
        serde_json::from_slice(header).map_err(|error| header_fault(HeaderFault::Json(error)))?;

    let mut entries = Vec::new();
    for (name, row) in table.0 {
        match entry(&row, data.len()) {
            Ok((dtype, shape, range)) => entries.push(Entry { name, dtype, shape, range }),
            Err(fault) => return Err(tensor_fault(name, fault)),
        }
    }
    check_coverage(&mut entries, data.len()).map_err(|fault| match fault {
        CoverageFault::Hole(hole) => header_fault(HeaderFault::Hole { from: hole.start, to: hole.end }),
        CoverageFault::Overlap { tensor, other } => tensor_fault(tensor, TensorFault::Overlap { other }),
    })?;

    entries.sort_by(|a, b| a.name.cmp(&b.name));
    if let Some(pair) = entries.windows(2).find(|pair| pair[0].name == pair[1].name) {
        return Err(tensor_fault(pair[0].name.clone(), TensorFault::Duplicate));
    }
    let offset = 8 + header.len();
    for entry in &mut entries {
        entry.range = entry.range.start + offset..entry.range.end + offset;
    }
    Ok(entries)
}

/// Returns type, shape and place in the data of a tensor, if they agree with each other and with
/// the length of the data.
fn entry(row: &Row, data: usize) -> Result<(DType, Vec<usize>, Range<usize>), TensorFault> {
    let Row { dtype, shape, data_offsets: (begin, end) } = row;
    if begin > end {
        return Err(TensorFault::Reversed { offsets: row.data_offsets });
    }
    let truncated = TensorFault::Truncated { end: *end, data };
    let (Ok(start), Ok(stop)) = (usize::try_from(*begin), usize::try_from(*end)) else {
        return Err(truncated);
    };
    if stop > data {
        return Err(truncated);
    }
    let overflow = || TensorFault::Overflow { shape: shape.clone() };
    let sizes: Vec<usize> =
        shape.iter().map(|&size| usize::try_from(size)).collect::<Result<_, _>>().map_err(|_| overflow())?;
    let elements =
        sizes.iter().try_fold(1usize, |product, &size| product.checked_mul(size)).ok_or_else(overflow)?;
    let dtype = parse_dtype(dtype);
    // A tensor of an unknown type is refused when it is needed.
    if let Some(bits) = dtype.bits() {
        let total = elements as u128 * bits as u128;
        let needed = total.is_multiple_of(8).then_some(total / 8);
        if needed != Some((stop - start) as u128) {
            let dtype = dtype.to_string();
            return Err(TensorFault::Bytes { dtype, shape: sizes, needed, found: stop - start });
        }
    }
    Ok((dtype, sizes, start..stop))
}

fn parse_dtype(name: &str) -> DType {
    let text: StrDeserializer<'_, NameError> = name.into_deserializer();
    Dtype::deserialize(text).map_or_else(|_| DType::Unknown(name.to_owned()), DType::Known)
}

/// The reason why tensors do not cover the data of a file completely and once.
enum CoverageFault {
    Hole(Range<usize>),
    Overlap { tensor: String, other: String },
}

/// Checks that the tensors cover the data completely and once.
fn check_coverage(entries: &mut [Entry], data: usize) -> Result<(), CoverageFault> {
    entries.sort_by_key(|entry| (entry.range.start, entry.range.end));
    let mut covered = 0;
    let mut previous = "";
    for entry in entries.iter() {
        if entry.range.start < covered {
            return Err(CoverageFault::Overlap { tensor: entry.name.clone(), other: previous.to_owned() });
        }
        if entry.range.start > covered {
            return Err(CoverageFault::Hole(covered..entry.range.start));
        }
        covered = entry.range.end;
        previous = &entry.name;
    }
    if covered < data { Err(CoverageFault::Hole(covered..data)) } else { Ok(()) }
}

/// The entries of a JSON object in their order, so that a key that is given twice is noticed. The
/// free-form `__metadata__` of the format is left out.
pub(crate) struct Pairs<T>(pub(crate) Vec<(String, T)>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Pairs<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PairsVisitor<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for PairsVisitor<T> {
            type Value = Pairs<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs<T>, A::Error> {
                let mut pairs = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        map.next_value::<IgnoredAny>()?;
                        continue;
                    }
                    let value =
                        map.next_value().map_err(|e| A::Error::custom(format_args!("{name}: {e}")))?;
                    pairs.push((name, value));
                }
                Ok(Pairs(pairs))
            }
        }

        deserializer.deserialize_map(PairsVisitor(PhantomData))
    }
}

/// One entry of the table as it is written.
#[derive(Deserialize)]
struct Row {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}
