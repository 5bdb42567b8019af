//! The orders in which the simulated device runs threads.

use std::ffi::c_uint;

use crate::{Error, Result};

/// In which order the threads of a block take turns. A kernel whose result depends on it lacks a barrier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// Threads ascending, warps in turn.
    #[default]
    Forward,
    /// Threads and warps descending.
    Reverse,
    /// Ascending, and each warp as far as it can go before the next one.
    Greedy,
    /// Descending, each warp as far as it can go.
    GreedyReverse,
}

impl Order {
    /// All orders.
    pub const ALL: [Order; 4] = [Order::Forward, Order::Reverse, Order::Greedy, Order::GreedyReverse];

    /// The order that `MILLRACE_SIM_ORDER` names: `forward` (also when it is not set), `reverse`, `greedy` or `greedy-reverse`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if it names none.
    pub fn from_environment() -> Result<Order> {
        match std::env::var("MILLRACE_SIM_ORDER").as_deref() {
            Err(_) | Ok("forward") => Ok(Order::Forward),
            Ok("reverse") => Ok(Order::Reverse),
            Ok("greedy") => Ok(Order::Greedy),
            Ok("greedy-reverse") => Ok(Order::GreedyReverse),
            Ok(other) => Err(Error::Unsupported(format!(
                "MILLRACE_SIM_ORDER={other}: not forward, reverse, greedy or greedy-reverse"
            ))),
        }
    }

    pub(super) fn bits(self) -> c_uint {
        match self {
            Order::Forward => 0,
            Order::Reverse => 1,
            Order::Greedy => 2,
            Order::GreedyReverse => 3,
        }
    }
}
