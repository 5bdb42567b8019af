//! The simulated device itself, by small kernels (`cuda/sim/sim_tests.cu`) whose results the manual of CUDA tells.

mod ahead;
mod memory;
mod schedule;
mod streams;
mod tensor;
mod warp;

use std::sync::Arc;

use millrace_kernels::Result;
use millrace_kernels::cuda::{
    Arg, Args, Device, Driver, Elem, Function, Grid, Memory, Order, Simulated, View,
};

/// A simulated device of one order of threads.
pub(crate) struct Sim {
    pub(crate) order: Order,
    driver: Arc<Simulated>,
    pub(crate) device: Device,
}

impl Sim {
    pub(crate) fn new(order: Order) -> Sim {
        let driver = Arc::new(Simulated::with_order(order).unwrap());
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

    pub(crate) fn run(&self, name: &'static str, grid: Grid, args: &[Arg]) -> Result<()> {
        // SAFETY: the tests give every kernel as much memory as it uses, or mean not to.
        unsafe { self.driver.launch(Function { module: "sim_tests", name }, grid, args) }
    }

    /// What a launch that must not succeed says.
    pub(crate) fn refusal(&self, name: &'static str, grid: Grid, args: &[Arg]) -> String {
        self.run(name, grid, args).expect_err("the launch must be refused").to_string()
    }
}

/// All elements of the memory.
pub(crate) fn all(memory: &Memory) -> View<'_> {
    memory.view(Elem::U32)
}

/// One block of `threads` threads.
pub(crate) fn block(threads: u32) -> Grid {
    Grid::flat(1, threads)
}

/// Runs `test` in each order of threads.
pub(crate) fn in_all_orders(test: impl Fn(&Sim)) {
    for order in Order::ALL {
        test(&Sim::new(order));
    }
}

pub(crate) fn args() -> Args {
    Args::new()
}
