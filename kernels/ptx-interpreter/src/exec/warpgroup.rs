//! Warpgroups: the instructions that their four warps must execute alike, and the registers that
//! they give and take.

use std::collections::VecDeque;

use crate::error::Trap;

/// Warps of a group.
const WARPS: usize = 4;
/// Registers of a multiprocessor.
const ALL_REGISTERS: u32 = 1 << 16;
/// The most registers of a thread at launch.
const MOST_REGISTERS: u32 = 248;

/// An instruction of a group with its operands.
type Step = (usize, [u64; 2]);

/// The instructions that the warps of one group execute together, in their order.
#[derive(Debug, Default)]
struct Group {
    /// The steps that some warp has not executed yet.
    open: VecDeque<Step>,
    /// Steps before them.
    done: u64,
    by_warp: [u64; WARPS],
}

/// All groups of a block.
#[derive(Debug)]
pub(super) struct Warpgroups {
    groups: Vec<Group>,
    warps: usize,
    /// Registers that nobody owns.
    pub(super) free: u32,
    pub(super) owned: Vec<u32>,
}

impl Warpgroups {
    pub(super) fn new(warps: usize) -> Warpgroups {
        let threads = warps as u32 * 32;
        let each = (ALL_REGISTERS / threads).min(MOST_REGISTERS) / 8 * 8;
        Warpgroups {
            groups: (0..warps.div_ceil(WARPS)).map(|_| Group::default()).collect(),
            warps,
            free: 0,
            owned: vec![each; warps],
        }
    }

    /// Notes that a warp executes an instruction of its group. All warps of a group must execute
    /// the same instructions with the same operands.
    pub(super) fn join(&mut self, warp: u32, instruction: usize, operands: [u64; 2]) -> Result<(), Trap> {
        let (index, in_group) = (warp as usize / WARPS, warp as usize % WARPS);
        if (index + 1) * WARPS > self.warps {
            return Err(Trap::new("an instruction of a warpgroup in less than four warps"));
        }
        let group = &mut self.groups[index];
        let at = (group.by_warp[in_group] - group.done) as usize;
        group.by_warp[in_group] += 1;
        let step = (instruction, operands);
        match group.open.get(at) {
            None => group.open.push_back(step),
            Some(first) if first.0 != instruction => {
                return Err(Trap::new("the warps of a warpgroup execute different instructions"));
            }
            Some(first) if *first != step => {
                return Err(Trap::new("the warps of a warpgroup give different descriptors"));
            }
            Some(_) => {}
        }
        while group.by_warp.iter().all(|count| *count > group.done) {
            group.open.pop_front();
            group.done += 1;
        }
        Ok(())
    }

    /// The first instruction that not all warps of a group have executed, if there is one.
    pub(super) fn unfinished(&self) -> Option<usize> {
        self.groups.iter().find_map(|group| group.open.front()).map(|(instruction, _)| *instruction)
    }
}
