//! The warps of a block and their turns.

use super::engine;
use super::in_flight::Issued;
use super::named_barrier::NamedBarrier;
use super::shared::Shared;
use super::warp::Warp;
use crate::error::Trap;
use crate::instruction::Kernel;
use crate::launch::{Launch, Stats, WarpOrder};
use crate::{DeviceMemory, Fault};

/// Rounds without effect after which lanes of a warp that wait at different places have all had
/// their turn.
const STUCK_ROUNDS: u32 = 3;
/// Rounds without effect, and without a copy that could arrive, after which a block is given up.
const MAX_STUCK_ROUNDS: u32 = 512;
/// Rounds after which a copy arrives although warps go on: they may ask for it again and again.
const MAX_ROUNDS_OF_COPY: u32 = 1024;

pub(super) struct Block<'a> {
    shared: Shared<'a>,
    warps: Vec<Warp>,
    /// Rounds without effect.
    stuck: u32,
    /// Rounds since the last copy arrived.
    rounds_of_copy: u32,
}

impl std::fmt::Debug for Block<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "block {:?} of {}", self.shared.at, self.shared.kernel.name)
    }
}

impl<'a> Block<'a> {
    pub(super) fn new(kernel: &'a Kernel, launch: &'a Launch, at: [u32; 3]) -> Block<'a> {
        let threads: u32 = launch.threads.iter().product();
        let count = threads.div_ceil(32);
        let warps = (0..count).map(|index| {
            let lanes = (threads - index * 32).min(32);
            Warp::new(index, u32::MAX >> (32 - lanes), kernel)
        });
        let shared = Shared::new(kernel, launch, at, count);
        Block { shared, warps: warps.collect(), stuck: 0, rounds_of_copy: 0 }
    }

    /// Gives each warp a turn. Returns whether the block has ended.
    pub(super) fn advance(&mut self, memory: &mut DeviceMemory, stats: &mut Stats) -> Result<bool, Fault> {
        let before = (stats.steps, self.shared.effects);
        self.round(memory, stats)?;
        if self.shared.live_warps == 0 {
            return self.check_end().map(|()| true);
        }
        self.stuck = if self.shared.effects == before.1 { self.stuck + 1 } else { 0 };
        self.rounds_of_copy += 1;
        let has_copies = !self.shared.engine_copies.is_empty();
        if has_copies && (self.stuck >= STUCK_ROUNDS || self.rounds_of_copy >= MAX_ROUNDS_OF_COPY) {
            let arrived = engine::arrive_one(&mut self.shared, memory);
            arrived.map_err(|(issued, trap)| self.fault_at(issued, trap))?;
            (self.stuck, self.rounds_of_copy) = (0, 0);
        } else if !has_copies && (stats.steps == before.0 || self.stuck >= MAX_STUCK_ROUNDS) {
            return Err(self.deadlock());
        }
        Ok(false)
    }

    /// Gives each warp a turn.
    fn round(&mut self, memory: &mut DeviceMemory, stats: &mut Stats) -> Result<(), Fault> {
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
        Ok(())
    }

    /// Checks that nothing is left behind.
    fn check_end(&self) -> Result<(), Fault> {
        if let Some(copy) = self.shared.engine_copies.front() {
            let trap = Trap::new("the block ends while this copy is in flight");
            return Err(self.fault_at(copy.issued, trap));
        }
        if let Some(instruction) = self.shared.warpgroups.unfinished() {
            let trap = Trap::new("not all warps of the warpgroup have executed this instruction");
            return Err(self.fault_at(Issued { warp: 0, lane: 0, instruction }, trap));
        }
        let last = self.warps.last().expect("a block has a warp");
        self.shared.mbarriers.check_end().map_err(|trap| fault(&self.shared, last, trap))
    }

    /// Lets the warps of complete barriers go on.
    fn complete_barriers(&mut self) {
        for (id, barrier) in self.shared.barriers.iter_mut().enumerate() {
            if barrier.is_complete(self.shared.live_warps) {
                for warp in &mut self.warps {
                    warp.pass_barrier(id, barrier);
                }
                *barrier = NamedBarrier::default();
                self.shared.effects += 1;
            }
        }
    }

    fn deadlock(&self) -> Fault {
        let waiting = self.warps.iter().find(|warp| warp.is_live()).expect("a warp is live");
        let message = match (waiting.barrier, waiting.waits_for) {
            (Some(id), _) => {
                let arrived = self.shared.barriers[id].arrived.count_ones();
                format!("deadlock: barrier {id} waits, {arrived} warps have arrived")
            }
            (None, Some(at)) => match self.shared.mbarriers.find(at) {
                Ok(barrier) => format!("deadlock: the mbarrier at {at:#x}, {barrier}"),
                Err(trap) => trap.message,
            },
            (None, None) if waiting.waits_for_registers => {
                "deadlock: setmaxnreg waits for registers that nobody gives".to_owned()
            }
            (None, None) => "deadlock: lanes wait for lanes that never come".to_owned(),
        };
        fault(&self.shared, waiting, Trap::new(message))
    }
}

impl Block<'_> {
    /// A fault of an instruction that was executed before.
    fn fault_at(&self, at: Issued, trap: Trap) -> Fault {
        Fault {
            kernel: self.shared.kernel.name.clone(),
            block: Some(self.shared.at),
            thread: Some(at.warp * 32 + at.lane),
            line: self.shared.kernel.instructions.get(at.instruction).map(|i| i.line),
            message: trap.message,
        }
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
