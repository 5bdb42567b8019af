//! One allocation that others are cut from, so that nothing is asked of the driver once a model runs.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::driver::Driver;
use super::memory::{Memory, Slab};
use crate::{Error, Result};

/// What every piece begins at a multiple of, as a driver's own allocations do.
pub(super) const ALIGNMENT: usize = 256;

/// How much of a reservation is in use, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reserved {
    /// The whole.
    pub bytes: usize,
    /// What has been cut off it, padding included.
    pub used: usize,
    /// What was asked for when it was used up, and is an allocation of its own.
    pub beyond: usize,
}

/// The reservation of a device, if it has one. Pieces are cut off one after the other and never given back: they are for as long as the model.
#[derive(Debug, Default)]
pub(super) struct Arena(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    slab: Option<Arc<Slab>>,
    reserved: Reserved,
}

impl Arena {
    /// Allocates `bytes` bytes for later.
    pub(super) fn reserve(&self, driver: &Arc<dyn Driver>, bytes: usize) -> Result<()> {
        let slab = Slab::new(driver.clone(), bytes)?;
        *self.state() =
            State { slab: Some(Arc::new(slab)), reserved: Reserved { bytes, used: 0, beyond: 0 } };
        Ok(())
    }

    /// Memory of `bytes` bytes: a piece of what was reserved, as far as it goes.
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

    pub(super) fn reserved(&self) -> Reserved {
        self.state().reserved
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
