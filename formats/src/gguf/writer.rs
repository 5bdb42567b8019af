//! Writes GGUF files of version 3.

use std::io;

use super::file::{GgmlType, MAGIC};

const VERSION: u32 = 3;

/// The data of each tensor begins at a multiple of this.
const ALIGNMENT: usize = 32;

/// A value of the metadata.
#[derive(Debug, Clone, PartialEq)]
pub enum GgufValue {
    /// An unsigned number of 32 bits.
    U32(u32),
    /// A number in single precision.
    F32(f32),
    /// A truth value.
    Bool(bool),
    /// A text.
    Text(String),
    /// A list of texts.
    Texts(Vec<String>),
    /// A list of numbers in single precision.
    F32s(Vec<f32>),
    /// A list of signed numbers of 32 bits.
    I32s(Vec<i32>),
    /// A list of truth values.
    Bools(Vec<bool>),
    /// A list of bytes.
    Bytes(Vec<u8>),
}

/// The type of a tensor that is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GgufType {
    /// Single precision.
    F32,
    /// Half precision.
    F16,
    /// The upper half of single precision.
    BF16,
    /// Blocks of 32 columns with 8 bits.
    Q8_0,
}

/// The description of a tensor that will be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GgufTensor {
    /// Name of the tensor.
    pub name: String,
    /// Element type.
    pub kind: GgufType,
    /// Length of each axis, the outer one first.
    pub shape: Vec<usize>,
}

impl GgufType {
    const fn id(self) -> u32 {
        match self {
            GgufType::F32 => 0,
            GgufType::F16 => 1,
            GgufType::Q8_0 => 8,
            GgufType::BF16 => 30,
        }
    }
}

impl GgufTensor {
    /// Returns the bytes of the tensor, or `None` if its rows are not whole blocks.
    pub fn bytes(&self) -> Option<usize> {
        let shape: Vec<u64> = self.shape.iter().map(|&size| size as u64).collect();
        let (_, bytes) = GgmlType::of(self.kind.id())?.size(&shape).ok()?;
        usize::try_from(bytes).ok()
    }
}

/// Returns the header, with `keys` and the descriptions of `tensors`. The data of the tensors
/// follows in the same order, each filled up with [`gguf_padding`].
///
/// # Errors
/// If the rows of a tensor are not whole blocks.
pub fn gguf_header(keys: &[(String, GgufValue)], tensors: &[GgufTensor]) -> io::Result<Vec<u8>> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend((tensors.len() as u64).to_le_bytes());
    bytes.extend((keys.len() as u64).to_le_bytes());
    for (key, value) in keys {
        text(&mut bytes, key);
        write_value(&mut bytes, value);
    }
    let mut offset = 0u64;
    for tensor in tensors {
        text(&mut bytes, &tensor.name);
        bytes.extend((tensor.shape.len() as u32).to_le_bytes());
        for &size in tensor.shape.iter().rev() {
            bytes.extend((size as u64).to_le_bytes());
        }
        bytes.extend(tensor.kind.id().to_le_bytes());
        bytes.extend(offset.to_le_bytes());
        let partial =
            || io::Error::new(io::ErrorKind::InvalidInput, format!("{} has no whole blocks", tensor.name));
        offset += tensor.bytes().ok_or_else(partial)?.next_multiple_of(ALIGNMENT) as u64;
    }
    bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
    Ok(bytes)
}

/// Returns the zeros that follow the data of a tensor with this many bytes.
pub fn gguf_padding(bytes: usize) -> &'static [u8] {
    &[0; ALIGNMENT][..bytes.next_multiple_of(ALIGNMENT) - bytes]
}

fn text(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend((text.len() as u64).to_le_bytes());
    bytes.extend(text.as_bytes());
}

fn write_value(bytes: &mut Vec<u8>, value: &GgufValue) {
    let array = |bytes: &mut Vec<u8>, kind: u32, count: usize| {
        bytes.extend([9u32.to_le_bytes(), kind.to_le_bytes()].concat());
        bytes.extend((count as u64).to_le_bytes());
    };
    match value {
        GgufValue::U32(number) => bytes.extend([4u32.to_le_bytes(), number.to_le_bytes()].concat()),
        GgufValue::F32(number) => bytes.extend([6u32.to_le_bytes(), number.to_le_bytes()].concat()),
        GgufValue::Bool(value) => bytes.extend([&7u32.to_le_bytes()[..], &[u8::from(*value)]].concat()),
        GgufValue::Text(value) => {
            bytes.extend(8u32.to_le_bytes());
            text(bytes, value);
        }
        GgufValue::Texts(texts) => {
            array(bytes, 8, texts.len());
            texts.iter().for_each(|value| text(bytes, value));
        }
        GgufValue::F32s(numbers) => {
            array(bytes, 6, numbers.len());
            bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        }
        GgufValue::Bools(values) => {
            array(bytes, 7, values.len());
            bytes.extend(values.iter().map(|&value| u8::from(value)));
        }
        GgufValue::Bytes(values) => {
            array(bytes, 0, values.len());
            bytes.extend(values);
        }
        GgufValue::I32s(numbers) => {
            array(bytes, 5, numbers.len());
            bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        }
    }
}
