//! The scales of quantized matrices: numbers of several types.

use bytes::Bytes;

use crate::{DType, Error, Result};

/// The type of a scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NumberType {
    /// A type that weights have too.
    Dense(DType),
    /// A power of two, `2^(byte - 127)` (Open Compute Project, "Microscaling Formats", e8m0).
    PowerOfTwo,
}

impl NumberType {
    /// Returns the bytes per number.
    pub const fn size(self) -> usize {
        match self {
            NumberType::Dense(dtype) => dtype.size(),
            NumberType::PowerOfTwo => 1,
        }
    }
}

/// Little-endian numbers of one type. The bytes need not be aligned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Numbers {
    kind: NumberType,
    bytes: Bytes,
}

impl Numbers {
    /// Creates numbers of type `kind`.
    ///
    /// # Errors
    /// [`Error::Shape`] if the bytes end within a number.
    pub fn new(kind: NumberType, bytes: Bytes) -> Result<Numbers> {
        if !bytes.len().is_multiple_of(kind.size()) {
            return Err(Error::Shape(format!("{} bytes of numbers with {}", bytes.len(), kind.size())));
        }
        Ok(Numbers { kind, bytes })
    }

    /// Returns how many numbers there are.
    pub fn len(&self) -> usize {
        self.bytes.len() / self.kind.size()
    }

    /// Returns whether there are no numbers.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns the type of the numbers.
    pub fn kind(&self) -> NumberType {
        self.kind
    }

    /// Returns number `index`.
    ///
    /// # Panics
    /// If there are fewer numbers.
    pub fn get(&self, index: usize) -> f32 {
        let at = index * self.kind.size();
        let bytes = &self.bytes[at..at + self.kind.size()];
        match self.kind {
            NumberType::Dense(dtype) => dtype.read(bytes),
            NumberType::PowerOfTwo => power_of_two(bytes[0]),
        }
    }
}

fn power_of_two(exponent: u8) -> f32 {
    match exponent {
        // The smallest one is subnormal in single precision.
        0 => f32::from_bits(1 << 22),
        255 => f32::NAN,
        exponent => f32::from_bits(u32::from(exponent) << 23),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_of_two_cover_all_exponents() {
        let numbers = Numbers::new(NumberType::PowerOfTwo, Bytes::from_owner((0..=255).collect::<Vec<u8>>()));
        let numbers = numbers.unwrap();
        for exponent in 0..255usize {
            assert_eq!(f64::from(numbers.get(exponent)), (exponent as f64 - 127.0).exp2(), "{exponent}");
        }
        assert!(numbers.get(255).is_nan());
    }

    #[test]
    fn numbers_have_whole_bytes() {
        assert!(Numbers::new(NumberType::Dense(DType::F32), vec![0; 6].into()).is_err());
        let halves = Numbers::new(NumberType::Dense(DType::F16), vec![0, 0x3c, 0, 0xc0].into()).unwrap();
        assert_eq!((halves.len(), halves.get(0), halves.get(1)), (2, 1.0, -2.0));
    }
}
