//! Named barriers, at which the warps of a block meet.

use crate::error::Trap;
use crate::memory::Clock;

/// A named barrier of a block.
#[derive(Debug, Default)]
pub(super) struct NamedBarrier {
    /// Warps that have arrived, as bits.
    pub(super) arrived: u32,
    /// The threads it waits for; all live ones if there is no number.
    threads: Option<u32>,
    reduces: bool,
    any: bool,
    all: bool,
    /// The accesses that the warps that arrived know of.
    pub(super) clock: Clock,
}

impl NamedBarrier {
    pub(super) fn is_complete(&self, live_warps: u32) -> bool {
        self.arrived != 0
            && match self.threads {
                Some(threads) => self.arrived.count_ones() * 32 >= threads,
                None => live_warps & !self.arrived == 0,
            }
    }

    /// The result of `bar.red`.
    pub(super) fn reduced(&self, any: bool) -> u64 {
        u64::from(if any { self.any } else { self.all })
    }

    pub(super) fn arrive(
        &mut self,
        warp: u32,
        threads: Option<u32>,
        predicates: Option<(bool, bool)>,
        clock: &Clock,
    ) -> Result<(), Trap> {
        if self.arrived >> warp & 1 == 1 {
            return Err(Trap::new("the warp arrives twice at a barrier that was not complete"));
        }
        if threads.is_some_and(|n| n == 0 || n % 32 != 0) {
            return Err(Trap::new("the threads of a barrier are not a multiple of 32"));
        }
        if self.arrived == 0 {
            (self.threads, self.reduces, self.any, self.all) = (threads, predicates.is_some(), false, true);
        } else if self.threads != threads || self.reduces != predicates.is_some() {
            return Err(Trap::new("warps meet at a barrier with different numbers or operations"));
        }
        if let Some((any, all)) = predicates {
            self.any |= any;
            self.all &= all;
        }
        self.arrived |= 1 << warp;
        self.clock.merge(clock);
        Ok(())
    }
}
