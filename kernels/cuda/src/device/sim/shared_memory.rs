//! Memory that simulated devices of several processes share: a `memfd`. It has no name in any file
//! system, so nothing is left behind however the processes end. Other processes open it through
//! `/proc/<process>/fd/<descriptor>`.

use std::ffi::c_void;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;

use crate::device::driver::SharedName;

/// Shared memory that is mapped into this process.
#[derive(Debug)]
pub(super) struct SharedMapping {
    at: NonNull<c_void>,
    bytes: usize,
    /// Kept open so that other processes can open it.
    _file: File,
}

// SAFETY: any thread may use and unmap a mapping.
unsafe impl Send for SharedMapping {}

impl SharedMapping {
    pub(super) fn create(bytes: usize) -> io::Result<(SharedMapping, SharedName)> {
        // SAFETY: the name is a C string, and nothing else owns the descriptor.
        let file = unsafe {
            let descriptor = libc::memfd_create(c"millrace-simulated-device".as_ptr(), libc::MFD_CLOEXEC);
            if descriptor < 0 {
                return Err(io::Error::last_os_error());
            }
            File::from(OwnedFd::from_raw_fd(descriptor))
        };
        file.set_len(bytes as u64)?;
        let mut name = [0; size_of::<SharedName>()];
        name[..4].copy_from_slice(&std::process::id().to_le_bytes());
        name[4..8].copy_from_slice(&file.as_raw_fd().to_le_bytes());
        Ok((SharedMapping::map(file, bytes)?, name))
    }

    pub(super) fn open(name: &SharedName, bytes: usize) -> io::Result<SharedMapping> {
        let word = |at: usize| u32::from_le_bytes([name[at], name[at + 1], name[at + 2], name[at + 3]]);
        let file =
            OpenOptions::new().read(true).write(true).open(format!("/proc/{}/fd/{}", word(0), word(4)))?;
        if file.metadata()?.len() != bytes as u64 {
            return Err(io::Error::other("it is not as long as this rank's memory"));
        }
        SharedMapping::map(file, bytes)
    }

    fn map(file: File, bytes: usize) -> io::Result<SharedMapping> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping of a whole file changes no memory that is in use.
        let at =
            unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        match NonNull::new(at) {
            Some(at) if at.as_ptr() != libc::MAP_FAILED => Ok(SharedMapping { at, bytes, _file: file }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    pub(super) fn address(&self) -> u64 {
        self.at.as_ptr() as u64
    }
}

impl Drop for SharedMapping {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length and is not used again.
        unsafe { libc::munmap(self.at.as_ptr(), self.bytes) };
    }
}
