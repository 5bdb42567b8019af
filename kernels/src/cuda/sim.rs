//! A simulated device: the kernels' own sources on this machine's processor, one fiber per CUDA thread (`cuda/sim/`).

#[cfg(target_os = "linux")]
mod shared;

use std::alloc::Layout;
use std::collections::HashMap;
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use half::{bf16, f16};
use libloading::Library;

#[cfg(target_os = "linux")]
use super::driver::SharedName;
use super::driver::{Arg, Driver, Function, Gemm, Grid, Properties};
use super::memory::Elem;
use super::modules;
use crate::{Error, Result};

/// In which order the threads of a block take turns. A kernel whose result depends on it lacks a barrier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// Threads ascending, warps in turn.
    #[default]
    Forward,
    /// Threads and warps descending.
    Reverse,
    /// Ascending, and each warp as far as it can go before the next one.
    Greedy,
    /// Descending, each warp as far as it can go.
    GreedyReverse,
}

impl Order {
    /// All orders.
    pub const ALL: [Order; 4] = [Order::Forward, Order::Reverse, Order::Greedy, Order::GreedyReverse];

    /// The order that `MILLRACE_SIM_ORDER` names: `forward` (also when it is not set), `reverse`, `greedy` or `greedy-reverse`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if it names none.
    pub fn from_environment() -> Result<Order> {
        match std::env::var("MILLRACE_SIM_ORDER").as_deref() {
            Err(_) | Ok("forward") => Ok(Order::Forward),
            Ok("reverse") => Ok(Order::Reverse),
            Ok("greedy") => Ok(Order::Greedy),
            Ok("greedy-reverse") => Ok(Order::GreedyReverse),
            Ok(other) => Err(Error::Unsupported(format!(
                "MILLRACE_SIM_ORDER={other}: not forward, reverse, greedy or greedy-reverse"
            ))),
        }
    }

    fn bits(self) -> c_uint {
        match self {
            Order::Forward => 0,
            Order::Reverse => 1,
            Order::Greedy => 2,
            Order::GreedyReverse => 3,
        }
    }
}

type Launch = unsafe extern "C" fn(
    *const c_char,
    *const c_uint,
    *const c_uint,
    usize,
    *mut *mut c_void,
    *const c_uint,
    c_uint,
    c_uint,
    c_uint,
    *mut c_char,
    usize,
) -> c_int;

/// The simulated device.
#[derive(Debug)]
pub struct Simulated {
    order: Order,
    threads: u32,
    /// Allocations without guards, for sanitizers.
    exact: bool,
    libraries: HashMap<&'static str, Library>,
    /// Allocations by their address.
    memory: Mutex<HashMap<u64, Allocation>>,
    /// Memory that other processes see, by its address.
    #[cfg(target_os = "linux")]
    shared: Mutex<HashMap<u64, shared::Shared>>,
    host_word: AtomicU32,
}

/// Host memory between two guards that no kernel may write to.
///
/// With `MILLRACE_SIM_EXACT` in the environment there are no guards, and the memory ends with its last byte: so a sanitizer
/// sees a read outside it too.
#[derive(Debug)]
struct Allocation {
    start: NonNull<u8>,
    layout: Layout,
    guard: usize,
    bytes: usize,
}

// SAFETY: the memory belongs to the allocation alone.
unsafe impl Send for Allocation {}

/// The alignment of allocations, and the least size of a guard.
const ALIGNMENT: usize = 256;
const GUARD: u8 = 0xA5;
/// What new memory holds: a NaN in every type of float.
const GARBAGE: u8 = 0xFF;

impl Simulated {
    /// A device that runs threads in the order that the environment asks for, as many blocks at a time as this machine
    /// has processors.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if a library of kernels cannot be loaded, or the environment asks for an unknown order.
    pub fn new() -> Result<Simulated> {
        Simulated::with_order(Order::from_environment()?)
    }

    /// A device that runs threads in this order.
    ///
    /// `MILLRACE_SIM_LIBRARIES` names a folder whose `MODULE.so` take the place of the libraries that were built in.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if a library of kernels cannot be loaded.
    pub fn with_order(order: Order) -> Result<Simulated> {
        let instead = std::env::var_os("MILLRACE_SIM_LIBRARIES");
        let mut libraries = HashMap::new();
        for (module, file) in modules::SIMULATED {
            let other = instead.as_ref().map(|folder| Path::new(folder).join(format!("{module}.so")));
            let file = other.filter(|file| file.exists()).unwrap_or_else(|| file.into());
            // SAFETY: the library is made of this crate's sources; loading it runs constructors that fill a table.
            let library = unsafe { Library::new(&file) }
                .map_err(|e| Error::Unsupported(format!("simulated kernels: {}: {e}", file.display())))?;
            libraries.insert(*module, library);
        }
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
        let exact = std::env::var_os("MILLRACE_SIM_EXACT").is_some();
        Ok(Simulated {
            order,
            threads,
            exact,
            libraries,
            memory: Mutex::default(),
            #[cfg(target_os = "linux")]
            shared: Mutex::default(),
            host_word: AtomicU32::new(0),
        })
    }

