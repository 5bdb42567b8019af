//! Pinned host memory, which asynchronous copies use.

use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;

use millrace_backend::{Error, Result};

use super::driver::{DeviceStream, Driver};
use super::handle::Device;
use super::memory::View;

/// Pinned host memory. It is freed when it is dropped, once no copy is in flight and no graph is
/// left.
///
/// The host may read and write it except while a started copy, or the replay of one, has not been
/// waited for (see [`crate::DeviceEvent`]). A copy from memory that the host changes
/// meanwhile transfers old or new bytes. Memory that a copy writes to holds arbitrary bytes
/// meanwhile.
#[derive(Debug)]
pub struct Pinned {
    driver: Arc<dyn Driver>,
    at: u64,
    bytes: usize,
}

impl Device {
    /// Allocates `bytes` bytes of zeroed pinned memory.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if the host has less memory to pin, [`Error::Device`] while a graph
    /// is being recorded.
    pub fn pinned(&self, bytes: usize) -> Result<Pinned> {
        let driver = self.driver().clone();
        let at = driver.pin(bytes.max(1))?;
        Ok(Pinned { driver, at, bytes })
    }

    /// Starts a copy of the bytes `range` of `from` to `view`.
    ///
    /// # Errors
    /// [`Error::Shape`] if the lengths differ, or the driver's error.
    pub fn write_from(&self, view: View<'_>, from: &Pinned, range: Range<usize>) -> Result<()> {
        self.write_from_on(DeviceStream::Main, view, from, range)
    }

    /// Starts a copy of `view` to the bytes `range` of `into`.
    ///
    /// # Errors
    /// As for [`Device::write_from`].
    pub fn read_into(&self, view: View<'_>, into: &mut Pinned, range: Range<usize>) -> Result<()> {
        let to = into.address(&view, &range)?;
        // SAFETY: a view lies in an allocation, and the range, which has the same length, in pinned
        // memory.
        unsafe { self.driver().download_pinned(DeviceStream::Main, view.address(), to, range.len()) }
    }

    pub(super) fn write_from_on(
        &self,
        stream: DeviceStream,
        view: View<'_>,
        from: &Pinned,
        range: Range<usize>,
    ) -> Result<()> {
        let at = from.address(&view, &range)?;
        // SAFETY: as in `read_into`.
        unsafe { self.driver().upload_pinned(stream, view.address(), at, range.len()) }
    }
}

impl Pinned {
    /// The address of `range`, after a check that it exists and is as long as the view.
    fn address(&self, view: &View<'_>, range: &Range<usize>) -> Result<u64> {
        if range.start > range.end || range.end > self.bytes || range.len() != view.bytes() {
            let (of, with) = (self.bytes, view.bytes());
            return Err(Error::Shape(format!(
                "bytes {range:?} of a pinned buffer of {of} bytes do not match a view of {with} bytes"
            )));
        }
        Ok(self.at + range.start as u64)
    }
}

impl Deref for Pinned {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the memory stays allocated until `self` is dropped, and it was zeroed.
        unsafe { std::slice::from_raw_parts(self.at as *const u8, self.bytes) }
    }
}

impl DerefMut for Pinned {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; `&mut self` is the host's only reference.
        unsafe { std::slice::from_raw_parts_mut(self.at as *mut u8, self.bytes) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: the address came from this driver, and nothing uses it after this.
        unsafe { self.driver.unpin(self.at) }
    }
}
