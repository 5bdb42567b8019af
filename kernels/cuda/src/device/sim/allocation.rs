//! Memory of the simulated device.

use std::alloc::Layout;
use std::ptr::NonNull;

use millrace_backend::{Error, Result};

/// Host memory between two guards that no kernel may write to.
///
/// If `MILLRACE_SIM_EXACT` is set in the environment, there are no guards and the memory ends with
/// its last byte, so that a sanitizer also sees reads outside it.
#[derive(Debug)]
pub(super) struct Allocation {
    start: NonNull<u8>,
    layout: Layout,
    guard: usize,
    bytes: usize,
}

// SAFETY: the allocation owns its memory.
unsafe impl Send for Allocation {}

/// The alignment of allocations, and the least size of a guard.
const ALIGNMENT: usize = 256;
const GUARD: u8 = 0xA5;
/// The bytes of new memory: a NaN in every floating-point type.
pub(super) const GARBAGE: u8 = 0xFF;

impl Allocation {
    pub(super) fn new(bytes: usize, exact: bool) -> Result<Allocation> {
        let guard = if exact { 0 } else { ALIGNMENT };
        let all = if exact { bytes } else { bytes.next_multiple_of(ALIGNMENT) + 2 * ALIGNMENT };
        let out_of_memory = || Error::OutOfMemory { what: "the simulated device", bytes };
        let layout = Layout::from_size_align(all.max(1), ALIGNMENT).map_err(|_| out_of_memory())?;
        // SAFETY: the layout is not empty.
        let start = NonNull::new(unsafe { std::alloc::alloc(layout) }).ok_or_else(out_of_memory)?;
        // SAFETY: both ranges lie in the new allocation.
        unsafe {
            start.as_ptr().write_bytes(GUARD, layout.size());
            start.as_ptr().add(guard).write_bytes(GARBAGE, bytes);
        }
        Ok(Allocation { start, layout, guard, bytes })
    }

    pub(super) fn address(&self) -> u64 {
        self.start.as_ptr() as u64 + self.guard as u64
    }

    pub(super) fn check(&self) -> Result<()> {
        if self.guard == 0 {
            return Ok(());
        }
        // SAFETY: the memory is there until the allocation is dropped, and it was initialized.
        let all = unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.layout.size()) };
        let guards = all[..self.guard].iter().chain(&all[self.guard + self.bytes..]);
        if guards.copied().all(|byte| byte == GUARD) {
            return Ok(());
        }
        Err(Error::Device(format!("a kernel wrote outside an allocation of {} bytes", self.bytes)))
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: it was allocated with this layout.
        unsafe { std::alloc::dealloc(self.start.as_ptr(), self.layout) }
    }
}
