//! Instructions at which lanes or warps meet.

use super::alu::Lanes;
use super::block::Shared;
use super::warp::{Warp, lanes};
use crate::error::Trap;
use crate::instruction::{Shuffle, ShuffleMode, Source, VoteMode};
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

impl Warp {
    /// The lanes of a mask operand, which must be the same for all lanes that execute the
    /// instruction and contain them.
    pub(super) fn members(&self, mask: Source, active: u32, shared: &Shared<'_>) -> Result<u32, Trap> {
        let masks = self.value(mask, shared);
        let first = masks[active.trailing_zeros() as usize] as u32;
        for lane in lanes(active) {
            if masks[lane] as u32 != first {
                return Err(Trap::lane(lane as u32, "lanes that meet give different masks"));
            }
            if first >> lane & 1 == 0 {
                return Err(Trap::lane(lane as u32, "a lane is not in its own mask"));
            }
        }
        Ok(first & self.live)
    }

    pub(super) fn shuffle(&mut self, s: &Shuffle, active: u32, shared: &Shared<'_>) -> Result<(), Trap> {
        let [a, b, c] = [s.a, s.lane, s.clamp].map(|source| self.value(source, shared));
        let (mut values, mut in_range) = ([0; 32], [0; 32]);
        for lane in lanes(active) {
            let (own, by) = (lane as i64, b[lane] as i64 & 31);
            let segment = (c[lane] >> 8 & 31) as i64;
            let least = own & segment;
            let most = least | (c[lane] as i64 & 31 & !segment);
            let (from, ok) = match s.mode {
                ShuffleMode::Up => (own - by, own - by >= most),
                ShuffleMode::Down => (own + by, own + by <= most),
                ShuffleMode::Butterfly => (own ^ by, own ^ by <= most),
                ShuffleMode::Index => {
                    let from = least | (by & !segment);
                    (from, from <= most)
                }
            };
            let from = if ok { from as usize } else { lane };
            if active >> from & 1 == 0 {
                return Err(Trap::lane(lane as u32, format!("reads lane {from}, which does not take part")));
            }
            (values[lane], in_range[lane]) = (a[from], u64::from(ok));
        }
        self.set(s.d, &values, active);
        if let Some(p) = s.in_range {
            self.set(p, &in_range, active);
        }
        Ok(())
    }

    pub(super) fn vote(&self, mode: VoteMode, p: &Lanes, active: u32) -> Lanes {
        let ballot = lanes(active).filter(|lane| p[*lane] != 0).fold(0u32, |all, lane| all | 1 << lane);
        [match mode {
            VoteMode::Ballot => u64::from(ballot),
            VoteMode::Any => u64::from(ballot != 0),
            VoteMode::All => u64::from(ballot == active),
        }; 32]
    }
}
