//! The scales of quantized matrices: their numbers, and which weights share one.

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

/// A number for each row and group. The number of row r and group g is at index `r * row_stride + g
/// * group_stride`.
#[derive(Debug, Clone, PartialEq)]
pub struct ScaleGrid {
    /// The numbers.
    pub numbers: Numbers,
    /// The distance of two rows. It is 0 if all rows share a number.
    pub row_stride: usize,
    /// The distance of two groups. It is 0 if all groups share a number.
    pub group_stride: usize,
    /// All numbers are divided by this.
    pub divisor: f32,
}

impl ScaleGrid {
    /// Creates a grid of one number, of a number for each of `rows` rows, `[rows, groups]` numbers,
    /// or `[groups, rows]` if `by_group`.
    ///
    /// # Errors
    /// [`Error::Shape`] if there is another number of numbers.
    pub fn new(numbers: Numbers, rows: usize, groups: usize, by_group: bool) -> Result<ScaleGrid> {
        let (row_stride, group_stride) = match numbers.len() {
            1 => (0, 0),
            n if n == rows && groups == 1 => (1, 0),
            n if n == rows.saturating_mul(groups) => {
                if by_group {
                    (1, rows)
                } else {
                    (groups, 1)
                }
            }
            n => return Err(Error::Shape(format!("{n} scales of {rows} rows with {groups} groups each"))),
        };
        Ok(ScaleGrid { numbers, row_stride, group_stride, divisor: 1.0 })
    }

    /// Returns the number of a row and a group.
    #[inline]
    pub fn get(&self, row: usize, group: usize) -> f32 {
        self.numbers.get(row * self.row_stride + group * self.group_stride) / self.divisor
    }

    /// Checks that there is a number for each of `rows` rows and `groups` groups.
    ///
    /// # Errors
    /// [`Error::Shape`] if there is not.
    pub(crate) fn check(&self, rows: usize, groups: usize) -> Result<()> {
        let last_row = rows.saturating_sub(1).saturating_mul(self.row_stride);
        let last = last_row.saturating_add(groups.saturating_sub(1).saturating_mul(self.group_stride));
        if rows > 0 && groups > 0 && last >= self.numbers.len() {
            let found = self.numbers.len();
            return Err(Error::Shape(format!("{found} scales of {rows} rows with {groups} groups each")));
        }
        Ok(())
    }
}

/// The weights that share a scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// All weights of a matrix.
    Tensor,
    /// The weights of a row.
    Row,
    /// This many successive columns of a row.
    Group(usize),
    /// These many rows and columns.
    Block([usize; 2]),
}

impl Sharing {
    /// Returns the columns of a group in a row of `cols` columns.
    pub(crate) fn group_cols(self, cols: usize) -> usize {
        match self {
            Sharing::Group(group) => group,
            _ => cols,
        }
    }

    /// Returns the rows and columns that share a scale in a matrix `[rows, cols]`.
    pub(crate) fn block(self, rows: usize, cols: usize) -> [usize; 2] {
        match self {
            Sharing::Tensor => [rows.max(1), cols.max(1)],
            Sharing::Row => [1, cols.max(1)],
            Sharing::Group(group) => [1, group],
            Sharing::Block(block) => block,
        }
    }

    /// Returns the shapes that the scales of a matrix `[rows, cols]` may have. There is at least
    /// one.
    pub(crate) fn shapes(self, rows: usize, cols: usize) -> Vec<Vec<usize>> {
        match self {
            Sharing::Tensor => vec![vec![1], vec![], vec![1, 1]],
            Sharing::Row => vec![vec![rows, 1], vec![rows]],
            Sharing::Group(group) => vec![vec![rows, cols.div_ceil(group)]],
            Sharing::Block([down, across]) => vec![vec![rows.div_ceil(down), cols.div_ceil(across)]],
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
