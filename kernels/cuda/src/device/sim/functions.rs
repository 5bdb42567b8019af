//! The kernels on a simulated device as a driver knows them: their registers, their shared memory,
//! and how much launches may ask for. A launch that a GPU's driver would refuse is refused here.

use std::cell::Cell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{LazyLock, Mutex, PoisonError};

use millrace_backend::{Error, Result};

use super::gpu_model::GpuModel;
use crate::device::driver::{DEFAULT_SHARED, Grid, KernelName, SharedAllowance, SharedAttributes};

/// Registers of a multiprocessor, and the most of a block.
const REGISTERS: usize = 64 << 10;
/// Registers of a thread are allocated in multiples of this number, and threads in warps.
const REGISTER_UNIT: usize = 8;
const WARP: usize = 32;

/// Registers and shared memory of a kernel, as nvcc compiles it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct KernelResources {
    /// Bytes of static shared memory.
    static_shared: usize,
    /// Registers per thread in code for compute capability 8.0, and for 9.0.
    registers: [usize; 2],
}

/// The resources of every kernel, which `cargo xtask cuda` compares with the machine code.
static RESOURCES: LazyLock<HashMap<&str, KernelResources>> =
    LazyLock::new(|| parse(include_str!("../../../resources.txt")));

/// Parses the table: a kernel's name, its bytes of static shared memory, and its registers in each
/// column. `-` stands for an architecture that the kernel does not exist for.
fn parse(table: &str) -> HashMap<&str, KernelResources> {
    let lines = table.lines().filter(|line| !line.starts_with('#'));
    lines
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let name = words.next()?;
            let mut number = || words.next().and_then(|word| word.parse().ok());
            let static_shared = number()?;
            let registers = [number().unwrap_or(0), number().unwrap_or(0)];
            Some((name, KernelResources { static_shared, registers }))
        })
        .collect()
}

/// The resources of a kernel, or `None` for a kernel that the table does not have yet.
fn resources_of(name: &str) -> Option<KernelResources> {
    RESOURCES.get(name).copied()
}

/// A kernel as the simulated driver has it.
#[derive(Debug)]
struct SimulatedFunction {
    name: KernelName,
    resources: KernelResources,
    /// The most dynamic and static shared memory of a block.
    most_shared: usize,
    /// The function attribute `MAX_DYNAMIC_SHARED_SIZE_BYTES`.
    allowed: Cell<usize>,
}

impl SharedAttributes for SimulatedFunction {
    fn static_shared(&self) -> Result<usize> {
        Ok(self.resources.static_shared)
    }

    fn allow_dynamic_shared(&self, bytes: usize) -> Result<()> {
        if self.resources.static_shared + bytes > self.most_shared {
            return Err(Error::Device(format!(
                "{bytes} bytes of shared memory for {}: more shared memory than a block can have \
                 (CUDA_ERROR_INVALID_VALUE, simulated)",
                self.name.name
            )));
        }
        self.allowed.set(bytes);
        Ok(())
    }
}

impl SimulatedFunction {
    fn new(model: GpuModel, name: KernelName, resources: KernelResources) -> SimulatedFunction {
        SimulatedFunction {
            name,
            resources,
            most_shared: model.shared_per_block,
            allowed: Cell::new(DEFAULT_SHARED.saturating_sub(resources.static_shared)),
        }
    }

    /// Refuses what a GPU's driver refuses when a kernel is launched.
    fn check(&self, model: GpuModel, grid: Grid) -> Result<()> {
        if grid.shared > self.allowed.get() {
            return Err(Error::Device(format!(
                "launch of {}: invalid argument (CUDA_ERROR_INVALID_VALUE, simulated): {} bytes of dynamic \
                 shared memory, of which {} were allowed",
                self.name.name,
                grid.shared,
                self.allowed.get()
            )));
        }
        let registers = self.resources.registers[usize::from(model.capability.0 > 8)];
        let threads = grid.threads.iter().map(|&n| n as usize).product::<usize>().next_multiple_of(WARP);
        if registers.next_multiple_of(REGISTER_UNIT) * threads > REGISTERS {
            return Err(Error::Device(format!(
                "launch of {}: too many resources requested for launch (CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, \
                 simulated): {threads} threads of {registers} registers",
                self.name.name
            )));
        }
        Ok(())
    }
}

