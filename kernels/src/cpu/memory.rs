//! Large aligned arrays.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use super::simd::Element;
use crate::{Error, Result};

/// Bytes of a cache line.
const LINE: usize = 64;
/// Bytes of a huge page on x86-64 and on most ARM systems.
const HUGE: usize = 2 << 20;

/// An array of numbers that starts zeroed. It is aligned to cache lines, and a large one is on huge
/// pages, because reading weights from small pages costs bandwidth.
#[derive(Debug)]
pub(super) struct Memory<T: Element> {
    start: NonNull<T>,
    len: usize,
}

// SAFETY: the array owns its elements, which are plain numbers.
unsafe impl<T: Element> Send for Memory<T> {}
// SAFETY: as above.
unsafe impl<T: Element> Sync for Memory<T> {}

impl<T: Element> Memory<T> {
    /// Allocates `len` zeros. `what` names their purpose in an error.
    pub(super) fn zeroed(len: usize, what: &'static str) -> Result<Memory<T>> {
        let bytes = len.saturating_mul(T::SIZE);
        let too_much = Error::OutOfMemory { what, bytes };
        if len == 0 {
            return Ok(Memory { start: NonNull::dangling(), len });
        }
        let Some(layout) = layout::<T>(len) else { return Err(too_much) };
        // SAFETY: the layout is not empty, and zero bits are the number 0 in every element type.
        let Some(start) = NonNull::new(unsafe { alloc_zeroed(layout) }) else { return Err(too_much) };
        #[cfg(target_os = "linux")]
        if layout.align() == HUGE {
            // SAFETY: the range was just allocated; the advice changes no contents, and its failure
            // does no harm.
            unsafe { libc::madvise(start.as_ptr().cast(), layout.size(), libc::MADV_HUGEPAGE) };
        }
        Ok(Memory { start: start.cast(), len })
    }
}

fn layout<T: Element>(len: usize) -> Option<Layout> {
    let bytes = len.checked_mul(T::SIZE)?;
    let align = if bytes >= 2 * HUGE { HUGE } else { LINE };
    Layout::from_size_align(bytes, align).ok()
}

impl<T: Element> Drop for Memory<T> {
    fn drop(&mut self) {
        if let (Some(layout), true) = (layout::<T>(self.len), self.len > 0) {
            // SAFETY: allocated in `zeroed` with the same layout.
            unsafe { dealloc(self.start.as_ptr().cast(), layout) };
        }
    }
}

impl<T: Element> Deref for Memory<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: the array owns `len` initialized elements.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T: Element> DerefMut for Memory<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

/// A pointer that the tasks of one parallel loop share. Each task writes to its own elements.
#[derive(Debug)]
pub(super) struct Shared<T>(*mut T);

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Shared<T> {}

// SAFETY: a caller that dereferences the pointer guarantees that there is no race.
unsafe impl<T: Send> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Shared<T> {}

impl<T> Shared<T> {
    pub(super) fn new(slice: &mut [T]) -> Shared<T> {
        Shared(slice.as_mut_ptr())
    }

    /// Returns elements `[at, at + len)`.
    ///
    /// # Safety
    /// The elements are inside the slice given to [`Shared::new`], that slice is still
    /// borrowed, and nobody else uses these elements in the meantime.
    pub(super) unsafe fn slice<'a>(self, at: usize, len: usize) -> &'a mut [T] {
        // SAFETY: the caller guarantees it.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(at), len) }
    }

    pub(super) fn as_ptr(self) -> *mut T {
        self.0
    }
}

impl Shared<f32> {
    /// Returns the same memory as words whose contents are only bits.
    pub(super) fn words(self) -> Shared<u32> {
        Shared(self.0.cast())
    }
}
