//! Runs grids.

mod access;
pub(crate) mod alu;
mod block;
mod convert;
mod copies;
mod descriptor;
mod engine;
mod hopper;
mod in_flight;
mod matrix;
mod mbarrier;
mod mbarrier_instructions;
mod meeting;
mod named_barrier;
mod products;
mod shared;
mod warp;
mod warpgroup;
mod wgmma;

use crate::error::Trap;
use crate::instruction::Kernel;
use crate::launch::{Launch, Stats};
use crate::{DeviceMemory, Fault};
use block::Block;

/// The most bytes of shared memory of a block: what Hopper has.
const MAX_SHARED: usize = 227 * 1024;
/// The most threads of a block.
const MAX_THREADS: u32 = 1024;

/// A grid that is being executed, one block after the other. Several grids on the same memory may
/// take turns, as those of several GPUs do that wait for each other.
#[derive(Debug)]
pub struct Grid<'a> {
    kernel: &'a Kernel,
    launch: &'a Launch,
    block: Option<Block<'a>>,
    /// Blocks that have begun.
    begun: u64,
    stats: Stats,
}

impl<'a> Grid<'a> {
    pub(crate) fn new(kernel: &'a Kernel, launch: &'a Launch) -> Result<Grid<'a>, Fault> {
        let refuse = |trap: Trap| Fault {
            kernel: kernel.name.clone(),
            block: None,
            thread: None,
            line: None,
            message: trap.message,
        };
        check(kernel, launch).map_err(refuse)?;
        Ok(Grid { kernel, launch, block: None, begun: 0, stats: Stats::default() })
    }

    /// Gives each warp of the current block a turn. Returns whether the grid has ended.
    ///
    /// # Errors
    /// The first operation that PTX leaves undefined. The grid must not be advanced after it.
    pub fn advance(&mut self, memory: &mut DeviceMemory) -> Result<bool, Fault> {
        let mut block = match self.block.take() {
            Some(block) => block,
            None => {
                let [x, y, z] = self.launch.blocks.map(u64::from);
                if self.begun == x * y * z {
                    return Ok(true);
                }
                let at = [self.begun % x, self.begun / x % y, self.begun / x / y].map(|i| i as u32);
                self.begun += 1;
                Block::new(self.kernel, self.launch, at)
            }
        };
        if !block.advance(memory, &mut self.stats)? {
            self.block = Some(block);
        }
        Ok(false)
    }

    /// Counts of what the grid has done so far.
    pub fn stats(&self) -> Stats {
        self.stats
    }
}

fn check(kernel: &Kernel, launch: &Launch) -> Result<(), Trap> {
    if launch.blocks.contains(&0) || launch.threads.contains(&0) {
        return Err(Trap::new("a launch needs blocks and threads"));
    }
    let threads = launch.threads.iter().try_fold(1u32, |all, n| all.checked_mul(*n));
    if threads.is_none_or(|threads| threads > MAX_THREADS) {
        return Err(Trap::new(format!("more than {MAX_THREADS} threads in a block: {:?}", launch.threads)));
    }
    if let Some(most) = kernel.max_threads {
        let most = most.iter().map(|n| u64::from(*n)).product::<u64>();
        if threads.is_some_and(|threads| u64::from(threads) > most) {
            return Err(Trap::new(format!("more threads than the {most} of .maxntid: {:?}", launch.threads)));
        }
    }
    let shared = kernel.shared_bytes.checked_add(launch.shared_bytes);
    if shared.is_none_or(|bytes| bytes > MAX_SHARED) {
        let (fixed, dynamic) = (kernel.shared_bytes, launch.shared_bytes);
        return Err(Trap::new(format!("{fixed} + {dynamic} bytes of shared memory exceed {MAX_SHARED}")));
    }
    if launch.params.len() != kernel.param_bytes {
        let (given, needed) = (launch.params.len(), kernel.param_bytes);
        return Err(Trap::new(format!("{given} bytes of parameters were given, the kernel takes {needed}")));
    }
    if launch.is_dependent && !kernel.waits_for_grid {
        return Err(Trap::new("the kernel does not wait for the previous grid"));
    }
    Ok(())
}
