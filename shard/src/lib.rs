//! One rank of a model: its weights, its KV pool, and the loop that computes steps.

pub mod checkpoint;
mod connection;
pub mod decoder;
mod error;
pub mod families;
pub mod inspect;
mod lifeline;
mod limits;
pub mod memory;
pub mod model;
mod options;
pub mod plan;
mod serve;
pub mod state;
mod worker;

pub use error::Error;
pub use limits::Limits;
pub use millrace_kernels::DType;
pub use options::{Address, ShardOptions};
pub use serve::{run, serve};
