//! The element types of stored tensors.

use std::fmt::{self, Display, Formatter};

use safetensors::Dtype;

use millrace_numbers::BlockType;
use millrace_numbers::formats::Element;

/// The element type of a stored tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DType {
    /// A type that the safetensors format defines.
    Known(Dtype),
    /// Blocks of quantized elements. Rows are whole blocks.
    Blocks(BlockType),
    /// A type that this version does not know. A tensor of such a type cannot be used, but it may
    /// be in a file.
    Unknown(String),
}

impl DType {
    /// IEEE single precision.
    pub const F32: DType = DType::Known(Dtype::F32);
    /// IEEE half precision.
    pub const F16: DType = DType::Known(Dtype::F16);
    /// The upper half of single precision.
    pub const BF16: DType = DType::Known(Dtype::BF16);
    /// Signed integers of 8 bits.
    pub const I8: DType = DType::Known(Dtype::I8);
    /// Signed integers of 32 bits.
    pub const I32: DType = DType::Known(Dtype::I32);
    /// Signed integers of 64 bits.
    pub const I64: DType = DType::Known(Dtype::I64);
    /// Unsigned integers of 8 bits.
    pub const U8: DType = DType::Known(Dtype::U8);
    /// FP8 with four bits of exponent.
    pub const F8_E4M3: DType = DType::Known(Dtype::F8_E4M3);
    /// Powers of two with an exponent of eight bits.
    pub const F8_E8M0: DType = DType::Known(Dtype::F8_E8M0);

    /// Returns the type as one that tensors of quantized modules have, if it is one.
    pub fn element(&self) -> Option<Element> {
        Element::ALL.into_iter().find(|element| DType::from(*element) == *self)
    }

    /// Returns the number of bits per element, if the type is known and stores each element by
    /// itself.
    pub fn bits(&self) -> Option<usize> {
        match self {
            DType::Known(dtype) => Some(dtype.bitsize()),
            DType::Blocks(_) | DType::Unknown(_) => None,
        }
    }
}

impl From<Element> for DType {
    fn from(element: Element) -> Self {
        let known = match element {
            Element::F32 => Dtype::F32,
            Element::F16 => Dtype::F16,
            Element::BF16 => Dtype::BF16,
            Element::F8_E4M3 => Dtype::F8_E4M3,
            Element::F8_E8M0 => Dtype::F8_E8M0,
            Element::I8 => Dtype::I8,
            Element::U8 => Dtype::U8,
            Element::I32 => Dtype::I32,
            Element::I64 => Dtype::I64,
        };
        DType::Known(known)
    }
}

impl Display for DType {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            DType::Known(dtype) => write!(f, "{dtype:?}"),
            DType::Blocks(blocks) => blocks.fmt(f),
            DType::Unknown(name) => f.write_str(name),
        }
    }
}
