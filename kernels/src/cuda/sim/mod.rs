//! A simulated device: the kernels' own sources on this machine's processor, one fiber per CUDA thread (`cuda/sim/`).
//!
//! What is asked of it happens at once, in order, unless something before it must wait: see [`queue`].

mod allocation;
mod fault;
mod kernels;
mod order;
mod product;
mod queue;
#[cfg(target_os = "linux")]
mod shared;
mod streams;

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::choice::Algorithm;
#[cfg(target_os = "linux")]
use super::driver::SharedName;
use super::driver::{Arg, Driver, Function, Gemm, Grid, Properties};
use super::memory::Elem;
use super::modules;
use super::recorder::{Freed, Recorder};
use super::streams::Stream;
use crate::{Error, Result};
use allocation::Allocation;
use fault::Fault;
use kernels::{Kernels, Launch};
pub use order::Order;
use queue::{Op, Queue};

/// The simulated device.
#[derive(Debug)]
pub struct Simulated {
    kernels: Kernels,
    /// Allocations without guards, for sanitizers.
    exact: bool,
    /// Allocations of the device by their address.
    memory: Mutex<HashMap<u64, Allocation>>,
    /// Pinned memory of the host by its address.
    pinned: Mutex<HashMap<u64, Allocation>>,
    /// Memory that other processes see, by its address.
    #[cfg(target_os = "linux")]
    shared: Mutex<HashMap<u64, shared::Shared>>,
    host_word: AtomicU32,
    queue: Queue,
    recorder: Recorder,
    /// How often memory was asked for.
    allocations: AtomicUsize,
    sealed: AtomicBool,
    fault: Fault,
}

impl Simulated {
    /// A device that runs threads in the order that the environment asks for, as many blocks at a time as this machine
    /// has processors.
    ///
    /// # Errors
    /// [`crate::Error::Unsupported`] if a library of kernels cannot be loaded, or the environment asks for an unknown order.
    pub fn new() -> Result<Simulated> {
        Simulated::with_order(Order::from_environment()?)
    }

    /// A device that runs threads in this order.
    ///
    /// `MILLRACE_SIM_LIBRARIES` names a folder whose `MODULE.so` take the place of the libraries that were built in.
    ///
    /// # Errors
    /// [`crate::Error::Unsupported`] if a library of kernels cannot be loaded.
    pub fn with_order(order: Order) -> Result<Simulated> {
        Ok(Simulated {
            kernels: Kernels::open(order)?,
            exact: std::env::var_os("MILLRACE_SIM_EXACT").is_some(),
            memory: Mutex::default(),
            pinned: Mutex::default(),
            #[cfg(target_os = "linux")]
            shared: Mutex::default(),
            host_word: AtomicU32::new(0),
            queue: Queue::default(),
            recorder: Recorder::default(),
            allocations: AtomicUsize::new(0),
            sealed: AtomicBool::new(false),
            fault: Fault::from_environment(),
        })
    }

