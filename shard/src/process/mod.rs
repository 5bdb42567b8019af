//! The process of one shard: how it starts, how it talks to the router, and the loop over steps.
//!
//! [`run`] connects to the router ([`connect`]), loads the model and meets the other ranks
//! ([`startup`]), and then answers steps until the router ends ([`step_loop`]).

mod adapter_loads;
mod affinity;
mod connect;
mod connection;
mod host_share;
mod lifeline;
mod remote;
mod router_link;
mod run;
mod startup;
mod step_loop;
mod test_fault;
mod weight_cache;

pub use adapter_loads::OpenAdapter;
pub use affinity::compute_threads;
pub use connection::Connection;
pub(crate) use host_share::open_cpu;
pub use run::{run, serve};
pub use startup::{OpenModel, OpenedModel};
pub(crate) use startup::{Started, start};