    /// The file of a stand-in for NCCL that carries values between simulated devices of one machine.
    pub fn nccl_library() -> &'static Path {
        Path::new(modules::NCCL)
    }

    fn memory(&self) -> MutexGuard<'_, HashMap<u64, Allocation>> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in memory that other processes see.
    #[cfg(target_os = "linux")]
    fn keep(&self, shared: shared::Shared) -> u64 {
        let at = shared.address();
        self.shared.lock().unwrap_or_else(PoisonError::into_inner).insert(at, shared);
        at
    }

    fn check_guards(&self) -> Result<()> {
        for allocation in self.memory().values() {
            allocation.check()?;
        }
        Ok(())
    }
}

impl Allocation {
    fn new(bytes: usize, exact: bool) -> Result<Allocation> {
        let guard = if exact { 0 } else { ALIGNMENT };
        let all = if exact { bytes } else { bytes.next_multiple_of(ALIGNMENT) + 2 * ALIGNMENT };
        let out_of_memory = || Error::OutOfMemory { what: "the simulated device", bytes };
        let layout = Layout::from_size_align(all.max(1), ALIGNMENT).map_err(|_| out_of_memory())?;
        // SAFETY: the layout is not empty.
        let start = NonNull::new(unsafe { std::alloc::alloc(layout) }).ok_or_else(out_of_memory)?;
        // SAFETY: both ranges lie in what was just allocated.
        unsafe {
            start.as_ptr().write_bytes(GUARD, layout.size());
            start.as_ptr().add(guard).write_bytes(GARBAGE, bytes);
        }
        Ok(Allocation { start, layout, guard, bytes })
    }

    fn address(&self) -> u64 {
        self.start.as_ptr() as u64 + self.guard as u64
    }

    fn check(&self) -> Result<()> {
        if self.guard == 0 {
            return Ok(());
        }
        // SAFETY: the memory is there until the allocation is dropped, and was written to when it was made.
        let all = unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.layout.size()) };
        let guards = all[..self.guard].iter().chain(&all[self.guard + self.bytes..]);
        if guards.copied().all(|byte| byte == GUARD) {
            return Ok(());
        }
        Err(Error::Device(format!("a kernel wrote outside an allocation of {} bytes", self.bytes)))
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: it was allocated with this layout.
        unsafe { std::alloc::dealloc(self.start.as_ptr(), self.layout) }
    }
}

impl Driver for Simulated {
    fn name(&self) -> String {
        format!("simulated device ({:?}, {} threads)", self.order, self.threads)
    }

    /// Those of an Ada card with the shared memory of a Hopper card and few multiprocessors, so that small tests use several rounds of blocks.
    fn properties(&self) -> Properties {
        Properties { capability: (8, 9), multiprocessors: 6, shared_per_block: 227 << 10, l2_bytes: 1 << 20 }
    }

    fn allocate(&self, bytes: usize) -> Result<u64> {
        let allocation = Allocation::new(bytes, self.exact)?;
        let at = allocation.address();
        self.memory().insert(at, allocation);
        Ok(at)
    }

    unsafe fn free(&self, at: u64) {
        let freed = self.memory().remove(&at);
        if let Some(Err(overrun)) = freed.map(|allocation| allocation.check())
            && !std::thread::panicking()
        {
            panic!("{overrun}");
        }
    }

    unsafe fn upload(&self, to: u64, from: &[u8]) -> Result<()> {
        // SAFETY: the caller says that the memory is there; it is host memory.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to as *mut u8, from.len()) };
        Ok(())
    }

