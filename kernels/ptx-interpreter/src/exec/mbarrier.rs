//! `mbarrier`: barriers in shared memory that threads and asynchronous copies arrive at.

use std::collections::BTreeMap;

use super::block::Shared;
use super::warp::{Next, Warp, lanes};
use crate::error::Trap;
use crate::hopper::{MbarrierKind, MbarrierOp, PhaseOperand};
use crate::memory::{Clock, FIRST_MBARRIER};

/// The most arrivals of a phase, and the most bytes that a phase can still expect.
const MOST: i64 = (1 << 20) - 1;
/// The most initializations in a block.
const MAX_BARRIERS: u16 = 4096;

/// An mbarrier.
#[derive(Debug)]
pub(super) struct Mbarrier {
    /// Its part of clocks, whose time is the number of complete phases.
    part: u16,
    /// Arrivals of a phase.
    expected: i64,
    /// Arrivals that the current phase still waits for.
    pending: i64,
    /// Bytes that were announced and have not arrived; negative if they arrived first.
    bytes: i64,
    phase: u32,
    /// Whether somebody has seen the end of the previous phase.
    is_seen: bool,
    /// The accesses that the threads that arrived know of.
    arrived: Clock,
    /// The accesses that a thread knows of after it has seen the end of the previous phase.
    complete: Clock,
    /// The warp that initialized it, and when.
    made: (u16, u32),
}

impl Mbarrier {
    fn expect(&mut self, bytes: i64) -> Result<(), Trap> {
        self.bytes += bytes;
        if self.bytes.abs() > MOST || bytes > MOST {
            return Err(Trap::new(format!("an mbarrier expects {} bytes, more than {MOST}", self.bytes)));
        }
        Ok(())
    }

    fn arrive(&mut self, count: i64, clock: Option<&Clock>) -> Result<(), Trap> {
        if self.phase > 0 && !self.is_seen {
            return Err(Trap::new(format!(
                "arrives at an mbarrier before anybody has seen the end of its phase {}",
                self.phase - 1
            )));
        }
        if count < 1 || count > self.pending {
            return Err(Trap::new(format!(
                "{count} arrivals at an mbarrier that waits for {} in its phase {}",
                self.pending, self.phase
            )));
        }
        if let Some(clock) = clock {
            self.arrived.merge(clock);
        }
        self.pending -= count;
        self.test();
        Ok(())
    }

    fn complete_bytes(&mut self, bytes: i64) -> Result<(), Trap> {
        self.expect(-bytes)?;
        self.test();
        Ok(())
    }

    /// Ends the phase if nothing is missing.
    fn test(&mut self) {
        if self.pending == 0 && self.bytes == 0 {
            self.phase += 1;
            self.pending = self.expected;
            self.is_seen = false;
            self.arrived.set(self.part, self.phase);
            self.complete.merge(&self.arrived);
        }
    }

    /// Whether the phase of a state or parity has ended.
    fn has_ended(&self, operand: PhaseOperand, value: u64) -> Result<bool, Trap> {
        match operand {
            PhaseOperand::Parity(_) if value > 1 => {
                Err(Trap::new(format!("a wait for a phase of parity {value}")))
            }
            PhaseOperand::Parity(_) => Ok(u64::from(self.phase & 1) != value),
            PhaseOperand::State(_) => {
                let phase = (value >> 32) as u32;
                if phase != self.phase && phase.checked_add(1) != Some(self.phase) {
                    let now = self.phase;
                    return Err(Trap::new(format!("a wait with a state of phase {phase} in phase {now}")));
                }
                Ok(phase != self.phase)
            }
        }
    }

    fn state(&self) -> u64 {
        u64::from(self.phase) << 32 | self.pending as u64
    }
}

impl std::fmt::Display for Mbarrier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Mbarrier { phase, pending, expected, bytes, .. } = self;
        write!(f, "in its phase {phase}, waits for {pending} of {expected} arrivals and {bytes} bytes")
    }
}

/// The mbarriers of a block by their address.
#[derive(Debug, Default)]
pub(super) struct Mbarriers {
    all: BTreeMap<u64, Mbarrier>,
    made: u16,
}

impl Mbarriers {
    pub(super) fn find(&self, at: u64) -> Result<&Mbarrier, Trap> {
        self.all.get(&at).ok_or_else(|| not_initialized(at))
    }

    fn find_mut(&mut self, at: u64) -> Result<&mut Mbarrier, Trap> {
        self.all.get_mut(&at).ok_or_else(|| not_initialized(at))
    }

    /// Lets the copy engine write bytes, and returns the part of clocks and the phase that these
    /// bytes belong to.
    pub(super) fn complete_bytes(&mut self, at: u64, bytes: u64) -> Result<(u16, u32), Trap> {
        let barrier = self.find_mut(at)?;
        let belongs = (barrier.part, barrier.phase + 1);
        barrier.complete_bytes(bytes as i64)?;
        Ok(belongs)
    }

    /// Checks that no barrier expects bytes that never came.
    pub(super) fn check_end(&self) -> Result<(), Trap> {
        match self.all.iter().find(|(_, barrier)| barrier.bytes != 0) {
            Some((at, barrier)) => {
                Err(Trap::new(format!("the block ends, but the mbarrier at {at:#x}, {barrier}")))
            }
            None => Ok(()),
        }
    }
}

fn not_initialized(at: u64) -> Trap {
    Trap::new(format!("no mbarrier is initialized at {at:#x} of shared memory"))
}

fn check_aligned(at: u64) -> Result<(), Trap> {
    match at.is_multiple_of(8) {
        true => Ok(()),
        false => Err(Trap::new(format!("an mbarrier at {at:#x} is not aligned"))),
    }
}

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
