//! `mbarrier`: barriers in shared memory that threads and asynchronous copies arrive at.

use std::collections::BTreeMap;

use crate::error::Trap;
use crate::hopper::PhaseOperand;
use crate::memory::Clock;

/// The most arrivals of a phase, and the most bytes that a phase can still expect.
pub(super) const MOST: i64 = (1 << 20) - 1;
/// An mbarrier.
#[derive(Debug)]
pub(super) struct Mbarrier {
    /// Its part of clocks, whose time is the number of complete phases.
    pub(super) part: u16,
    /// Arrivals of a phase.
    pub(super) expected: i64,
    /// Arrivals that the current phase still waits for.
    pub(super) pending: i64,
    /// Bytes that were announced and have not arrived; negative if they arrived first.
    pub(super) bytes: i64,
    pub(super) phase: u32,
    /// Whether somebody has seen the end of the previous phase.
    pub(super) is_seen: bool,
    /// The accesses that the threads that arrived know of.
    pub(super) arrived: Clock,
    /// The accesses that a thread knows of after it has seen the end of the previous phase.
    pub(super) complete: Clock,
    /// The warp that initialized it, and when.
    pub(super) made: (u16, u32),
}

impl Mbarrier {
    pub(super) fn expect(&mut self, bytes: i64) -> Result<(), Trap> {
        self.bytes += bytes;
        if self.bytes.abs() > MOST || bytes > MOST {
            return Err(Trap::new(format!("an mbarrier expects {} bytes, more than {MOST}", self.bytes)));
        }
        Ok(())
    }

    pub(super) fn arrive(&mut self, count: i64, clock: Option<&Clock>) -> Result<(), Trap> {
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

    pub(super) fn complete_bytes(&mut self, bytes: i64) -> Result<(), Trap> {
        self.expect(-bytes)?;
        self.test();
        Ok(())
    }

    /// Ends the phase if nothing is missing.
    pub(super) fn test(&mut self) {
        if self.pending == 0 && self.bytes == 0 {
            self.phase += 1;
            self.pending = self.expected;
            self.is_seen = false;
            self.arrived.set(self.part, self.phase);
            self.complete.merge(&self.arrived);
        }
    }

    /// Whether the phase of a state or parity has ended.
    pub(super) fn has_ended(&self, operand: PhaseOperand, value: u64) -> Result<bool, Trap> {
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

    pub(super) fn state(&self) -> u64 {
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
    pub(super) all: BTreeMap<u64, Mbarrier>,
    pub(super) made: u16,
}

impl Mbarriers {
    pub(super) fn find(&self, at: u64) -> Result<&Mbarrier, Trap> {
        self.all.get(&at).ok_or_else(|| not_initialized(at))
    }

    pub(super) fn find_mut(&mut self, at: u64) -> Result<&mut Mbarrier, Trap> {
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