    /// The file of a stand-in for NCCL that carries values between simulated devices of one machine.
    pub fn nccl_library() -> &'static Path {
        Path::new(modules::NCCL)
    }

    /// Takes in memory that other processes see.
    #[cfg(target_os = "linux")]
    fn keep(&self, shared: shared::Shared) -> u64 {
        let at = shared.address();
        locked(&self.shared).insert(at, shared);
        at
    }

    /// How often the device's memory has been asked for.
    pub fn allocations(&self) -> usize {
        self.allocations.load(Ordering::Relaxed)
    }

    fn refuse_if_sealed(&self, bytes: usize) -> Result<()> {
        if self.sealed.load(Ordering::Acquire) {
            return Err(Error::Device(format!(
                "{bytes} bytes are asked for when nothing is to be allocated any more"
            )));
        }
        Ok(())
    }

    fn check_guards(&self) -> Result<()> {
        locked(&self.memory).values().try_for_each(Allocation::check)
    }

    fn give_back(&self, freed: Freed) {
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

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Driver for Simulated {
    fn name(&self) -> String {
        format!("simulated device ({:?}, {} threads)", self.kernels.order, self.kernels.threads)
    }

    /// Those of an Ada card with the shared memory of a Hopper card and few multiprocessors, so that small tests use several rounds of blocks.
    fn properties(&self) -> Properties {
        Properties { capability: (8, 9), multiprocessors: 6, shared_per_block: 227 << 10, l2_bytes: 1 << 20 }
    }

    fn allocate(&self, bytes: usize) -> Result<u64> {
        self.recorder.forbid("an allocation")?;
        self.refuse_if_sealed(bytes)?;
        self.alive()?;
        self.allocations.fetch_add(1, Ordering::Relaxed);
        let allocation = Allocation::new(bytes, self.exact)?;
        let at = allocation.address();
        locked(&self.memory).insert(at, allocation);
        Ok(at)
    }

    unsafe fn free(&self, at: u64) {
        if self.recorder.may_free(Freed::Device(at)) {
            // A failure is told to whoever waits for what failed.
            let _ = self.drain_all();
            self.give_back(Freed::Device(at));
        }
    }

    unsafe fn upload(&self, to: u64, from: &[u8]) -> Result<()> {
        self.recorder.forbid("a copy of memory that is not pinned")?;
        self.alive()?;
        self.drain(Stream::Main)?;
        // SAFETY: the caller says that the memory is there; it is host memory.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to as *mut u8, from.len()) };
        Ok(())
    }

    unsafe fn download(&self, from: u64, to: &mut [u8]) -> Result<()> {
        self.recorder.forbid("a copy that waits")?;
        self.alive()?;
        self.drain(Stream::Main)?;
        self.check_guards()?;
        // SAFETY: the caller says that the memory is there; it is host memory.
        unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to.as_mut_ptr(), to.len()) };
        Ok(())
    }

    unsafe fn fill(&self, at: u64, value: u8, bytes: usize) -> Result<()> {
        self.submit(Stream::Main, Op::Fill { at, value, bytes })
    }

    unsafe fn copy(&self, from: u64, to: u64, bytes: usize) -> Result<()> {
        self.submit(Stream::Main, Op::Copy { from, to, bytes })
    }

    unsafe fn launch(&self, function: Function, grid: Grid, args: &[Arg]) -> Result<()> {
        self.submit(Stream::Main, Op::Launch(Launch::new(function, grid, args)?))
    }

    unsafe fn gemm(&self, product: &Gemm) -> Result<()> {
        self.submit(Stream::Main, Op::Product(*product))
    }

    /// There is a choice for FP8 alone: other devices have no such products at all.
    fn algorithms(&self, product: &Gemm, _most: usize) -> Result<Vec<Algorithm>> {
        Ok(if product.elem == Elem::E4M3 { vec![Algorithm([0; 8])] } else { Vec::new() })
    }

    fn seal(&self) {
        self.sealed.store(true, Ordering::Release);
    }

    #[cfg(target_os = "linux")]
    fn share(&self, bytes: usize) -> Result<(u64, SharedName)> {
        let made = shared::Shared::create(bytes);
        let (memory, name) = made.map_err(|e| Error::Device(format!("memory to share: {e}")))?;
        Ok((self.keep(memory), name))
    }

    #[cfg(target_os = "linux")]
    fn open_shared(&self, name: &SharedName, bytes: usize) -> Result<u64> {
        let opened = shared::Shared::open(name, bytes);
        Ok(self.keep(opened.map_err(|e| Error::Device(format!("it cannot be opened: {e}")))?))
    }

    #[cfg(target_os = "linux")]
    unsafe fn close_shared(&self, at: u64) {
        locked(&self.shared).remove(&at);
    }

    fn host_word(&self) -> Result<&AtomicU32> {
        Ok(&self.host_word)
    }

    fn memory_bytes(&self) -> Option<(usize, usize)> {
        None
    }

    fn synchronize(&self) -> Result<()> {
        self.recorder.forbid("a wait")?;
        self.alive()?;
        self.drain(Stream::Main)?;
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