/// The kernels of one simulated device that were launched so far.
#[derive(Debug)]
pub(super) struct Functions {
    pub(super) model: GpuModel,
    loaded: Mutex<HashMap<KernelName, (SimulatedFunction, SharedAllowance)>>,
}

impl Functions {
    /// No kernels yet.
    pub(super) fn new(model: GpuModel) -> Functions {
        Functions { model, loaded: Mutex::default() }
    }

    /// Loads a kernel, allows it the shared memory of this launch as the host code of a GPU does,
    /// and checks the launch as a GPU's driver does.
    ///
    /// # Errors
    /// [`Error::Device`] if a GPU of this kind would refuse the launch.
    pub(super) fn admit(&self, name: KernelName, grid: Grid) -> Result<()> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let (function, allowance) = match loaded.entry(name) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                let resources = resources_of(name.name).unwrap_or_default();
                let function = SimulatedFunction::new(self.model, name, resources);
                let allowance = SharedAllowance::of(&function)?;
                entry.insert((function, allowance))
            }
        };
        allowance.raise_to(grid.shared, function)?;
        function.check(self.model, grid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: KernelName = KernelName { module: "gemv", name: "gemv16_bf16" };

    fn function(gpu: &str, resources: KernelResources) -> (SimulatedFunction, GpuModel) {
        let model = GpuModel::named(gpu).unwrap();
        (SimulatedFunction::new(model, NAME, resources), model)
    }

    #[test]
    fn the_table_is_read() {
        let table = parse("# kernel\nnorm_f32 64 32 40\nprefill_hopper_64_f16 0 - 168\n");
        assert_eq!(table["norm_f32"], KernelResources { static_shared: 64, registers: [32, 40] });
        assert_eq!(table["prefill_hopper_64_f16"].registers, [0, 168]);
    }

    /// The kernel for few rows has static shared memory, so that 48 KiB of dynamic shared memory
    /// are more than it may have without asking.
    #[test]
    fn a_launch_beyond_the_default_must_be_allowed() {
        let resources = resources_of(NAME.name).unwrap();
        assert!(resources.static_shared > 0);
        let (function, model) = function("l40s", resources);
        let grid = Grid::flat(1, 256).with_shared(48 << 10);
        let said = function.check(model, grid).unwrap_err().to_string();
        assert!(said.contains("invalid argument") && said.contains("49152 bytes"), "{said}");
        Functions::new(model).admit(NAME, grid).unwrap();
    }

    #[test]
    fn blocks_have_the_shared_memory_of_their_gpu() {
        let grid = Grid::flat(1, 256).with_shared(100 << 10);
        let admit = |gpu: &str| Functions::new(GpuModel::named(gpu).unwrap()).admit(NAME, grid);
        admit("a100").unwrap();
        let said = admit("l40s").unwrap_err().to_string();
        assert!(said.contains("more shared memory than a block can have"), "{said}");
    }

    #[test]
    fn threads_share_the_registers_of_a_multiprocessor() {
        let resources = KernelResources { static_shared: 0, registers: [65, 64] };
        let grid = Grid::flat(1, 1000);
        let (on_ampere, ampere) = function("a100", resources);
        let said = on_ampere.check(ampere, grid).unwrap_err().to_string();
        assert!(said.contains("too many resources") && said.contains("1024 threads of 65"), "{said}");
        let (on_hopper, hopper) = function("h100", resources);
        on_hopper.check(hopper, grid).unwrap();
    }
}
