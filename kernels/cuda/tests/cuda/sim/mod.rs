//! The simulated device itself, by small kernels (`kernels/sim/sim_tests.cu`) whose results follow
//! from the manual of CUDA.

mod ahead;
mod memory;
mod schedule;
mod shared;
mod streams;
mod tensor;
mod warp;

use std::sync::Arc;

use millrace_backend::Result;
use millrace_cuda::params::{DevicePtr, KernelParams, LaunchParams};
use millrace_cuda::{Device, Driver, Elem, FiberSchedule, Grid, KernelName, Memory, Simulated, View};

use shared::sim_tests::{CaseParams, OutputParams};

/// A simulated device of one order of threads.
pub(crate) struct Sim {
    pub(crate) order: FiberSchedule,
    driver: Arc<Simulated>,
    pub(crate) device: Device,
}

impl Sim {
    pub(crate) fn new(order: FiberSchedule) -> Sim {
        let driver = Arc::new(Simulated::with_schedule(order).unwrap());
        Sim { order, device: Device::new(driver.clone()), driver }
    }

    /// `len` words of ones.
    pub(crate) fn words(&self, len: usize) -> Memory {
        self.put(&vec![u32::MAX; len])
    }

    pub(crate) fn put(&self, words: &[u32]) -> Memory {
        self.device.upload(&words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>()).unwrap()
    }

    pub(crate) fn get(&self, memory: &Memory) -> Vec<u32> {
        let bytes = self.device.read(memory.view(Elem::U8)).unwrap();
        bytes.chunks_exact(4).map(|b| u32::from_le_bytes(b.try_into().unwrap())).collect()
    }

    /// Runs a kernel with parameters that it need not take.
    pub(crate) fn run<P: KernelParams>(&self, name: &'static str, grid: Grid, params: &P) -> Result<()> {
        let function = KernelName { module: "sim_tests", name };
        // SAFETY: the tests give every kernel as much memory as it uses, or mean not to.
        unsafe { self.driver.launch(function, grid, LaunchParams::from(params)) }
    }

    /// The error of a launch that must not succeed.
    pub(crate) fn refusal<P: KernelParams>(&self, name: &'static str, grid: Grid, params: &P) -> String {
        self.run(name, grid, params).expect_err("the launch must be refused").to_string()
    }
}

/// The memory as words.
pub(crate) fn all(memory: &Memory) -> View<'_> {
    memory.view(Elem::U32)
}

/// The address of the memory.
pub(crate) fn at(memory: &Memory) -> DevicePtr {
    all(memory).into()
}

/// The parameters of a kernel that only writes.
pub(crate) fn output(memory: &Memory) -> OutputParams {
    OutputParams { out: at(memory) }
}

/// The parameters of a kernel that tries one of several cases.
pub(crate) fn case(memory: &Memory, which: usize) -> CaseParams {
    CaseParams { out: at(memory), which: which as i32 }
}

/// One block of `threads` threads.
pub(crate) fn block(threads: u32) -> Grid {
    Grid::flat(1, threads)
}

/// Runs `test` in each order of threads.
pub(crate) fn in_all_orders(test: impl Fn(&Sim)) {
    for order in FiberSchedule::ALL {
        test(&Sim::new(order));
    }
}
