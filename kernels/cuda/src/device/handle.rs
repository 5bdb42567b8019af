//! The handle of a device, through which all work is submitted.

use std::sync::Arc;

use millrace_backend::{Error, Overheads, Result};

use super::arena::{Arena, ArenaUsage};
use super::driver::params::{Kernel, KernelParams};
use super::driver::{Algorithm, Driver, Gemm, Grid, Properties, StreamCall, TensorLayout, TensorMap};
use super::elem::Elem;
use super::memory::{Memory, View};

/// A GPU or a simulated device. Clones refer to the same device.
#[derive(Debug, Clone)]
pub struct Device {
    driver: Arc<dyn Driver>,
    arena: Arc<Arena>,
    properties: Properties,
}

impl Device {
    /// The device that `driver` implements.
    pub fn new(driver: Arc<dyn Driver>) -> Device {
        let properties = driver.properties();
        Device { driver, arena: Arc::default(), properties }
    }

    /// The device that tests run on: the first GPU with `MILLRACE_TEST_DEVICE=cuda`, otherwise a
    /// new simulated one.
    ///
    /// # Errors
    /// If there is no GPU, or the environment asks for what no simulated device is.
    #[cfg(feature = "cpu-sim")]
    pub fn under_test() -> Result<Device> {
        let on_gpu = std::env::var("MILLRACE_TEST_DEVICE").is_ok_and(|device| device == "cuda");
        let driver: Arc<dyn Driver> =
            if on_gpu { Arc::new(super::Gpu::new(0)?) } else { Arc::new(super::Simulated::new()?) };
        Ok(Device::new(driver))
    }

    /// The device's name, for logs.
    pub fn name(&self) -> String {
        self.driver.name()
    }

    /// The device's properties.
    pub fn properties(&self) -> &Properties {
        &self.properties
    }

    /// Allocates `len` elements. Their contents are undefined.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if the device has less free memory.
    pub fn allocate(&self, elem: Elem, len: usize) -> Result<Memory> {
        let bytes = len.checked_mul(elem.size());
        let bytes = bytes.ok_or(Error::OutOfMemory { what: "device memory", bytes: usize::MAX })?;
        self.arena.take(&self.driver, bytes)
    }

    /// Reserves `bytes` bytes in one allocation. Later allocations are cut from it and never
    /// returned to it.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if the device has less free memory.
    pub fn reserve(&self, bytes: usize) -> Result<()> {
        self.arena.reserve(&self.driver, bytes)
    }

    /// How much of the reservation is in use.
    pub fn reserved(&self) -> ArenaUsage {
        self.arena.reserved()
    }

    /// Declares that nothing is allocated from now on. A simulated device refuses later
    /// allocations.
    pub fn seal(&self) {
        self.driver.seal();
    }

    /// Allocates memory and fills it with `bytes`.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if the device has less free memory, or the error of the copy.
    pub fn upload(&self, bytes: &[u8]) -> Result<Memory> {
        let memory = self.allocate(Elem::U8, bytes.len())?;
        // SAFETY: the memory is as long as the bytes.
        unsafe { self.driver.upload(memory.view(Elem::U8).address(), bytes)? };
        Ok(memory)
    }

    /// Overwrites `view` with `bytes`.
    ///
    /// # Errors
    /// [`Error::Shape`] if the lengths differ, or the error of the copy.
    pub fn write(&self, view: View<'_>, bytes: &[u8]) -> Result<()> {
        if view.bytes() != bytes.len() {
            return Err(Error::Shape(format!("{} bytes into {}", bytes.len(), view.bytes())));
        }
        // SAFETY: a view lies in an allocation.
        unsafe { self.driver.upload(view.address(), bytes) }
    }

    /// Waits for all work submitted before, then returns the bytes of `view`.
    ///
    /// # Errors
    /// The error of the work before, or of the copy.
    pub fn read(&self, view: View<'_>) -> Result<Vec<u8>> {
        let mut bytes = vec![0; view.bytes()];
        self.read_to(view, &mut bytes)?;
        Ok(bytes)
    }

