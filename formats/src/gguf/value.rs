//! The values of GGUF's metadata.

use crate::cursor::Cursor;
use crate::fault::FileFault;

/// The largest number of texts or arrays in an array. No vocabulary is as large.
const MAX_TEXTS: u64 = 1 << 24;

/// The largest depth of arrays in arrays.
const MAX_DEPTH: usize = 4;

/// The widths of lengths in a file: 32 bits in version 1, 64 bits since then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lengths {
    Short,
    Long,
}

impl Lengths {
    /// Reads a length.
    pub(super) fn read(self, cursor: &mut Cursor<'_>, what: &'static str) -> Result<u64, FileFault> {
        match self {
            Lengths::Short => cursor.u32(what).map(u64::from),
            Lengths::Long => cursor.u64(what),
        }
    }

    /// Reads a text with its length.
    pub(super) fn text<'a>(self, cursor: &mut Cursor<'a>, what: &'static str) -> Result<&'a [u8], FileFault> {
        let length = self.read(cursor, what)?;
        cursor.take(length, what)
    }
}

/// The type of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ValueType {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    Text,
    Array,
    U64,
    I64,
    F64,
}

impl ValueType {
    const ALL: [ValueType; 13] = [
        ValueType::U8,
        ValueType::I8,
        ValueType::U16,
        ValueType::I16,
        ValueType::U32,
        ValueType::I32,
        ValueType::F32,
        ValueType::Bool,
        ValueType::Text,
        ValueType::Array,
        ValueType::U64,
        ValueType::I64,
        ValueType::F64,
    ];

    fn read(cursor: &mut Cursor<'_>, key: &str) -> Result<Self, FileFault> {
        let id = cursor.u32("the type of a value")?;
        let unknown = || FileFault::UnknownType { what: format!("the value of {key}"), id };
        usize::try_from(id).ok().and_then(|id| Self::ALL.get(id).copied()).ok_or_else(unknown)
    }

    /// Returns the bytes of a value, if all values have the same.
    const fn size(self) -> Option<u64> {
        match self {
            ValueType::U8 | ValueType::I8 | ValueType::Bool => Some(1),
            ValueType::U16 | ValueType::I16 => Some(2),
            ValueType::U32 | ValueType::I32 | ValueType::F32 => Some(4),
            ValueType::U64 | ValueType::I64 | ValueType::F64 => Some(8),
            ValueType::Text | ValueType::Array => None,
        }
    }
}

/// A value of the metadata. Texts and arrays are the bytes of the file, which have been checked to
/// be complete.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Value<'a> {
    Integer(i128),
    Float(f64),
    Bool(bool),
    Text(&'a [u8]),
    Array(Array<'a>),
}

/// An array whose elements are decoded when they are asked for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Array<'a> {
    kind: ValueType,
    len: u64,
    lengths: Lengths,
    bytes: &'a [u8],
}

impl<'a> Value<'a> {
    /// Reads the type and the value of `key`.
    pub(super) fn read(cursor: &mut Cursor<'a>, lengths: Lengths, key: &str) -> Result<Self, FileFault> {
        match ValueType::read(cursor, key)? {
            ValueType::Array => Array::read(cursor, lengths, key).map(Value::Array),
            kind => Self::plain(cursor, lengths, kind),
        }
    }

    /// Reads a value that is no array.
    fn plain(cursor: &mut Cursor<'a>, lengths: Lengths, kind: ValueType) -> Result<Self, FileFault> {
        const WHAT: &str = "a value of the metadata";
        Ok(match kind {
            ValueType::U8 => Value::Integer(cursor.u8(WHAT)?.into()),
            ValueType::I8 => Value::Integer(cursor.u8(WHAT)?.cast_signed().into()),
            ValueType::U16 => Value::Integer(cursor.u16(WHAT)?.into()),
            ValueType::I16 => Value::Integer(cursor.u16(WHAT)?.cast_signed().into()),
            ValueType::U32 => Value::Integer(cursor.u32(WHAT)?.into()),
            ValueType::I32 => Value::Integer(cursor.i32(WHAT)?.into()),
            ValueType::U64 => Value::Integer(cursor.u64(WHAT)?.into()),
            ValueType::I64 => Value::Integer(cursor.u64(WHAT)?.cast_signed().into()),
            ValueType::F32 => Value::Float(cursor.f32(WHAT)?.into()),
            ValueType::F64 => Value::Float(cursor.f64(WHAT)?),
            ValueType::Bool => Value::Bool(cursor.u8(WHAT)? != 0),
            ValueType::Text => Value::Text(lengths.text(cursor, "a text of the metadata")?),
            // Arrays are read by their own function. The bytes of one stand for it in an array.
            ValueType::Array => Value::Text(&[]),
        })
    }

