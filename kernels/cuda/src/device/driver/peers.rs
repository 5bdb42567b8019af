//! Memory that the devices of several processes share.

use std::sync::atomic::AtomicU32;

use millrace_backend::{Error, Result};

/// The name under which other processes of this host open memory from
/// [`PeerMemory::allocate_shared`]. Unused bytes are zero.
pub type SharedName = [u8; 96];

/// The part of [`super::interface::Driver`] for memory that other processes or the host see while
/// kernels write to it.
pub trait PeerMemory {
    /// Allocates zeroed memory that devices of other processes on this host can open by the
    /// returned name. It stays allocated until the device is dropped.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device cannot share memory, or the driver's error.
    fn allocate_shared(&self, _bytes: usize) -> Result<(u64, SharedName)> {
        Err(Error::Unsupported("this device cannot share memory".to_owned()))
    }
    /// Opens memory of at least `bytes` bytes that a device of another process shares under this
    /// name, and returns its address here.
    ///
    /// # Errors
    /// [`Error::Device`], in one sentence, if this device cannot access the other one's memory.
    fn open_shared(&self, _name: &SharedName, _bytes: usize) -> Result<u64> {
        Err(Error::Unsupported("this device cannot open another device's memory".to_owned()))
    }
    /// Closes memory that another process shares.
    ///
    /// # Safety
    /// `at` came from [`PeerMemory::open_shared`] and is not used again.
    unsafe fn close_shared(&self, _at: u64) {}
    /// A word of host memory that kernels can write to at its address. It is 0 at first and stays
    /// until the device is dropped.
    ///
    /// # Errors
    /// The driver's error.
    fn host_word(&self) -> Result<&AtomicU32> {
        Err(Error::Unsupported("kernels of this device cannot write to host memory".to_owned()))
    }
}
