//! Host memory that stands for pinned memory.

use std::collections::HashMap;

/// Allocations by their address.
#[derive(Debug, Default)]
pub(super) struct PinnedMemory {
    all: HashMap<u64, Box<[u64]>>,
}

impl PinnedMemory {
    /// Allocates zeroed bytes.
    pub(super) fn allocate(&mut self, bytes: usize) -> u64 {
        // One word more, so that empty allocations have addresses of their own.
        let mut words = vec![0u64; bytes / 8 + 1].into_boxed_slice();
        let at = words.as_mut_ptr() as u64;
        self.all.insert(at, words);
        at
    }

    pub(super) fn free(&mut self, at: u64) {
        self.all.remove(&at);
    }
}

/// The bytes of a pinned range.
///
/// # Safety
/// The range lies in pinned memory, and nobody else accesses it meanwhile.
pub(super) unsafe fn bytes<'a>(at: u64, len: usize) -> &'a mut [u8] {
    // SAFETY: the caller guarantees the range.
    unsafe { std::slice::from_raw_parts_mut(at as *mut u8, len) }
}
