//! One GPU with its context, streams and libraries.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Mutex, OnceLock, PoisonError};

use cudarc::driver::result::{self, DriverError, ctx, device, stream};
use cudarc::driver::sys::{self, CUdevice_attribute as Attribute};
use millrace_backend::{Error, Result};

use super::availability;
use super::blas::{self, Blas};
use super::kernels::LoadedKernels;
use super::main_stream::MainStream;
use super::raw::{DriverHandle, driver_error};
use crate::device::driver::{Properties, Recorder};

/// One NVIDIA GPU, its primary context and its two streams.
#[derive(Debug)]
pub struct Gpu {
    pub(super) name: String,
    pub(super) device: sys::CUdevice,
    pub(super) context: DriverHandle<sys::CUcontext>,
    /// The main stream.
    pub(super) stream: MainStream,
    /// The copy stream.
    pub(super) copies: DriverHandle<sys::CUstream>,
    pub(super) recorder: Recorder,
    pub(super) properties: Properties,
    pub(super) kernels: LoadedKernels,
    /// The matrix library, which the first product opens.
    pub(super) blas: Mutex<Option<Products>>,
    /// A word of host memory that kernels can write to, allocated on first use.
    pub(super) host_word: OnceLock<DriverHandle<NonNull<AtomicU32>>>,
    /// Whether the GPU did not finish its work in time when something was to be freed. Nothing is
    /// freed from then on.
    pub(super) is_stuck: AtomicBool,
}

/// The matrix library and its workspace.
#[derive(Debug)]
pub(super) struct Products {
    pub(super) blas: Blas,
    pub(super) workspace: u64,
}

impl Gpu {
    /// The number of GPUs that `CUDA_VISIBLE_DEVICES` shows.
    ///
    /// # Errors
    /// [`Error::Device`] with one sentence: no driver, a driver that cannot be used, or no GPU.
    pub fn count() -> Result<usize> {
        availability::count()
    }

    /// The number of usable GPUs: all before the first one that is not supported. Creates no
    /// context.
    ///
    /// # Errors
    /// [`Error::Device`] with one sentence if there is none, for example because the GPU or the
    /// driver is too old.
    pub fn usable() -> Result<usize> {
        availability::usable()
    }

    /// GPU number `ordinal` of those that `CUDA_VISIBLE_DEVICES` shows.
    ///
    /// # Errors
    /// [`Error::Device`] with one sentence: no driver, no such GPU, a GPU that is too old, or the
    /// name of a failed call.
    pub fn new(ordinal: usize) -> Result<Gpu> {
        let count = Gpu::count()?;
        if ordinal >= count {
            return Err(Error::Device(format!("no GPU {ordinal}: the driver shows {count}")));
        }
        let device = device::get(ordinal as i32).map_err(|e| driver_error("cuDeviceGet", e))?;
        let name = device::get_name(device).map_err(|e| driver_error("cuDeviceGetName", e))?;
        let attribute = |which| {
            // SAFETY: the device came from the driver.
            let value = unsafe { device::get_attribute(device, which) };
            value.map(|v| v as u32).map_err(|e| driver_error("cuDeviceGetAttribute", e))
        };
        let capability = (
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        );
        let properties = Properties {
            capability,
            runs_hopper_kernels: capability == (9, 0),
            multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            shared_per_block: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?
                as usize,
            l2_bytes: attribute(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)? as usize,
        };
        availability::check_capability(&name, properties.capability)?;
        // SAFETY: the device came from the driver; the context is released when the GPU is dropped.
        let context =
            unsafe { primary_context(device) }.map_err(|e| driver_error("cuDevicePrimaryCtxRetain", e))?;
        let copies =
            stream::create(stream::StreamKind::NonBlocking).map_err(|e| driver_error("cuStreamCreate", e))?;
        Ok(Gpu {
            kernels: LoadedKernels::new(name.clone(), properties.capability),
            name,
            device,
            context: DriverHandle(context),
            stream: MainStream::new(properties.capability)?,
            copies: DriverHandle(copies),
            recorder: Recorder::default(),
            properties,
            blas: Mutex::default(),
            host_word: OnceLock::new(),
            is_stuck: AtomicBool::new(false),
        })
    }

    /// Makes the GPU's context current on the calling thread.
    pub(super) fn make_context_current(&self) -> Result<()> {
        // SAFETY: the context lives as long as the GPU.
        unsafe { ctx::set_current(self.context.0) }.map_err(|e| driver_error("cuCtxSetCurrent", e))
    }

    /// Allocates device memory, which the caller frees.
    pub(super) fn allocate_bytes(&self, bytes: usize) -> Result<u64> {
        self.recorder.forbid("an allocation")?;
        self.make_context_current()?;
        // SAFETY: the context is current; the caller frees the memory.
        unsafe { result::malloc_sync(bytes) }.map_err(|e| match e.0 {
            sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => Error::OutOfMemory { what: "device memory", bytes },
            _ => driver_error("cuMemAlloc", e),
        })
    }

    /// Calls `work` with the matrix library, which the first call opens. The context must be
    /// current.
    pub(super) fn with_blas<T>(&self, work: impl FnOnce(&mut Products) -> Result<T>) -> Result<T> {
        let mut opened = self.blas.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *opened {
            Some(products) => work(products),
            none => {
                self.recorder.forbid("a first product")?;
                let products =
                    Products { blas: Blas::open()?, workspace: self.allocate_bytes(blas::WORKSPACE)? };
                work(none.insert(products))
            }
        }
    }
}

/// # Safety
/// `device` came from the driver.
unsafe fn primary_context(device: sys::CUdevice) -> std::result::Result<sys::CUcontext, DriverError> {
    // SAFETY: the caller says that the device came from the driver.
    unsafe {
        let context = result::primary_ctx::retain(device)?;
        ctx::set_current(context)?;
        Ok(context)
    }
}
