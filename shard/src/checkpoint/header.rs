//! The head of a safetensors file: eight bytes of length, a JSON table of tensors, then their data without gaps.
//!
//! Nothing in it is believed: every number is checked against the file before it is used.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};

use super::{Error, HeaderFault, TensorFault};

/// The longest header accepted, as in other readers of the format.
const MAX_HEADER: usize = 100_000_000;

/// A tensor of one file. Its range has been checked to lie within the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) dtype: String,
    pub(super) shape: Vec<usize>,
    /// Bytes of the file.
    pub(super) range: Range<usize>,
}

/// The tensors of the file whose bytes are `bytes`, sorted by name.
pub(super) fn read(path: &str, bytes: &[u8]) -> Result<Vec<Entry>, Error> {
    let header_fault = |fault| Error::Header { file: path.to_owned(), fault };
    let (header, data) = split(bytes).map_err(header_fault)?;
    let table: Pairs<Row> =
        serde_json::from_slice(header).map_err(|error| header_fault(HeaderFault::Json(error)))?;

    let mut entries = Vec::new();
    for (name, Row { dtype, shape, data_offsets }) in table.0 {
        match entry(&dtype, &shape, data_offsets, data.len()) {
            Ok((shape, Range { start, end })) => {
                let offset = bytes.len() - data.len();
                entries.push(Entry { name, dtype, shape, range: start + offset..end + offset });
            }
            Err(fault) => {
                return Err(Error::Tensor { file: path.to_owned(), tensor: name, fault: fault.into() });
            }
        }
    }
    check_tiling(path, &mut entries, bytes.len() - data.len()..bytes.len())?;

    entries.sort_by(|a, b| a.name.cmp(&b.name));
    if let Some(pair) = entries.windows(2).find(|pair| pair[0].name == pair[1].name) {
        let tensor = pair[0].name.clone();
        return Err(Error::Tensor { file: path.to_owned(), tensor, fault: TensorFault::Duplicate.into() });
    }
    Ok(entries)
}

/// Header and data.
fn split(bytes: &[u8]) -> Result<(&[u8], &[u8]), HeaderFault> {
    if bytes.starts_with(b"version https://git-lfs") {
        return Err(HeaderFault::LfsPointer);
    }
    let Some((length, rest)) = bytes.split_first_chunk::<8>() else {
        return Err(HeaderFault::TooShort(bytes.len()));
    };
    let announced = u64::from_le_bytes(*length);
    match usize::try_from(announced) {
        Ok(length) if length <= MAX_HEADER => rest
            .split_at_checked(length)
            .ok_or(HeaderFault::Truncated { header: announced, file: bytes.len() }),
        _ => Err(HeaderFault::TooLong(announced, MAX_HEADER)),
    }
}

/// Shape and place in the data, if they agree with each other and with `data`, the bytes there are.
fn entry(
    dtype: &str,
    shape: &[u64],
    offsets: (u64, u64),
    data: usize,
) -> Result<(Vec<usize>, Range<usize>), TensorFault> {
    let (begin, end) = offsets;
    if begin > end {
        return Err(TensorFault::Reversed { offsets });
    }
    let truncated = TensorFault::Truncated { end, data };
    let (Ok(start), Ok(stop)) = (usize::try_from(begin), usize::try_from(end)) else { return Err(truncated) };
    if stop > data {
        return Err(truncated);
    }
    let overflow = || TensorFault::Overflow { shape: shape.to_vec() };
    let sizes: Vec<usize> =
        shape.iter().map(|&size| usize::try_from(size)).collect::<Result<_, _>>().map_err(|_| overflow())?;
    let elements =
        sizes.iter().try_fold(1usize, |product, &size| product.checked_mul(size)).ok_or_else(overflow)?;
    // A type that is not known here is refused when its tensor is needed.
    if let Some(bits) = bits(dtype) {
        let total = elements as u128 * bits;
        let needed = total.is_multiple_of(8).then_some(total / 8);
        if needed != Some((stop - start) as u128) {
            let dtype = dtype.to_owned();
            return Err(TensorFault::Bytes { dtype, shape: sizes, needed, found: stop - start });
        }
    }
    Ok((sizes, start..stop))
}

/// The data must be covered completely and once.
fn check_tiling(path: &str, entries: &mut [Entry], data: Range<usize>) -> Result<(), Error> {
    entries.sort_by_key(|entry| (entry.range.start, entry.range.end));
    let hole = |from: usize, to: usize| {
        let fault = HeaderFault::Hole { from: from - data.start, to: to - data.start };
        Err(Error::Header { file: path.to_owned(), fault })
    };
    let mut covered = data.start;
    let mut previous = "";
    for entry in entries.iter() {
        if entry.range.start < covered {
            let fault = Box::new(TensorFault::Overlap { other: previous.to_owned() });
            return Err(Error::Tensor { file: path.to_owned(), tensor: entry.name.clone(), fault });
        }
        if entry.range.start > covered {
            return hole(covered, entry.range.start);
        }
        covered = entry.range.end;
        previous = &entry.name;
    }
    if covered < data.end { hole(covered, data.end) } else { Ok(()) }
}

/// Bits per element of the types that the format defines.
fn bits(dtype: &str) -> Option<u128> {
    Some(match dtype {
        "F4" => 4,
        "F6_E2M3" | "F6_E3M2" => 6,
        "BOOL" | "U8" | "I8" | "F8_E5M2" | "F8_E4M3" | "F8_E8M0" => 8,
        "U16" | "I16" | "F16" | "BF16" => 16,
        "U32" | "I32" | "F32" => 32,
        "U64" | "I64" | "F64" | "C64" => 64,
        _ => return None,
    })
}

/// A JSON object with its keys as they come, so that a key given twice is noticed; without the format's free-form
/// `__metadata__`.
pub(super) struct Pairs<T>(pub(super) Vec<(String, T)>);

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

/// One entry of the table.
#[derive(Deserialize)]
struct Row {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}
