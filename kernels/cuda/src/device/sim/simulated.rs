//! The simulated device.
//!
//! Work runs at once and in order, unless something before it in its stream is deferred: see
//! [`super::queue`].

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use millrace_backend::{Error, Overheads, Result};

use super::allocation::Allocation;
use super::fault::Fault;
use super::functions::Functions;
use super::gpu_model::GpuModel;
use super::kernels::{Kernels, Launch};
use super::queue::{QueuedOp, StreamQueues};
use super::schedule::FiberSchedule;
#[cfg(target_os = "linux")]
use super::shared_memory::SharedMapping;
use crate::device::code::embedded;
use crate::device::driver::params::LaunchParams;
#[cfg(target_os = "linux")]
use crate::device::driver::{
    Algorithm, DeviceStream, Driver, Freed, Gemm, Grid, KernelName, MatrixLibrary, PeerMemory, Properties,
    Recorder, SharedName,
};
use crate::device::elem::Elem;

/// The simulated device.
#[derive(Debug)]
pub struct Simulated {
    pub(super) kernels: Kernels,
    functions: Functions,
    /// Whether allocations have no guards, for sanitizers.
    pub(super) exact: bool,
    /// Device allocations by their address.
    pub(super) memory: Mutex<HashMap<u64, Allocation>>,
    /// Pinned host allocations by their address.
    pub(super) pinned: Mutex<HashMap<u64, Allocation>>,
    /// Memory that other processes share, by its address.
    #[cfg(target_os = "linux")]
    pub(super) shared: Mutex<HashMap<u64, SharedMapping>>,
    pub(super) host_word: AtomicU32,
    pub(super) queue: StreamQueues,
    pub(super) recorder: Recorder,
    /// The number of device allocations so far.
    pub(super) allocations: AtomicUsize,
    pub(super) sealed: AtomicBool,
    pub(super) fault: Fault,
}

impl Simulated {
    /// Creates a device with the fiber schedule and the limits that the environment names. It runs
    /// as many blocks at a time as this machine has CPUs.
    ///
    /// # Errors
    /// [`millrace_backend::Error::Unsupported`] if a library of kernels cannot be loaded, or the
    /// environment names an unknown schedule or GPU.
    pub fn new() -> Result<Simulated> {
        Simulated::with_schedule(FiberSchedule::from_environment()?)
    }

    /// Creates a device with this fiber schedule, and the limits of the GPU that the environment
    /// names.
    ///
    /// # Errors
    /// As for [`Simulated::new`].
    pub fn with_schedule(schedule: FiberSchedule) -> Result<Simulated> {
        Simulated::with(schedule, GpuModel::from_environment()?)
    }

    /// Creates a device with this fiber schedule and the limits of this GPU.
    ///
    /// If `MILLRACE_SIM_LIBRARIES` names a folder, each `MODULE.so` in it replaces the library that
    /// was built in.
    ///
    /// # Errors
    /// [`millrace_backend::Error::Unsupported`] if a library of kernels cannot be loaded.
    pub fn with(schedule: FiberSchedule, model: GpuModel) -> Result<Simulated> {
        Ok(Simulated {
            kernels: Kernels::open(schedule, model)?,
            functions: Functions::new(model),
            exact: std::env::var_os("MILLRACE_SIM_EXACT").is_some(),
            memory: Mutex::default(),
            pinned: Mutex::default(),
            #[cfg(target_os = "linux")]
            shared: Mutex::default(),
            host_word: AtomicU32::new(0),
            queue: StreamQueues::default(),
            recorder: Recorder::default(),
            allocations: AtomicUsize::new(0),
            sealed: AtomicBool::new(false),
            fault: Fault::from_environment(),
        })
    }

    /// The file of a stand-in for NCCL that exchanges data between simulated devices of one
    /// machine.
    pub fn nccl_library() -> &'static Path {
        Path::new(embedded::NCCL)
    }

    /// Keeps memory that other processes share, and returns its address.
    #[cfg(target_os = "linux")]
    fn insert_shared(&self, shared: SharedMapping) -> u64 {
        let at = shared.address();
        locked(&self.shared).insert(at, shared);
        at
    }

    /// The number of device allocations so far.
    pub fn allocations(&self) -> usize {
        self.allocations.load(Ordering::Relaxed)
    }

    pub(super) fn refuse_if_sealed(&self, bytes: usize) -> Result<()> {
        if self.sealed.load(Ordering::Acquire) {
            return Err(Error::Device(format!("an allocation of {bytes} bytes after the device was sealed")));
        }
        Ok(())
    }

    pub(super) fn check_guards(&self) -> Result<()> {
        locked(&self.memory).values().try_for_each(Allocation::check)
    }

    pub(super) fn free_now(&self, freed: Freed) {
        let allocation = match freed {
            Freed::Device(at) => locked(&self.memory).remove(&at),
            Freed::Pinned(at) => locked(&self.pinned).remove(&at),
        };
        if let Some(Err(overrun)) = allocation.map(|allocation| allocation.check())
            && !std::thread::panicking()
        {
            panic!("{overrun}");
        }
    }
}

pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Driver for Simulated {
    fn name(&self) -> String {
        let Kernels { schedule, threads, .. } = &self.kernels;
        format!("simulated device ({}, {schedule:?}, {threads} threads)", self.functions.model.name)
    }

    fn properties(&self) -> Properties {
        self.functions.model.properties()
    }

    fn allocate(&self, bytes: usize) -> Result<u64> {
        self.recorder.forbid("an allocation")?;
        self.refuse_if_sealed(bytes)?;
        self.check_alive()?;
        self.allocations.fetch_add(1, Ordering::Relaxed);
        let allocation = Allocation::new(bytes, self.exact)?;
        let at = allocation.address();
        locked(&self.memory).insert(at, allocation);
        Ok(at)
    }

    unsafe fn free(&self, at: u64) {
        if self.recorder.may_free(Freed::Device(at)) {
            // The error of failed work is returned to whoever waits for it.
            let _ = self.drain_all();
            self.free_now(Freed::Device(at));
        }
    }

    unsafe fn upload(&self, to: u64, from: &[u8]) -> Result<()> {
        self.recorder.forbid("a copy of memory that is not pinned")?;
        self.check_alive()?;
        self.drain(DeviceStream::Main)?;
        // SAFETY: the caller says that the range is valid; it is host memory.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to as *mut u8, from.len()) };
        Ok(())
    }

    unsafe fn download(&self, from: u64, to: &mut [u8]) -> Result<()> {
        self.recorder.forbid("a copy that waits")?;
        self.check_alive()?;
        self.drain(DeviceStream::Main)?;
        self.check_guards()?;
        // SAFETY: the caller says that the range is valid; it is host memory.
        unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to.as_mut_ptr(), to.len()) };
        Ok(())
    }

    unsafe fn fill(&self, at: u64, value: u8, bytes: usize) -> Result<()> {
        self.submit(DeviceStream::Main, QueuedOp::Fill { at, value, bytes })
    }

    unsafe fn copy(&self, from: u64, to: u64, bytes: usize) -> Result<()> {
        self.submit(DeviceStream::Main, QueuedOp::Copy { from, to, bytes })
    }

    unsafe fn launch(&self, name: KernelName, grid: Grid, params: LaunchParams<'_>) -> Result<()> {
        self.functions.admit(name, grid)?;
        // SAFETY: the parameters are valid while the reference is.
        let launch = unsafe { Launch::new(name, grid, params) };
        self.submit(DeviceStream::Main, QueuedOp::Launch(launch))
    }

    /// The stand-in for NCCL has no buffers. Those with which ranks measure their exchange, and
    /// gather their parts, are counted.
    fn overheads(&self, ranks: usize) -> Overheads {
        let collectives = if ranks > 1 { 16 << 20 } else { 0 };
        Overheads { collectives, ..Overheads::default() }
    }

    fn seal(&self) {
        self.sealed.store(true, Ordering::Release);
    }

    fn memory_bytes(&self) -> Option<(usize, usize)> {
        None
    }

    fn synchronize(&self) -> Result<()> {
        self.recorder.forbid("a wait")?;
        self.check_alive()?;
        self.drain(DeviceStream::Main)?;
        self.check_guards()
    }

    fn time(&self, work: &mut dyn FnMut() -> Result<()>) -> Result<f64> {
        self.synchronize()?;
        let start = Instant::now();
        work()?;
        self.synchronize()?;
        Ok(start.elapsed().as_secs_f64())
    }
}

impl MatrixLibrary for Simulated {
    unsafe fn gemm(&self, product: &Gemm) -> Result<()> {
        self.submit(DeviceStream::Main, QueuedOp::Product(*product))
    }

    /// There is a choice only for FP8, because devices without such products offer no algorithm at
    /// all.
    fn algorithms(&self, product: &Gemm, _most: usize) -> Result<Vec<Algorithm>> {
        Ok(if product.elem == Elem::E4M3 { vec![Algorithm([0; 8])] } else { Vec::new() })
    }
}

impl PeerMemory for Simulated {
    #[cfg(target_os = "linux")]
    fn allocate_shared(&self, bytes: usize) -> Result<(u64, SharedName)> {
        let created = SharedMapping::create(bytes);
        let (memory, name) = created.map_err(|e| Error::Device(format!("shared memory: {e}")))?;
        Ok((self.insert_shared(memory), name))
    }

    #[cfg(target_os = "linux")]
    fn open_shared(&self, name: &SharedName, bytes: usize) -> Result<u64> {
        let opened = SharedMapping::open(name, bytes);
        Ok(self.insert_shared(opened.map_err(|e| Error::Device(format!("it cannot be opened: {e}")))?))
    }

    #[cfg(target_os = "linux")]
    unsafe fn close_shared(&self, at: u64) {
        locked(&self.shared).remove(&at);
    }

    fn host_word(&self) -> Result<&AtomicU32> {
        Ok(&self.host_word)
    }
}