    /// Waits for all work submitted before, then copies the bytes of `view` to `to`.
    ///
    /// # Errors
    /// [`Error::Shape`] if the lengths differ, the error of the work before, or of the copy.
    pub fn read_to(&self, view: View<'_>, to: &mut [u8]) -> Result<()> {
        if view.bytes() != to.len() {
            return Err(Error::Shape(format!("{} bytes into {}", view.bytes(), to.len())));
        }
        // SAFETY: a view lies in an allocation.
        unsafe { self.driver.download(view.address(), to) }
    }

    /// Sets every byte of `view` to `value`.
    ///
    /// # Errors
    /// The driver's error.
    pub fn fill(&self, view: View<'_>, value: u8) -> Result<()> {
        // SAFETY: a view lies in an allocation.
        unsafe { self.driver.fill(view.address(), value, view.bytes()) }
    }

    /// Copies the elements of `from` to `to`.
    ///
    /// # Errors
    /// [`Error::Shape`] if the views differ in length or overlap, or the driver's error.
    pub fn copy(&self, from: View<'_>, to: View<'_>) -> Result<()> {
        let (bytes, a, b) = (from.bytes(), from.address(), to.address());
        if bytes != to.bytes() || a.abs_diff(b) < bytes as u64 {
            return Err(Error::Shape(format!("{bytes} bytes cannot be copied into {}", to.bytes())));
        }
        // SAFETY: views lie in allocations, and these two do not overlap.
        unsafe { self.driver.copy(a, b, bytes) }
    }

    /// Waits for all submitted work.
    ///
    /// # Errors
    /// The error of the work that failed first.
    pub fn synchronize(&self) -> Result<()> {
        self.driver.synchronize()
    }

    /// Measures how many seconds the device takes for the work that `work` submits.
    ///
    /// # Errors
    /// The error of `work` or of the device.
    pub fn time(&self, mut work: impl FnMut() -> Result<()>) -> Result<f64> {
        self.driver.time(&mut work)
    }

    /// Free and total bytes of the device's memory, if the device knows them.
    pub fn memory_bytes(&self) -> Option<(usize, usize)> {
        self.driver.memory_bytes()
    }

    /// Bytes that the driver and its libraries take for themselves in a group of `ranks`.
    pub fn overheads(&self, ranks: usize) -> Overheads {
        self.driver.overheads(ranks)
    }

    /// Multiplies with the device's matrix library.
    ///
    /// # Safety
    /// As for [`Driver::gemm`].
    pub(crate) unsafe fn gemm(&self, product: &Gemm) -> Result<()> {
        // SAFETY: the caller vouches for the operands.
        unsafe { self.driver.gemm(product) }
    }

    pub(crate) fn product_library(&self) -> Option<String> {
        self.driver.product_library()
    }

    pub(crate) fn algorithms(&self, product: &Gemm, most: usize) -> Result<Vec<Algorithm>> {
        self.driver.algorithms(product, most)
    }

    /// Whether the device's matrix library multiplies FP8 matrices with row factors.
    pub fn multiplies_fp8(&self) -> bool {
        let product = Gemm::scaled_fp8(256, 256, 256, Elem::BF16);
        self.algorithms(&product, 1).is_ok_and(|found| !found.is_empty())
    }

    pub(crate) fn supports_algorithm(&self, product: &Gemm) -> Result<bool> {
        self.driver.supports_algorithm(product)
    }

    pub(crate) fn make_current(&self) -> Result<()> {
        self.driver.make_current()
    }

    /// Lets a library submit its work to the main stream; see [`StreamCall`].
    pub(crate) fn call_library(&self, work: StreamCall) -> Result<()> {
        self.driver.call_library(work)
    }

    pub(crate) fn driver(&self) -> &Arc<dyn Driver> {
        &self.driver
    }

    /// Encodes a tensor map, which describes memory to the copy engine.
    ///
    /// # Errors
    /// As for [`Driver::tensor_map`].
    pub(crate) fn tensor_map(&self, layout: &TensorLayout<'_>) -> Result<TensorMap> {
        self.driver.tensor_map(layout)
    }

    /// Launches a kernel.
    ///
    /// # Safety
    /// All memory that the kernel reads and writes for these parameters lies in allocations.
    pub(crate) unsafe fn launch<P: KernelParams>(
        &self,
        kernel: Kernel<P>,
        grid: Grid,
        params: &P,
    ) -> Result<()> {
        // SAFETY: the kernel takes a `P`; the caller guarantees the memory.
        unsafe { self.driver.launch(kernel.function(), grid, params.into()) }
    }
}