    unsafe fn download(&self, from: u64, to: &mut [u8]) -> Result<()> {
        self.check_guards()?;
        // SAFETY: the caller says that the memory is there; it is host memory.
        unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to.as_mut_ptr(), to.len()) };
        Ok(())
    }

    unsafe fn fill(&self, at: u64, value: u8, bytes: usize) -> Result<()> {
        // SAFETY: the caller says that the memory is there; it is host memory.
        unsafe { std::ptr::write_bytes(at as *mut u8, value, bytes) };
        Ok(())
    }

    unsafe fn copy(&self, from: u64, to: u64, bytes: usize) -> Result<()> {
        // SAFETY: the caller says that the memory is there and does not overlap; it is host memory.
        unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, bytes) };
        Ok(())
    }

    unsafe fn launch(&self, function: Function, grid: Grid, args: &[Arg]) -> Result<()> {
        let library = self
            .libraries
            .get(function.module)
            .ok_or_else(|| Error::Unsupported(format!("no simulated module {}", function.module)))?;
        // SAFETY: every library of kernels exports this function with this signature.
        let launch = unsafe { library.get::<Launch>(b"millrace_sim_launch\0") }
            .map_err(|e| Error::Unsupported(format!("{}: {e}", function.module)))?;
        let name = CString::new(function.name).map_err(|e| Error::Unsupported(e.to_string()))?;
        let mut bits: Vec<u64> = args.iter().map(Arg::bits).collect();
        let parameter = |(bits, arg): (&mut u64, &Arg)| match arg {
            Arg::Map(map) => map.cast_mut().cast(),
            _ => std::ptr::from_mut(bits).cast(),
        };
        let mut params: Vec<*mut c_void> = bits.iter_mut().zip(args).map(parameter).collect();
        let sizes: Vec<c_uint> = args.iter().map(|a| a.size() as c_uint).collect();
        let mut message = [0u8; 512];
        // SAFETY: the arrays are as long as the call says, parameters are little-endian and at least as long as their
        // sizes, which the library compares with the kernel's own; the caller vouches for the memory behind them.
        let code = unsafe {
            launch(
                name.as_ptr(),
                grid.blocks.as_ptr(),
                grid.threads.as_ptr(),
                grid.shared,
                params.as_mut_ptr(),
                sizes.as_ptr(),
                sizes.len() as c_uint,
                self.order.bits(),
                self.threads,
                message.as_mut_ptr().cast(),
                message.len(),
            )
        };
        if code == 0 {
            return Ok(());
        }
        let end = message.iter().position(|&b| b == 0).unwrap_or(message.len());
        Err(Error::Device(String::from_utf8_lossy(&message[..end]).into_owned()))
    }

    unsafe fn gemm(&self, product: &Gemm) -> Result<()> {
        let &Gemm { rows, inputs, outputs, elem, out_elem, x, w, out } = product;
        // SAFETY: the caller says that the operands are as long; they lie in host memory.
        let (x, w) = unsafe { (widened(elem, x, rows * inputs)?, widened(elem, w, outputs * inputs)?) };
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
        let sums: Vec<f32> = x
            .chunks_exact(inputs)
            .flat_map(|x| w.chunks_exact(inputs).map(move |w| -> f64 { dot(x, w) }))
            .map(|sum| sum as f32)
            .collect();
        // SAFETY: as above.
        unsafe { narrowed(out_elem, &sums, out) }
    }

    fn gemm_bytes(&self) -> usize {
        0
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
        self.shared.lock().unwrap_or_else(PoisonError::into_inner).remove(&at);
    }

    fn host_word(&self) -> Result<&AtomicU32> {
        Ok(&self.host_word)
    }

    fn memory_bytes(&self) -> Option<(usize, usize)> {
        None
    }

    fn synchronize(&self) -> Result<()> {
        self.check_guards()
    }

    fn time(&self, work: &mut dyn FnMut() -> Result<()>) -> Result<f64> {
        let start = Instant::now();
        work()?;
        Ok(start.elapsed().as_secs_f64())
    }
}

/// The `len` elements at `at` as f32.
///
/// # Safety
/// They lie there.
unsafe fn widened(elem: Elem, at: u64, len: usize) -> Result<Vec<f32>> {
    // SAFETY: the caller says so; allocations are aligned to 256 bytes, and views start at elements.
    unsafe {
        match elem {
            Elem::F32 => Ok(std::slice::from_raw_parts(at as *const f32, len).to_vec()),
            Elem::F16 => {
                Ok(std::slice::from_raw_parts(at as *const f16, len).iter().map(|x| x.to_f32()).collect())
            }
            Elem::BF16 => {
                Ok(std::slice::from_raw_parts(at as *const bf16, len).iter().map(|x| x.to_f32()).collect())
            }
            other => Err(Error::Unsupported(format!("a product of {other:?}"))),
        }
    }
}

/// Writes `values` as elements to `at`.
///
/// # Safety
/// There is room for them.
unsafe fn narrowed(elem: Elem, values: &[f32], at: u64) -> Result<()> {
    // SAFETY: the caller says so; alignment as above.
    unsafe {
        match elem {
            Elem::F32 => std::slice::from_raw_parts_mut(at as *mut f32, values.len()).copy_from_slice(values),
            Elem::F16 => {
                let to = std::slice::from_raw_parts_mut(at as *mut f16, values.len());
                to.iter_mut().zip(values).for_each(|(to, x)| *to = f16::from_f32(*x));
            }
            Elem::BF16 => {
                let to = std::slice::from_raw_parts_mut(at as *mut bf16, values.len());
                to.iter_mut().zip(values).for_each(|(to, x)| *to = bf16::from_f32(*x));
            }
            other => return Err(Error::Unsupported(format!("a product of {other:?}"))),
        }
    }
    Ok(())
}
