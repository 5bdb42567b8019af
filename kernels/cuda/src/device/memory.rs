//! Device memory and typed views of it.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

use millrace_backend::{Error, Result};

use super::driver::Driver;
use super::driver::params::DevicePtr;
use super::elem::Elem;

/// An allocation of a driver; freed when dropped.
#[derive(Debug)]
pub(super) struct DriverAllocation {
    driver: Arc<dyn Driver>,
    at: u64,
}

impl DriverAllocation {
    pub(super) fn new(driver: Arc<dyn Driver>, bytes: usize) -> Result<DriverAllocation> {
        let at = driver.allocate(bytes.max(1))?;
        Ok(DriverAllocation { driver, at })
    }
}

impl Drop for DriverAllocation {
    fn drop(&mut self) {
        // SAFETY: the address came from this driver, and every `Memory` in the allocation keeps it
        // alive.
        unsafe { self.driver.free(self.at) }
    }
}

/// Memory on a device: a whole allocation or a piece of one.
#[derive(Debug)]
pub struct Memory {
    /// The allocation that the memory lies in.
    _slab: Arc<DriverAllocation>,
    at: u64,
    bytes: usize,
}

impl Memory {
    pub(super) fn alone(driver: Arc<dyn Driver>, bytes: usize) -> Result<Memory> {
        Ok(Memory::piece(Arc::new(DriverAllocation::new(driver, bytes)?), 0, bytes))
    }

    /// `bytes` bytes of the allocation from `offset` on. They must lie in it.
    pub(super) fn piece(slab: Arc<DriverAllocation>, offset: usize, bytes: usize) -> Memory {
        let at = slab.at + offset as u64;
        Memory { _slab: slab, at, bytes }
    }

    /// The size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// A view of as many elements as fit.
    pub fn view(&self, elem: Elem) -> View<'_> {
        View { at: self.at, len: self.bytes / elem.size(), elem, memory: PhantomData }
    }
}

/// A typed slice of device memory.
///
/// Views may overlap, because a device executes the work of one stream in order.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    at: u64,
    len: usize,
    elem: Elem,
    memory: PhantomData<&'a Memory>,
}

impl<'a> View<'a> {
    /// The address of the first element.
    pub fn address(&self) -> u64 {
        self.at
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the view has no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The type of the elements.
    pub fn elem(&self) -> Elem {
        self.elem
    }

    /// The size of all elements in bytes.
    pub fn bytes(&self) -> usize {
        self.len * self.elem.size()
    }

    /// The elements in `range`.
    ///
    /// # Panics
    /// If the range exceeds the view.
    pub fn slice(&self, range: Range<usize>) -> View<'a> {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {}", self.len);
        View { at: self.at + (range.start * self.elem.size()) as u64, len: range.len(), ..*self }
    }

    /// The same memory as elements of another type of the same size.
    ///
    /// # Panics
    /// If the sizes differ.
    pub fn recast(&self, elem: Elem) -> View<'a> {
        assert_eq!(elem.size(), self.elem.size(), "{:?} as {elem:?}", self.elem);
        View { elem, ..*self }
    }

    /// Checks that the view has at least `len` elements of type `elem`. `what` names the view in
    /// the error.
    ///
    /// # Errors
    /// [`Error::Shape`] if the type differs or the view is too short.
    pub fn expect(&self, what: &str, elem: Elem, len: usize) -> Result<()> {
        if self.elem != elem {
            return Err(Error::Shape(format!("{what} holds {:?}, not {elem:?}", self.elem)));
        }
        if self.len < len {
            return Err(Error::Shape(format!("{what} has {} elements, not {len}", self.len)));
        }
        Ok(())
    }

    /// Whether threads may load 16 bytes at once: rows of `cols` elements all start at multiples of
    /// 16 bytes.
    pub fn is_vectorizable(&self, cols: usize) -> bool {
        self.at.is_multiple_of(16) && (cols * self.elem.size()).is_multiple_of(16)
    }
}

impl From<View<'_>> for DevicePtr {
    fn from(view: View<'_>) -> DevicePtr {
        DevicePtr::new(view.address())
    }
}

/// The view's address, or null if there is no view.
impl From<Option<View<'_>>> for DevicePtr {
    fn from(view: Option<View<'_>>) -> DevicePtr {
        view.map_or(DevicePtr::NULL, DevicePtr::from)
    }
}