    /// Returns the kind of the value, for messages.
    fn kind(&self) -> &'static str {
        match self {
            Value::Integer(_) => "a whole number",
            Value::Float(_) => "a number",
            Value::Bool(_) => "a truth value",
            Value::Text(_) => "a text",
            Value::Array(_) => "an array",
        }
    }

    fn is_no(&self, key: &str, wanted: &str) -> FileFault {
        FileFault::Value { key: key.to_owned(), reason: format!("is {}, but must be {wanted}", self.kind()) }
    }

    /// Returns a whole number of at least 0.
    pub(super) fn count(&self, key: &str) -> Result<u64, FileFault> {
        let Value::Integer(number) = *self else { return Err(self.is_no(key, "a whole number")) };
        u64::try_from(number).map_err(|_| {
            let reason = format!("is {number}, but must not be negative");
            FileFault::Value { key: key.to_owned(), reason }
        })
    }

    /// Returns a finite number.
    pub(super) fn number(&self, key: &str) -> Result<f64, FileFault> {
        let number = match *self {
            Value::Integer(number) => number as f64,
            Value::Float(number) => number,
            _ => return Err(self.is_no(key, "a number")),
        };
        if !number.is_finite() {
            let reason = format!("is {number}, which is no usable number");
            return Err(FileFault::Value { key: key.to_owned(), reason });
        }
        Ok(number)
    }

    /// Returns a truth value.
    pub(super) fn truth(&self, key: &str) -> Result<bool, FileFault> {
        match *self {
            Value::Bool(value) => Ok(value),
            _ => Err(self.is_no(key, "a truth value")),
        }
    }

    /// Returns a text.
    pub(super) fn text(&self, key: &str) -> Result<&'a str, FileFault> {
        let Value::Text(text) = *self else { return Err(self.is_no(key, "a text")) };
        std::str::from_utf8(text).map_err(|_| FileFault::NotText { what: format!("the value of {key}") })
    }

    /// Returns an array.
    pub(super) fn array(&self, key: &str) -> Result<Array<'a>, FileFault> {
        match *self {
            Value::Array(array) => Ok(array),
            _ => Err(self.is_no(key, "an array")),
        }
    }
}

impl<'a> Array<'a> {
    fn read(cursor: &mut Cursor<'a>, lengths: Lengths, key: &str) -> Result<Self, FileFault> {
        let kind = ValueType::read(cursor, key)?;
        let len = lengths.read(cursor, "the length of an array")?;
        let start = *cursor;
        let mut rest = *cursor;
        skip(&mut rest, lengths, kind, len, key)?;
        let bytes = cursor.take((rest.at() - start.at()) as u64, "an array")?;
        Ok(Array { kind, len, lengths, bytes })
    }

    /// Returns the number of elements, of which each has at least one byte in the file.
    pub(super) fn len(&self) -> usize {
        usize::try_from(self.len).unwrap_or(usize::MAX)
    }

    /// Returns the elements. Arrays in the array are not returned.
    fn values(&self) -> impl Iterator<Item = Value<'a>> {
        let (mut cursor, lengths, kind) = (Cursor::new(self.bytes), self.lengths, self.kind);
        let len = if kind == ValueType::Array { 0 } else { self.len };
        (0..len).map_while(move |_| Value::plain(&mut cursor, lengths, kind).ok())
    }

    /// Returns the elements, of which each must be what `read` reads.
    fn each<T>(
        &self,
        key: &str,
        read: impl Fn(&Value<'a>, &str) -> Result<T, FileFault>,
    ) -> Result<Vec<T>, FileFault> {
        if self.kind == ValueType::Array {
            let reason = "is an array of arrays".to_owned();
            return Err(FileFault::Value { key: key.to_owned(), reason });
        }
        self.values().map(|value| read(&value, key)).collect()
    }

    /// Returns texts.
    pub(super) fn texts(&self, key: &str) -> Result<Vec<String>, FileFault> {
        self.each(key, |value, key| value.text(key).map(str::to_owned))
    }

    /// Returns finite numbers.
    pub(super) fn numbers(&self, key: &str) -> Result<Vec<f64>, FileFault> {
        self.each(key, Value::number)
    }

    /// Returns whole numbers of at least 0.
    pub(super) fn counts(&self, key: &str) -> Result<Vec<u64>, FileFault> {
        self.each(key, Value::count)
    }

    /// Returns truth values.
    pub(super) fn truths(&self, key: &str) -> Result<Vec<bool>, FileFault> {
        self.each(key, Value::truth)
    }

    /// Returns bytes.
    pub(super) fn bytes(&self, key: &str) -> Result<Vec<u8>, FileFault> {
        match self.kind {
            ValueType::U8 | ValueType::I8 => Ok(self.bytes.to_vec()),
            _ => {
                let reason = "is an array of other elements than bytes".to_owned();
                Err(FileFault::Value { key: key.to_owned(), reason })
            }
        }
    }
}

/// Moves behind the elements of an array. Arrays in arrays are followed without recursion, because
/// a file could nest them until the stack overflows.
fn skip(
    cursor: &mut Cursor<'_>,
    lengths: Lengths,
    kind: ValueType,
    len: u64,
    key: &str,
) -> Result<(), FileFault> {
    // The type of the elements of each open array, and how many follow.
    let mut open = vec![(kind, len)];
    while let Some((kind, left)) = open.last_mut() {
        if let Some(size) = kind.size() {
            cursor.take(left.saturating_mul(size), "an array")?;
            open.pop();
            continue;
        }
        if *left > MAX_TEXTS {
            return Err(FileFault::TooMany { what: "texts or arrays", count: *left, limit: MAX_TEXTS });
        }
        if *kind == ValueType::Text {
            for _ in 0..*left {
                lengths.text(cursor, "a text of an array")?;
            }
            open.pop();
        } else if *left == 0 {
            open.pop();
        } else {
            *left -= 1;
            if open.len() == MAX_DEPTH {
                return Err(FileFault::Nested { key: key.to_owned(), limit: MAX_DEPTH });
            }
            let inner = ValueType::read(cursor, key)?;
            open.push((inner, lengths.read(cursor, "the length of an array")?));
        }
    }
    Ok(())
}
