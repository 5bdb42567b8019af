//! Host memory that copies to and from the device reach without anybody waiting.

use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;

use super::device::Device;
use super::driver::Driver;
use super::memory::View;
use super::streams::Stream;
use crate::{Error, Result};

/// Pinned host memory; given back when dropped, once no copy is under way and no graph is left.
///
/// It is the host's to read and write except while a copy that was started, or a replay of one, has not been waited for (see
/// [`super::Event`]): a source that is changed meanwhile may arrive as it was or as it is, and a target holds anything.
#[derive(Debug)]
pub struct Pinned {
    driver: Arc<dyn Driver>,
    at: u64,
    bytes: usize,
}

impl Device {
    /// Zeroed pinned memory of `bytes` bytes.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if there is not as much, [`Error::Device`] while a graph is recorded.
    pub fn pinned(&self, bytes: usize) -> Result<Pinned> {
        let driver = self.driver().clone();
        let at = driver.pin(bytes.max(1))?;
        Ok(Pinned { driver, at, bytes })
    }

    /// Starts a copy of the bytes `range` of `from` to `view`.
    ///
    /// # Errors
    /// [`Error::Shape`] if they differ in length, or what the driver fails with.
    pub fn write_from(&self, view: View<'_>, from: &Pinned, range: Range<usize>) -> Result<()> {
        self.write_from_on(Stream::Main, view, from, range)
    }

    /// Starts a copy of `view` to the bytes `range` of `into`.
    ///
    /// # Errors
    /// As for [`Device::write_from`].
    pub fn read_into(&self, view: View<'_>, into: &mut Pinned, range: Range<usize>) -> Result<()> {
        let to = into.address(&view, &range)?;
        // SAFETY: a view lies in an allocation, and the range, which is as long, in pinned memory.
        unsafe { self.driver().read_into(Stream::Main, view.address(), to, range.len()) }
    }

    pub(super) fn write_from_on(
        &self,
        stream: Stream,
        view: View<'_>,
        from: &Pinned,
        range: Range<usize>,
    ) -> Result<()> {
        let at = from.address(&view, &range)?;
        // SAFETY: as in `read_into`.
        unsafe { self.driver().write_from(stream, view.address(), at, range.len()) }
    }
}

impl Pinned {
    /// Where the range begins, if it exists and is as long as the view.
    fn address(&self, view: &View<'_>, range: &Range<usize>) -> Result<u64> {
        if range.start > range.end || range.end > self.bytes || range.len() != view.bytes() {
            let (of, with) = (self.bytes, view.bytes());
            return Err(Error::Shape(format!(
                "bytes {range:?} of {of} pinned ones do not match a view of {with}"
            )));
        }
        Ok(self.at + range.start as u64)
    }
}

impl Deref for Pinned {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the memory is there until `self` is dropped, and was zeroed.
        unsafe { std::slice::from_raw_parts(self.at as *const u8, self.bytes) }
    }
}

impl DerefMut for Pinned {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; the host has no other reference to it.
        unsafe { std::slice::from_raw_parts_mut(self.at as *mut u8, self.bytes) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: the address came from this driver, and nobody has it after this.
        unsafe { self.driver.unpin(self.at) }
    }
}
