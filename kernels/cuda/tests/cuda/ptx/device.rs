//! The device.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use millrace_backend::{Error, Result};
use millrace_cuda::params::LaunchParams;
use millrace_cuda::{
    DeviceStream, Driver, Elem, Gemm, Grid, KernelName, MatrixLibrary, PeerMemory, Properties, TensorLayout,
    TensorMap,
};
use millrace_ptx_interpreter::{
    DeviceMemory, Fill, Launch, MemoryError, Swizzle, TensorElement, TensorMapLayout,
};

use super::modules::Modules;
use super::pinned;
use super::product;
use super::recording::{Freed, Operation, Streams};

/// The time after which other threads get the memory.
const TURN: Duration = Duration::from_millis(1);
/// The pause between two looks whether other threads have had the memory.
const POLL_INTERVAL: Duration = Duration::from_micros(50);
/// Bytes of device memory.
const MEMORY: usize = 2 << 30;

/// The memory of all devices, as if they were GPUs that can access each other's.
static DEVICE_MEMORY: LazyLock<Mutex<DeviceMemory>> = LazyLock::new(|| Mutex::new(DeviceMemory::new(MEMORY)));

/// The number of threads that wait for [`DEVICE_MEMORY`].
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// The device.
pub(crate) struct PtxDevice {
    modules: Modules,
    /// Bytes of shared memory that a block can use.
    shared_per_block: usize,
    pub(super) streams: Mutex<Streams>,
}

impl std::fmt::Debug for PtxDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PtxDevice({:?})", self.modules)
    }
}

fn memory() -> MutexGuard<'static, DeviceMemory> {
    WAITING.fetch_add(1, Ordering::Relaxed);
    let memory = DEVICE_MEMORY.lock().unwrap_or_else(PoisonError::into_inner);
    WAITING.fetch_sub(1, Ordering::Relaxed);
    memory
}

fn out_of_range(error: MemoryError) -> Error {
    Error::Device(error.to_string())
}

impl PtxDevice {
    /// The device that the environment describes.
    pub(crate) fn from_environment() -> PtxDevice {
        let modules = Modules::from_environment();
        let shared_per_block = if modules.capability.0 == 9 { 227 << 10 } else { 163 << 10 };
        PtxDevice { modules, shared_per_block, streams: Mutex::default() }
    }

    /// The same device with another limit of shared memory.
    pub(crate) fn with_shared_per_block(self, shared_per_block: usize) -> PtxDevice {
        PtxDevice { shared_per_block, ..self }
    }

    pub(super) fn streams(&self) -> MutexGuard<'_, Streams> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the operation or executes it.
    pub(super) fn submit(&self, stream: DeviceStream, operation: Operation) -> Result<()> {
        if stream == DeviceStream::Main && self.streams().record(&operation)? {
            return Ok(());
        }
        self.execute(&operation)
    }

    /// Executes an operation. Its failure is that of all later calls.
    pub(super) fn execute(&self, operation: &Operation) -> Result<()> {
        let done = match operation {
            Operation::Launch { name, grid, params } => self.run(*name, *grid, params),
            Operation::Product(product) => product::multiply(product, &mut memory()),
            Operation::Fill { at, value, bytes } => {
                memory().write(*at, &vec![*value; *bytes]).map_err(out_of_range)
            }
            Operation::Copy { from, to, bytes } => {
                let mut copy = vec![0; *bytes];
                let mut memory = memory();
                memory.read(*from, &mut copy).and_then(|()| memory.write(*to, &copy)).map_err(out_of_range)
            }
            // SAFETY: whoever submitted the copy guarantees the pinned range, here and below.
            Operation::Upload { from, to, bytes } => unsafe {
                memory().write(*to, pinned::bytes(*from, *bytes)).map_err(out_of_range)
            },
            // SAFETY: as above.
            Operation::Download { from, to, bytes } => unsafe {
                memory().read(*from, pinned::bytes(*to, *bytes)).map_err(out_of_range)
            },
            Operation::Library(call) => call(0),
        };
        if let Err(error) = &done {
            self.streams().failure.get_or_insert_with(|| error.to_string());
        }
        done
    }

    fn run(&self, name: KernelName, grid: Grid, params: &[u8]) -> Result<()> {
        if grid.shared > self.shared_per_block {
            let (asked, most) = (grid.shared, self.shared_per_block);
            let name = name.name;
            return Err(Error::Device(format!("{name}: {asked} bytes of shared memory, of at most {most}")));
        }
        let module = self.modules.find(name.module)?;
        let launch = Launch::new(grid.blocks, grid.threads)
            .with_shared(grid.shared)
            .with_params(params)
            .with_order(self.modules.order)
            .with_arrival(self.modules.arrival);
        // On Hopper any launch may begin before the previous kernel has ended.
        let launch = if self.modules.capability >= (9, 0) { launch.as_dependent() } else { launch };
        let failed =
            |fault: millrace_ptx_interpreter::Fault| Error::Device(format!("{}: {fault}", name.module));
        let mut grid = module.begin(name.name, &launch).map_err(failed)?;
        // Kernels of several devices may wait for each other. A mutex is not fair: a thread that
        // unlocks it mostly locks it again before a thread that waits for it has woken up.
        let mut began = Instant::now();
        while !grid.advance(&mut memory()).map_err(failed)? {
            if began.elapsed() > TURN {
                while WAITING.load(Ordering::Relaxed) > 0 {
                    std::thread::sleep(POLL_INTERVAL);
                }
                began = Instant::now();
            }
        }
        self.modules.note(name.name);
        Ok(())
    }

