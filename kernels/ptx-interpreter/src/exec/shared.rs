//! The state that the warps of a block share.

use std::collections::VecDeque;

use super::in_flight::EngineCopy;
use super::mbarrier::Mbarriers;
use super::named_barrier::NamedBarrier;
use super::warpgroup::Warpgroups;
use crate::instruction::Kernel;
use crate::launch::Launch;
use crate::memory::SharedMemory;

/// The state that all warps of a block share.
pub(super) struct Shared<'a> {
    pub(super) kernel: &'a Kernel,
    pub(super) launch: &'a Launch,
    pub(super) at: [u32; 3],
    pub(super) memory: SharedMemory,
    pub(super) barriers: [NamedBarrier; 16],
    pub(super) mbarriers: Mbarriers,
    pub(super) engine_copies: VecDeque<EngineCopy>,
    pub(super) warpgroups: Warpgroups,
    /// Counts what may let another warp go on.
    pub(super) effects: u64,
    /// Warps that have not ended, as bits.
    pub(super) live_warps: u32,
    /// The time that the clock shows.
    pub(super) nanoseconds: u64,
}

impl<'a> Shared<'a> {
    /// The state of the block at a position of the grid, with this many warps, before they run.
    pub(super) fn new(kernel: &'a Kernel, launch: &'a Launch, at: [u32; 3], warps: u32) -> Shared<'a> {
        Shared {
            kernel,
            launch,
            at,
            memory: SharedMemory::new(kernel.shared_bytes + launch.shared_bytes, warps as usize),
            barriers: std::array::from_fn(|_| NamedBarrier::default()),
            mbarriers: Mbarriers::default(),
            engine_copies: VecDeque::new(),
            warpgroups: Warpgroups::new(warps as usize),
            effects: 0,
            live_warps: u32::MAX >> (32 - warps),
            nanoseconds: 0,
        }
    }
}
