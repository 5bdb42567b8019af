//! Reads numbers and texts from the bytes of a file, one after the other.

use crate::fault::FileFault;

/// A place in the bytes of a file. Every read is checked against the end of the file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    /// Creates a cursor at the begin of `bytes`.
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Cursor { bytes, at: 0 }
    }

    /// Returns the place in the file, in bytes.
    pub(crate) fn at(&self) -> usize {
        self.at
    }

    /// Returns the number of bytes up to the end of the file.
    pub(crate) fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// Reads `len` bytes.
    pub(crate) fn take(&mut self, len: u64, what: &'static str) -> Result<&'a [u8], FileFault> {
        match usize::try_from(len) {
            Ok(size) if size <= self.left() => {
                let bytes = &self.bytes[self.at..self.at + size];
                self.at += size;
                Ok(bytes)
            }
            _ => Err(FileFault::Ends { what, at: self.at, needed: len, left: self.left() }),
        }
    }

    /// Moves to the next multiple of `alignment`, counted from the begin of the file.
    pub(crate) fn align(&mut self, alignment: usize, what: &'static str) -> Result<(), FileFault> {
        let gap = self.at.next_multiple_of(alignment.max(1)) - self.at;
        self.take(gap as u64, what).map(|_| ())
    }

    fn array<const LEN: usize>(&mut self, what: &'static str) -> Result<[u8; LEN], FileFault> {
        let bytes = self.take(LEN as u64, what)?;
        let mut array = [0; LEN];
        array.copy_from_slice(bytes);
        Ok(array)
    }

    /// Reads one byte.
    pub(crate) fn u8(&mut self, what: &'static str) -> Result<u8, FileFault> {
        self.array::<1>(what).map(|[byte]| byte)
    }

    /// Reads an unsigned number of 16 bits.
    pub(crate) fn u16(&mut self, what: &'static str) -> Result<u16, FileFault> {
        self.array(what).map(u16::from_le_bytes)
    }

    /// Reads an unsigned number of 32 bits.
    pub(crate) fn u32(&mut self, what: &'static str) -> Result<u32, FileFault> {
        self.array(what).map(u32::from_le_bytes)
    }

    /// Reads a signed number of 32 bits.
    pub(crate) fn i32(&mut self, what: &'static str) -> Result<i32, FileFault> {
        self.array(what).map(i32::from_le_bytes)
    }

    /// Reads an unsigned number of 64 bits.
    pub(crate) fn u64(&mut self, what: &'static str) -> Result<u64, FileFault> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// Reads a number in single precision.
    pub(crate) fn f32(&mut self, what: &'static str) -> Result<f32, FileFault> {
        self.array(what).map(f32::from_le_bytes)
    }

    /// Reads a number in double precision.
    pub(crate) fn f64(&mut self, what: &'static str) -> Result<f64, FileFault> {
        self.array(what).map(f64::from_le_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_read_beyond_the_end() {
        let mut cursor = Cursor::new(&[1, 0, 0, 0, 2, 3]);
        assert_eq!(cursor.u32("a").unwrap(), 1);
        let error = cursor.u32("the count").unwrap_err().to_string();
        assert!(error.starts_with("the count at byte 4 needs 4 bytes, but only 2 are left"), "{error}");
        assert!(cursor.take(u64::MAX, "a text").is_err());
        assert_eq!(cursor.u16("a").unwrap(), 0x302);
        assert!(cursor.align(4, "padding").is_err());
        assert_eq!((cursor.at(), cursor.left()), (6, 0));
    }
}
