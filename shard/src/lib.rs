//! One rank of a model: its weights, its KV pool, and the loop that computes steps.

pub mod decoder;
mod error;
mod limits;
pub mod memory;
pub mod model;
pub mod plan;
pub mod state;

pub use error::Error;
pub use limits::Limits;
