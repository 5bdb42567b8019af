//! The calls that the host code makes of a device.

use millrace_backend::{Error, Overheads, Result};

use super::launch::{Grid, KernelName, TensorLayout, TensorMap};
use super::params::LaunchParams;
use super::peers::PeerMemory;
use super::product::MatrixLibrary;
use super::streams::StreamDriver;

/// The properties of a device that the choice of a kernel depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Properties {
    /// Major and minor compute capability.
    pub capability: (u32, u32),
    /// Whether the device runs kernels that are made of instructions of Hopper alone (`wgmma`).
    pub runs_hopper_kernels: bool,
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Bytes of static and dynamic shared memory that one block can use.
    pub shared_per_block: usize,
    /// Bytes of the L2 cache.
    pub l2_bytes: usize,
}

/// One device. Work runs on the main stream, in the order of the calls, unless a method says
/// otherwise.
pub trait Driver: StreamDriver + MatrixLibrary + PeerMemory {
    /// The device's name, for logs.
    fn name(&self) -> String;
    /// The device's properties.
    fn properties(&self) -> Properties;
    /// Allocates `bytes` bytes, aligned to 256, and returns their address. The contents are
    /// undefined.
    ///
    /// # Errors
    /// [`millrace_backend::Error::OutOfMemory`] if the device has less free memory.
    fn allocate(&self, bytes: usize) -> Result<u64>;
    /// Frees memory once all work submitted before is done.
    ///
    /// # Safety
    /// `at` came from [`Driver::allocate`] and is not used again.
    unsafe fn free(&self, at: u64);
    /// Copies from the host to the device. The caller may change `from` as soon as the call
    /// returns.
    ///
    /// # Safety
    /// `[to, to + from.len())` lies in one allocation.
    unsafe fn upload(&self, to: u64, from: &[u8]) -> Result<()>;
    /// Waits for all work submitted before, then copies from the device to the host.
    ///
    /// # Safety
    /// `[from, from + to.len())` lies in one allocation.
    unsafe fn download(&self, from: u64, to: &mut [u8]) -> Result<()>;
    /// Sets `bytes` bytes to `value`.
    ///
    /// # Safety
    /// `[at, at + bytes)` lies in one allocation.
    unsafe fn fill(&self, at: u64, value: u8, bytes: usize) -> Result<()>;
    /// Copies within the device.
    ///
    /// # Safety
    /// `[from, from + bytes)` and `[to, to + bytes)` lie in one allocation each and do not overlap.
    unsafe fn copy(&self, from: u64, to: u64, bytes: usize) -> Result<()>;
    /// Launches a kernel.
    ///
    /// # Safety
    /// The kernel takes these parameters, and all memory that it reads and writes for them lies in
    /// allocations.
    unsafe fn launch(&self, name: KernelName, grid: Grid, params: LaunchParams<'_>) -> Result<()>;
    /// Bytes of device memory that the driver and its libraries take for themselves in a group of
    /// `ranks`, beside what they took when the device was opened.
    fn overheads(&self, _ranks: usize) -> Overheads {
        Overheads::default()
    }
    /// Declares that nothing is allocated from now on.
    fn seal(&self) {}
    /// Free and total bytes of the device's memory, if the device knows them.
    fn memory_bytes(&self) -> Option<(usize, usize)>;
    /// Prepares the calling thread for direct calls of the device's libraries.
    fn make_current(&self) -> Result<()> {
        Ok(())
    }
    /// Encodes a tensor map, which describes memory to the copy engine.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device has no such copy engine, or the driver's error for a
    /// bad layout.
    fn tensor_map(&self, layout: &TensorLayout<'_>) -> Result<TensorMap> {
        Err(Error::Unsupported(format!(
            "{1} has no tensor copies (asked for {0:?})",
            layout.sizes,
            self.name()
        )))
    }
    /// Waits for all submitted work and returns its first error.
    fn synchronize(&self) -> Result<()>;
    /// Measures how many seconds the device takes for the work that `work` submits.
    fn time(&self, work: &mut dyn FnMut() -> Result<()>) -> Result<f64>;
}
