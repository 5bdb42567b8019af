//! Large aligned arrays.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::fs::File;
use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use half::{bf16, f16};
use memmap2::{MmapMut, MmapOptions};
use millrace_backend::{Error, Result};

use super::mapping::{LINE, Piece, cut};

/// Arrays of at least as many bytes are cut from mapped ranges; smaller ones come from the heap,
/// which reuses the memory of freed ones.
const MAPPED: usize = 256 << 10;

/// A type of plain bits.
///
/// # Safety
/// Every bit pattern is a valid value, and values need not be dropped.
pub(super) unsafe trait Plain: Copy + Send + Sync + 'static {}

// SAFETY: zero bits are the number 0.
unsafe impl Plain for u8 {}
// SAFETY: as above.
unsafe impl Plain for i8 {}
// SAFETY: as above.
unsafe impl Plain for f32 {}
// SAFETY: as above.
unsafe impl Plain for f16 {}
// SAFETY: as above.
unsafe impl Plain for bf16 {}

/// An array of numbers that starts zeroed. It is aligned to cache lines, and a large one is on huge
/// pages, because reading weights from small pages costs bandwidth.
///
/// The pages of a large array take no memory until something is written to them, and the thread
/// that writes first decides which NUMA node they are on.
#[derive(Debug)]
pub(super) struct Memory<T: Plain> {
    start: NonNull<T>,
    len: usize,
    owner: Owner,
}

/// The owner of an array's bytes.
#[derive(Debug)]
enum Owner {
    Heap,
    /// A part of a mapped range.
    #[allow(dead_code, reason = "keeps the memory mapped")]
    Range(Piece),
    /// A mapped part of a file. Writes do not reach the file.
    #[allow(dead_code, reason = "keeps the memory mapped")]
    File(MmapMut),
}

// SAFETY: the array owns its elements, which are plain numbers.
unsafe impl<T: Plain> Send for Memory<T> {}
// SAFETY: as above.
unsafe impl<T: Plain> Sync for Memory<T> {}

impl<T: Plain> Memory<T> {
    /// Allocates `len` zeros. `what` names their purpose in an error.
    pub(super) fn zeroed(len: usize, what: &'static str) -> Result<Memory<T>> {
        let bytes = len.saturating_mul(size_of::<T>());
        let too_much = Error::OutOfMemory { what, bytes };
        if len == 0 {
            return Ok(Memory { start: NonNull::dangling(), len, owner: Owner::Heap });
        }
        if bytes >= MAPPED {
            let Some(piece) = cut(bytes) else { return Err(too_much) };
            return Ok(Memory { start: piece.start().cast(), len, owner: Owner::Range(piece) });
        }
        let Some(layout) = layout::<T>(len) else { return Err(too_much) };
        // SAFETY: the layout is not empty, and zero bits are the number 0 in every element type.
        let Some(start) = NonNull::new(unsafe { alloc_zeroed(layout) }) else { return Err(too_much) };
        Ok(Memory { start: start.cast(), len, owner: Owner::Heap })
    }

    /// Maps `len` elements, at least one, at byte `start` of a file. The file must stay unchanged.
    ///
    /// # Errors
    /// If the system refuses the mapping, or the elements are not inside the file.
    pub(super) fn mapped(file: &File, start: u64, len: usize) -> io::Result<Memory<T>> {
        let bytes = len.saturating_mul(size_of::<T>());
        if start
            .checked_add(bytes as u64)
            .is_none_or(|end| file.metadata().is_ok_and(|data| data.len() < end))
        {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        // SAFETY: the mapping is private, and the caller keeps the file unchanged.
        let mut map = unsafe { MmapOptions::new().offset(start).len(bytes).map_copy(file)? };
        let first = NonNull::new(map.as_mut_ptr()).filter(|first| first.cast::<T>().is_aligned());
        let Some(first) = first else { return Err(io::ErrorKind::InvalidInput.into()) };
        Ok(Memory { start: first.cast(), len, owner: Owner::File(map) })
    }

    /// Returns the bytes of the elements.
    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: the array owns the bytes of `len` initialized elements, which are plain numbers.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast(), self.len * size_of::<T>()) }
    }

    /// Returns the bytes of the elements for writing.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the array owns the bytes of `len` elements, and every bit pattern that is written
        // to them is a number.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().cast(), self.len * size_of::<T>()) }
    }
}

/// Returns the layout of an array on the heap.
fn layout<T: Plain>(len: usize) -> Option<Layout> {
    Layout::from_size_align(len.checked_mul(size_of::<T>())?, LINE).ok()
}

impl<T: Plain> Drop for Memory<T> {
    fn drop(&mut self) {
        if let (Some(layout), Owner::Heap, true) = (layout::<T>(self.len), &self.owner, self.len > 0) {
            // SAFETY: allocated in `zeroed` with the same layout.
            unsafe { dealloc(self.start.as_ptr().cast(), layout) };
        }
    }
}

impl<T: Plain> Deref for Memory<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: the array owns `len` initialized elements.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T: Plain> DerefMut for Memory<T> {
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

impl<T> Shared<T> {
    /// Returns the elements from `at`, which is inside the slice.
    pub(super) fn from(self, at: usize) -> Shared<T> {
        Shared(self.0.wrapping_add(at))
    }
}

impl Shared<f32> {
    /// Returns the same memory as words whose contents are only bits.
    pub(super) fn words(self) -> Shared<u32> {
        Shared(self.0.cast())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Arrays start zeroed, do not overlap, and do not lose their contents when others are
        /// freed.
        #[test]
        fn arrays_are_separate(
            sizes in prop::collection::vec(0usize..300_000, 1..12),
            freed in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
        ) {
            let mut arrays = Vec::new();
            for (number, &len) in sizes.iter().enumerate() {
                let mut array = Memory::<f32>::zeroed(len, "a test").unwrap();
                prop_assert!(array.iter().all(|x| *x == 0.0));
                prop_assert!(len == 0 || array.as_ptr().addr().is_multiple_of(LINE));
                array.fill(number as f32 + 1.0);
                arrays.push((number, array));
            }
            for index in freed {
                if !arrays.is_empty() {
                    arrays.swap_remove(index.index(arrays.len()));
                }
                for (number, array) in &arrays {
                    prop_assert!(array.iter().all(|x| *x == *number as f32 + 1.0));
                }
            }
        }
    }

    #[test]
    fn absurd_sizes_are_refused() {
        for len in [usize::MAX, usize::MAX / 4, 1 << 60, 1 << 50] {
            let error = Memory::<f32>::zeroed(len, "a test").unwrap_err();
            let bytes = len.saturating_mul(4);
            assert!(
                matches!(error, Error::OutOfMemory { what: "a test", bytes: b } if b == bytes),
                "{error}"
            );
        }
    }
}
