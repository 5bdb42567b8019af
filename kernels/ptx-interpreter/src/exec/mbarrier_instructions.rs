//! The instructions on mbarriers.

use super::mbarrier::{MOST, Mbarrier};
use super::shared::Shared;
use super::warp::{Next, Warp, lanes};
use crate::error::Trap;
use crate::hopper::{MbarrierKind, MbarrierOp, PhaseOperand};
use crate::memory::{Clock, FIRST_MBARRIER};

/// The most initializations in a block.
const MAX_BARRIERS: u16 = 4096;

impl Warp {
    pub(super) fn mbarrier(
        &mut self,
        op: &MbarrierOp,
        active: u32,
        shared: &mut Shared<'_>,
    ) -> Result<Next, Trap> {
        let addresses = self.addresses(op.address, shared);
        let mut next = Next::Step;
        for lane in lanes(active) {
            let done = self.mbarrier_lane(op, lane, addresses[lane], shared);
            if !done.map_err(|trap| trap.at_lane(lane as u32))? {
                self.waits_for = Some(addresses[lane]);
                next = Next::Spin;
            }
        }
        if !matches!(next, Next::Spin) {
            shared.effects += 1;
        }
        self.clock.tick(self.index as u16);
        Ok(next)
    }

    /// Executes an operation for one lane. Returns false if it is a wait that has not ended.
    fn mbarrier_lane(
        &mut self,
        op: &MbarrierOp,
        lane: usize,
        at: u64,
        shared: &mut Shared<'_>,
    ) -> Result<bool, Trap> {
        check_aligned(at)?;
        let value = |source, shared: &Shared<'_>| self.value(source, shared)[lane];
        if let MbarrierKind::Init { count } = op.kind {
            let count = value(count, shared) as u32;
            return self.init_mbarrier(at, i64::from(count), lane, shared).map(|()| true);
        }
        self.check_made(at, shared)?;
        let clock = op.orders.then_some(&self.clock);
        match &op.kind {
            MbarrierKind::Init { .. } => {}
            MbarrierKind::Invalidate => {
                shared.mbarriers.all.remove(&at);
                shared.memory.end_barrier(at)?;
            }
            MbarrierKind::Arrive { state, count, expects, drops, must_not_complete } => {
                let count = i64::from(value(*count, shared) as u32);
                let bytes = expects.map(|bytes| i64::from(value(bytes, shared) as u32));
                let barrier = shared.mbarriers.find_mut(at)?;
                let before = (barrier.state(), barrier.phase);
                if let Some(bytes) = bytes {
                    barrier.expect(bytes)?;
                }
                if *drops {
                    barrier.expected -= count;
                }
                barrier.arrive(count, clock)?;
                if *must_not_complete && barrier.phase != before.1 {
                    return Err(Trap::new("an arrival with .noComplete completes the phase"));
                }
                if let Some(d) = state {
                    self.set(*d, &[before.0; 32], 1 << lane);
                }
            }
            MbarrierKind::Expect { bytes } => {
                let bytes = i64::from(value(*bytes, shared) as u32);
                shared.mbarriers.find_mut(at)?.expect(bytes)?;
            }
            MbarrierKind::Complete { bytes } => {
                let bytes = i64::from(value(*bytes, shared) as u32);
                shared.mbarriers.find_mut(at)?.complete_bytes(bytes)?;
            }
            MbarrierKind::Test { p, phase } => {
                let wanted = match phase {
                    PhaseOperand::State(source) | PhaseOperand::Parity(source) => value(*source, shared),
                };
                let barrier = shared.mbarriers.find_mut(at)?;
                let done = barrier.has_ended(*phase, wanted)?;
                if done {
                    barrier.is_seen = true;
                }
                if done && op.orders {
                    self.clock.merge(&barrier.complete);
                }
                self.set(*p, &[u64::from(done); 32], 1 << lane);
                return Ok(done);
            }
        }
        Ok(true)
    }

    fn init_mbarrier(
        &mut self,
        at: u64,
        count: i64,
        lane: usize,
        shared: &mut Shared<'_>,
    ) -> Result<(), Trap> {
        if !(1..=MOST).contains(&count) {
            return Err(Trap::new(format!("an mbarrier for {count} arrivals")));
        }
        shared.memory.begin_barrier(at, self.viewer(lane))?;
        let barriers = &mut shared.mbarriers;
        if barriers.made == MAX_BARRIERS {
            return Err(Trap::new(format!("more than {MAX_BARRIERS} mbarriers are initialized")));
        }
        let part = FIRST_MBARRIER + barriers.made;
        barriers.made += 1;
        let made = (self.index as u16, self.clock.get(self.index as u16));
        let barrier = Mbarrier {
            part,
            expected: count,
            pending: count,
            bytes: 0,
            phase: 0,
            is_seen: false,
            arrived: Clock::default(),
            complete: Clock::default(),
            made,
        };
        barriers.all.insert(at, barrier);
        Ok(())
    }

    /// Checks that an mbarrier exists and that a barrier of the block, or another order, lies
    /// between its initialization and this use.
    pub(super) fn check_made(&self, at: u64, shared: &Shared<'_>) -> Result<(), Trap> {
        let (warp, time) = shared.mbarriers.find(at)?.made;
        if u32::from(warp) != self.index && self.clock.get(warp) < time {
            return Err(Trap::new(format!(
                "uses the mbarrier at {at:#x}, which warp {warp} has initialized without a barrier between"
            )));
        }
        Ok(())
    }
}

fn check_aligned(at: u64) -> Result<(), Trap> {
    match at.is_multiple_of(8) {
        true => Ok(()),
        false => Err(Trap::new(format!("an mbarrier at {at:#x} is not aligned"))),
    }
}
