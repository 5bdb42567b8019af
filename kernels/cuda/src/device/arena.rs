//! One large allocation that all memory is cut from, so that a running model never calls the
//! driver's allocator.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millrace_backend::{Error, Result};

use super::driver::Driver;
use super::memory::{DriverAllocation, Memory};

/// Every piece begins at a multiple of this, as the driver's own allocations do.
pub(crate) const ALIGNMENT: usize = 256;

/// How much of a reservation is in use, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ArenaUsage {
    /// The size of the reservation.
    pub bytes: usize,
    /// Bytes that are in use, padding included.
    pub used: usize,
    /// Bytes that were requested when the reservation was used up. They have allocations of their
    /// own.
    pub beyond: usize,
}

/// The reservation of a device, if it has one. Pieces are cut off one after the other and never
/// returned: they live as long as the model.
#[derive(Debug, Default)]
pub(super) struct Arena(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    slab: Option<Arc<DriverAllocation>>,
    reserved: ArenaUsage,
}

impl Arena {
    /// Allocates the reservation.
    pub(super) fn reserve(&self, driver: &Arc<dyn Driver>, bytes: usize) -> Result<()> {
        let slab = DriverAllocation::new(driver.clone(), bytes)?;
        *self.state() =
            State { slab: Some(Arc::new(slab)), reserved: ArenaUsage { bytes, used: 0, beyond: 0 } };
        Ok(())
    }

    /// Returns `bytes` bytes: a piece of the reservation if it is large enough, or else an
    /// allocation.
    pub(super) fn take(&self, driver: &Arc<dyn Driver>, bytes: usize) -> Result<Memory> {
        let padded = bytes
            .max(1)
            .checked_next_multiple_of(ALIGNMENT)
            .ok_or(Error::OutOfMemory { what: "device memory", bytes })?;
        let mut state = self.state();
        let State { slab, reserved } = &mut *state;
        let Some(slab) = slab else { return Memory::alone(driver.clone(), bytes) };
        if padded > reserved.bytes - reserved.used {
            reserved.beyond += padded;
            return Memory::alone(driver.clone(), bytes);
        }
        let memory = Memory::piece(slab.clone(), reserved.used, bytes);
        reserved.used += padded;
        Ok(memory)
    }

    pub(super) fn reserved(&self) -> ArenaUsage {
        self.state().reserved
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
