//! The warps of a block and their turns.

use super::meeting::NamedBarrier;
use super::warp::Warp;
use super::{Launch, Stats, WarpOrder};
use crate::error::Trap;
use crate::kernel::Kernel;
use crate::memory::SharedMemory;
use crate::{DeviceMemory, Fault};

/// The things that all warps of a block share.
pub(super) struct Shared<'a> {
    pub(super) kernel: &'a Kernel,
    pub(super) launch: &'a Launch,
    pub(super) at: [u32; 3],
    pub(super) memory: SharedMemory,
    pub(super) barriers: [NamedBarrier; 16],
    /// Warps that have not ended, as bits.
    pub(super) live_warps: u32,
    /// The time that the clock shows.
    pub(super) nanoseconds: u64,
}

pub(super) struct Block<'a> {
    shared: Shared<'a>,
    warps: Vec<Warp>,
}

impl<'a> Block<'a> {
    pub(super) fn new(
        kernel: &'a Kernel,
        launch: &'a Launch,
        at: [u32; 3],
        memory: SharedMemory,
    ) -> Block<'a> {
        let threads: u32 = launch.threads.iter().product();
        let count = threads.div_ceil(32);
        let warps = (0..count).map(|index| {
            let lanes = (threads - index * 32).min(32);
            Warp::new(index, u32::MAX >> (32 - lanes), kernel.registers)
        });
        let live_warps = u32::MAX >> (32 - count);
        let barriers = std::array::from_fn(|_| NamedBarrier::default());
        let shared = Shared { kernel, launch, at, memory, barriers, live_warps, nanoseconds: 0 };
        Block { shared, warps: warps.collect() }
    }

    pub(super) fn run(mut self, memory: &mut DeviceMemory, stats: &mut Stats) -> Result<(), Fault> {
        loop {
            let before = stats.steps;
            for turn in 0..self.warps.len() {
                let index = match self.shared.launch.order {
                    WarpOrder::Forward => turn,
                    WarpOrder::Reverse => self.warps.len() - 1 - turn,
                };
                let warp = &mut self.warps[index];
                let result = warp.run(&mut self.shared, memory, stats);
                result.map_err(|trap| fault(&self.shared, &self.warps[index], trap))?;
                self.complete_barriers();
            }
            if self.shared.live_warps == 0 {
                return Ok(());
            }
            if stats.steps == before {
                return Err(self.deadlock());
            }
        }
    }

    /// Lets the warps of complete barriers go on.
    fn complete_barriers(&mut self) {
        for (id, barrier) in self.shared.barriers.iter_mut().enumerate() {
            if barrier.is_complete(self.shared.live_warps) {
                for warp in &mut self.warps {
                    warp.pass_barrier(id, barrier);
                }
                *barrier = NamedBarrier::default();
            }
        }
    }

    fn deadlock(&self) -> Fault {
        let waiting = self.warps.iter().find(|warp| warp.is_live()).expect("a warp is live");
        let message = match waiting.barrier {
            Some(id) => {
                let arrived = self.shared.barriers[id].arrived.count_ones();
                format!("deadlock: barrier {id} waits, {arrived} warps have arrived")
            }
            None => "deadlock: lanes wait for lanes that never come".to_owned(),
        };
        fault(&self.shared, waiting, Trap::new(message))
    }
}

fn fault(shared: &Shared<'_>, warp: &Warp, trap: Trap) -> Fault {
    let lane = trap.lane.unwrap_or_else(|| warp.current_lane());
    let line = shared.kernel.instructions.get(warp.current_instruction()).map(|i| i.line);
    Fault {
        kernel: shared.kernel.name.clone(),
        block: Some(shared.at),
        thread: Some(warp.index * 32 + lane),
        line,
        message: trap.message,
    }
}
