//! A device and what is done with it.

use std::sync::Arc;

use super::arena::{Arena, Reserved};
use super::choice::Algorithm;
use super::driver::{Arg, Driver, Function, Gemm, Grid, Properties, TensorLayout, TensorMap};
use super::memory::{Elem, Memory, View};
use super::streams::StreamCall;
use crate::backend::Overheads;
use crate::{Error, Result};

/// A card or the simulation of one. Clones are the same device.
#[derive(Debug, Clone)]
pub struct Device {
    driver: Arc<dyn Driver>,
    arena: Arc<Arena>,
    properties: Properties,
}

impl Device {
    /// The device behind `driver`.
    pub fn new(driver: Arc<dyn Driver>) -> Device {
        let properties = driver.properties();
        Device { driver, arena: Arc::default(), properties }
    }

    /// A name for people.
    pub fn name(&self) -> String {
        self.driver.name()
    }

    /// What the device is.
    pub fn properties(&self) -> &Properties {
        &self.properties
    }

    /// Room for `len` elements; its contents are undefined.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if there is not as much.
    pub fn allocate(&self, elem: Elem, len: usize) -> Result<Memory> {
        let bytes = len.checked_mul(elem.size());
        let bytes = bytes.ok_or(Error::OutOfMemory { what: "device memory", bytes: usize::MAX })?;
        self.arena.take(&self.driver, bytes)
    }

    /// Allocates `bytes` bytes at once, from which everything that is asked for from now on is cut; what is given back of it is not used again.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if there is not as much.
    pub fn reserve(&self, bytes: usize) -> Result<()> {
        self.arena.reserve(&self.driver, bytes)
    }

    /// How much of what was reserved is in use.
    pub fn reserved(&self) -> Reserved {
        self.arena.reserved()
    }

    /// From now on nothing is to be allocated: a simulated device refuses it.
    pub fn seal(&self) {
        self.driver.seal();
    }

    /// Memory that holds `bytes`.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if there is no room, or what the copy fails with.
    pub fn upload(&self, bytes: &[u8]) -> Result<Memory> {
        let memory = self.allocate(Elem::U8, bytes.len())?;
        // SAFETY: the memory is as long as the bytes.
        unsafe { self.driver.upload(memory.view(Elem::U8).address(), bytes)? };
        Ok(memory)
    }

    /// Overwrites `view` with `bytes`.
    ///
    /// # Errors
    /// [`Error::Shape`] if they differ in length, or what the copy fails with.
    pub fn write(&self, view: View<'_>, bytes: &[u8]) -> Result<()> {
        if view.bytes() != bytes.len() {
            return Err(Error::Shape(format!("{} bytes into {}", bytes.len(), view.bytes())));
        }
        // SAFETY: a view lies in an allocation.
        unsafe { self.driver.upload(view.address(), bytes) }
    }

    /// The bytes of `view`, once everything asked for before is done.
    ///
    /// # Errors
    /// What the work before it or the copy fails with.
    pub fn read(&self, view: View<'_>) -> Result<Vec<u8>> {
        let mut bytes = vec![0; view.bytes()];
        // SAFETY: a view lies in an allocation.
        unsafe { self.driver.download(view.address(), &mut bytes)? };
        Ok(bytes)
    }

    /// Sets every byte of `view`.
    ///
    /// # Errors
    /// What the driver fails with.
    pub fn fill(&self, view: View<'_>, value: u8) -> Result<()> {
        // SAFETY: a view lies in an allocation.
        unsafe { self.driver.fill(view.address(), value, view.bytes()) }
    }

    /// Copies the elements of `from` to `to`.
    ///
    /// # Errors
    /// [`Error::Shape`] if they differ in length or overlap, or what the driver fails with.
    pub fn copy(&self, from: View<'_>, to: View<'_>) -> Result<()> {
        let (bytes, a, b) = (from.bytes(), from.address(), to.address());
        if bytes != to.bytes() || a.abs_diff(b) < bytes as u64 {
            return Err(Error::Shape(format!("{bytes} bytes cannot be copied into {}", to.bytes())));
        }
        // SAFETY: views lie in allocations, and these do not overlap.
        unsafe { self.driver.copy(a, b, bytes) }
    }

    /// Waits for everything asked for so far.
    ///
    /// # Errors
    /// What of it failed.
    pub fn synchronize(&self) -> Result<()> {
        self.driver.synchronize()
    }

    /// Seconds that the device takes for what `work` asks of it.
    ///
    /// # Errors
    /// What `work` or the device fails with.
    pub fn time(&self, mut work: impl FnMut() -> Result<()>) -> Result<f64> {
        self.driver.time(&mut work)
    }

    /// Free and total bytes of the device's memory, if it says.
    pub fn memory_bytes(&self) -> Option<(usize, usize)> {
        self.driver.memory_bytes()
    }

    /// Bytes that the driver and its libraries take for themselves in a group of `ranks`.
    pub fn overheads(&self, ranks: usize) -> Overheads {
        self.driver.overheads(ranks)
    }

    /// Multiplies by the device's library.
    ///
    /// # Safety
    /// As for [`Driver::gemm`].
    pub(super) unsafe fn gemm(&self, product: &Gemm) -> Result<()> {
        // SAFETY: the caller vouches for the operands.
        unsafe { self.driver.gemm(product) }
    }

    pub(super) fn product_library(&self) -> Option<String> {
        self.driver.product_library()
    }

    pub(super) fn algorithms(&self, product: &Gemm, most: usize) -> Result<Vec<Algorithm>> {
        self.driver.algorithms(product, most)
    }

    /// Whether the device's library multiplies matrices of FP8 with factors for their rows.
    pub fn multiplies_fp8(&self) -> bool {
        let product = super::ops::fp8::shape(256, 256, 256, Elem::BF16, None);
        self.algorithms(&product, 1).is_ok_and(|found| !found.is_empty())
    }

    pub(super) fn fits(&self, product: &Gemm) -> Result<bool> {
        self.driver.fits(product)
    }

    pub(super) fn make_current(&self) -> Result<()> {
        self.driver.make_current()
    }

    /// Has a library do its part on the device's stream: see [`StreamCall`].
    pub(super) fn call(&self, work: StreamCall) -> Result<()> {
        self.driver.call(work)
    }

    pub(super) fn driver(&self) -> &Arc<dyn Driver> {
        &self.driver
    }

    /// Describes memory to the copy engine.
    ///
    /// # Errors
    /// As for [`Driver::tensor_map`].
    pub(super) fn tensor_map(&self, layout: &TensorLayout<'_>) -> Result<TensorMap> {
        self.driver.tensor_map(layout)
    }

    /// Starts a kernel.
    ///
    /// # Safety
    /// As for [`Driver::launch`].
    pub(super) unsafe fn launch(
        &self,
        module: &'static str,
        name: &'static str,
        grid: Grid,
        args: &[Arg],
    ) -> Result<()> {
        // SAFETY: the caller vouches for the arguments.
        unsafe { self.driver.launch(Function { module, name }, grid, args) }
    }
}
