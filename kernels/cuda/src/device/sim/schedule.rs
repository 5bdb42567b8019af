//! The schedules in which the simulated device runs the threads of a block.

use std::ffi::c_uint;

use millrace_backend::{Error, Result};

/// The order in which the threads (fibers) of a block take turns. A kernel whose result depends on
/// it lacks a barrier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FiberSchedule {
    /// Threads in ascending order; warps take turns.
    #[default]
    Forward,
    /// Threads and warps in descending order; warps take turns.
    Reverse,
    /// In ascending order; each warp runs as far as it can before the next one.
    Greedy,
    /// In descending order; each warp runs as far as it can before the next one.
    GreedyReverse,
}

impl FiberSchedule {
    /// All schedules.
    pub const ALL: [FiberSchedule; 4] =
        [FiberSchedule::Forward, FiberSchedule::Reverse, FiberSchedule::Greedy, FiberSchedule::GreedyReverse];

    /// The schedule that `MILLRACE_SIM_ORDER` names: `forward` (the default), `reverse`, `greedy`
    /// or `greedy-reverse`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for any other name.
    pub fn from_environment() -> Result<FiberSchedule> {
        match std::env::var("MILLRACE_SIM_ORDER").as_deref() {
            Err(_) | Ok("forward") => Ok(FiberSchedule::Forward),
            Ok("reverse") => Ok(FiberSchedule::Reverse),
            Ok("greedy") => Ok(FiberSchedule::Greedy),
            Ok("greedy-reverse") => Ok(FiberSchedule::GreedyReverse),
            Ok(other) => Err(Error::Unsupported(format!(
                "MILLRACE_SIM_ORDER is {other}: it must be forward, reverse, greedy or greedy-reverse"
            ))),
        }
    }

    pub(super) fn bits(self) -> c_uint {
        match self {
            FiberSchedule::Forward => 0,
            FiberSchedule::Reverse => 1,
            FiberSchedule::Greedy => 2,
            FiberSchedule::GreedyReverse => 3,
        }
    }
}
