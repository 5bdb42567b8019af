//! One rank of a model: its weights, its KV pool, and the loop that computes steps.

mod affinity;
mod answer;
pub mod checkpoint;
pub mod collective;
mod connection;
pub mod decoder;
mod error;
pub mod families;
pub mod inspect;
mod lifeline;
mod limits;
pub mod memory;
pub mod model;
mod null;
mod options;
pub mod plan;
pub mod planner;
mod platform;
mod pool;
mod remote;
mod serve;
pub mod split;
pub mod state;
mod units;
mod worker;

pub use connection::Connection;
pub use error::Error;
pub use limits::Limits;
pub use millrace_kernels::DType;
pub use millrace_kernels::cuda::{Card, doctor};
pub use millrace_proto::handshake::Secret;
pub use model::Quantize;
pub use options::{Address, AllReduce, Device, KeptPool, ShardOptions};
pub use platform::{OnHost, Opened, Platform};
pub use serve::{run, serve};
pub use units::{Bytes, Count, Operations};
