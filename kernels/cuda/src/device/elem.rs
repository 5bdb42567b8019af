//! Element types in device memory.

use millrace_numbers::DType;

/// The type of the numbers in a piece of device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Elem {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper 16 bits of a single-precision number.
    BF16,
    /// FP8 with four exponent bits, three mantissa bits and no infinities.
    E4M3,
    /// A signed 8-bit integer.
    I8,
    /// An unsigned 8-bit integer.
    U8,
    /// A signed 32-bit integer.
    I32,
    /// An unsigned 32-bit integer.
    U32,
    /// An unsigned 64-bit integer.
    U64,
}

impl Elem {
    /// Bytes per element.
    pub const fn size(self) -> usize {
        match self {
            Elem::E4M3 | Elem::I8 | Elem::U8 => 1,
            Elem::F16 | Elem::BF16 => 2,
            Elem::F32 | Elem::I32 | Elem::U32 => 4,
            Elem::U64 => 8,
        }
    }

    /// Elements in the 16 bytes that a thread loads or stores at once.
    pub const fn per_vector(self) -> usize {
        16 / self.size()
    }
}

impl From<DType> for Elem {
    fn from(dtype: DType) -> Elem {
        match dtype {
            DType::F32 => Elem::F32,
            DType::F16 => Elem::F16,
            DType::BF16 => Elem::BF16,
        }
    }
}
