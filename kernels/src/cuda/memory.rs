//! Device memory and typed views of it.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

use super::driver::Driver;
use crate::{DType, Error, Result};

/// The type of an element in device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Elem {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of a single.
    BF16,
    /// FP8 with four bits of exponent, no infinities.
    E4M3,
    /// A signed byte.
    I8,
    /// An unsigned byte.
    U8,
    /// A signed word.
    I32,
    /// An unsigned word.
    U32,
    /// An unsigned double word.
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

    /// Elements in the 16 bytes that a thread moves at once.
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

/// An allocation of a driver; freed when dropped.
#[derive(Debug)]
pub(super) struct Slab {
    driver: Arc<dyn Driver>,
    at: u64,
}

impl Slab {
    pub(super) fn new(driver: Arc<dyn Driver>, bytes: usize) -> Result<Slab> {
        let at = driver.allocate(bytes.max(1))?;
        Ok(Slab { driver, at })
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        // SAFETY: the address came from this driver, and all memory in the slab holds on to it.
        unsafe { self.driver.free(self.at) }
    }
}

/// Memory on a device: an allocation of its own, or a piece of a larger one.
#[derive(Debug)]
pub struct Memory {
    /// What the memory lies in.
    _slab: Arc<Slab>,
    at: u64,
    bytes: usize,
}

impl Memory {
    pub(super) fn alone(driver: Arc<dyn Driver>, bytes: usize) -> Result<Memory> {
        Ok(Memory::piece(Arc::new(Slab::new(driver, bytes)?), 0, bytes))
    }

    /// `bytes` bytes of the slab from `offset` on, which must lie in it.
    pub(super) fn piece(slab: Arc<Slab>, offset: usize, bytes: usize) -> Memory {
        let at = slab.at + offset as u64;
        Memory { _slab: slab, at, bytes }
    }

    /// Bytes of the memory.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// As many elements as fit.
    pub fn view(&self, elem: Elem) -> View<'_> {
        View { at: self.at, len: self.bytes / elem.size(), elem, memory: PhantomData }
    }
}

/// A row of elements in device memory.
///
/// Views may overlap: a device does one thing after the other, so no order is in doubt.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    at: u64,
    len: usize,
    elem: Elem,
    memory: PhantomData<&'a Memory>,
}

impl<'a> View<'a> {
    /// The address.
    pub fn address(&self) -> u64 {
        self.at
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Type of the elements.
    pub fn elem(&self) -> Elem {
        self.elem
    }

    /// Bytes of all elements.
    pub fn bytes(&self) -> usize {
        self.len * self.elem.size()
    }

    /// Some of the elements.
    ///
    /// # Panics
    /// If the range is not within the view.
    pub fn slice(&self, range: Range<usize>) -> View<'a> {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {}", self.len);
        View { at: self.at + (range.start * self.elem.size()) as u64, len: range.len(), ..*self }
    }

    /// The same memory, as elements of another type of the same size.
    ///
    /// # Panics
    /// If the sizes differ.
    pub fn recast(&self, elem: Elem) -> View<'a> {
        assert_eq!(elem.size(), self.elem.size(), "{:?} as {elem:?}", self.elem);
        View { elem, ..*self }
    }

    /// Checks that the view has at least `len` elements of the type `elem`. `what` names it in the error.
    ///
    /// # Errors
    /// [`Error::Shape`] if it has not.
    pub fn expect(&self, what: &str, elem: Elem, len: usize) -> Result<()> {
        if self.elem != elem {
            return Err(Error::Shape(format!("{what} holds {:?}, not {elem:?}", self.elem)));
        }
        if self.len < len {
            return Err(Error::Shape(format!("{what} has {} elements, not {len}", self.len)));
        }
        Ok(())
    }

    /// Whether a thread may move 16 bytes at once: rows of `cols` elements all start at multiples of 16.
    pub fn is_vectorisable(&self, cols: usize) -> bool {
        self.at.is_multiple_of(16) && (cols * self.elem.size()).is_multiple_of(16)
    }
}