    pub(super) fn free_all(&self, freed: Vec<Freed>) {
        for freed in freed {
            match freed {
                // Memory of another device is not freed twice.
                Freed::Device(at) => memory().free(at).expect("the memory was allocated"),
                Freed::Pinned(at) => self.streams().pinned.free(at),
            }
        }
    }
}

impl Driver for PtxDevice {
    fn name(&self) -> String {
        let (major, minor) = self.modules.capability;
        format!("PTX interpreter (sm_{major}{minor}, {:?}, {:?})", self.modules.order, self.modules.arrival)
    }

    /// Few multiprocessors, so that small tests need several waves of blocks.
    fn properties(&self) -> Properties {
        let capability = self.modules.capability;
        Properties {
            capability,
            runs_hopper_kernels: capability == (9, 0),
            multiprocessors: 6,
            shared_per_block: self.shared_per_block,
            l2_bytes: 1 << 20,
        }
    }

    fn allocate(&self, bytes: usize) -> Result<u64> {
        self.streams().forbid("an allocation")?;
        memory().allocate(bytes).map_err(|_| Error::OutOfMemory { what: "the PTX interpreter", bytes })
    }

    unsafe fn free(&self, at: u64) {
        let freed = self.streams().free(Freed::Device(at));
        self.free_all(freed);
    }

    unsafe fn upload(&self, to: u64, from: &[u8]) -> Result<()> {
        self.streams().forbid("a copy of memory that is not pinned")?;
        memory().write(to, from).map_err(out_of_range)
    }

    unsafe fn download(&self, from: u64, to: &mut [u8]) -> Result<()> {
        self.streams().forbid("a copy that waits")?;
        memory().read(from, to).map_err(out_of_range)
    }

    unsafe fn fill(&self, at: u64, value: u8, bytes: usize) -> Result<()> {
        self.submit(DeviceStream::Main, Operation::Fill { at, value, bytes })
    }

    unsafe fn copy(&self, from: u64, to: u64, bytes: usize) -> Result<()> {
        self.submit(DeviceStream::Main, Operation::Copy { from, to, bytes })
    }

    unsafe fn launch(&self, name: KernelName, grid: Grid, params: LaunchParams<'_>) -> Result<()> {
        let mut bytes = vec![0u8; params.layout().bytes];
        // SAFETY: the parameters are valid for as many bytes as their layout says. Padding between
        // fields is not initialized; the compiler must not know what it is, hence the black box.
        unsafe { std::ptr::copy_nonoverlapping(params.as_ptr().cast(), bytes.as_mut_ptr(), bytes.len()) };
        let params = std::hint::black_box(bytes);
        self.submit(DeviceStream::Main, Operation::Launch { name, grid, params })
    }

    fn tensor_map(&self, layout: &TensorLayout<'_>) -> Result<TensorMap> {
        if self.modules.capability < (9, 0) {
            return Err(Error::Unsupported(format!("{} has no tensor copies", self.name())));
        }
        let element = match layout.elem {
            Elem::F16 => TensorElement::F16,
            Elem::BF16 => TensorElement::BF16,
            other => return Err(Error::Unsupported(format!("tensor copies of {other:?}"))),
        };
        let map = TensorMapLayout {
            address: layout.at,
            element,
            sizes: layout.sizes,
            strides: layout.strides,
            extents: layout.tile,
            swizzle: Swizzle::Bytes128,
            fill: Fill::Zeros,
        };
        let bytes = map.encode().map_err(|e| Error::Shape(e.to_string()))?;
        let mut words = [0; 16];
        for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_ne_bytes(bytes.try_into().expect("eight bytes"));
        }
        Ok(TensorMap::from_words(words))
    }

    fn memory_bytes(&self) -> Option<(usize, usize)> {
        None
    }

    fn synchronize(&self) -> Result<()> {
        self.streams().forbid("a wait")
    }

    fn time(&self, work: &mut dyn FnMut() -> Result<()>) -> Result<f64> {
        self.synchronize()?;
        let start = Instant::now();
        work()?;
        Ok(start.elapsed().as_secs_f64())
    }
}

impl MatrixLibrary for PtxDevice {
    unsafe fn gemm(&self, product: &Gemm) -> Result<()> {
        self.submit(DeviceStream::Main, Operation::Product(*product))
    }
}

impl PeerMemory for PtxDevice {}
