//! One rank of a model: its weights, its KV pool, and the loop that computes steps.

mod error;
pub mod model;

pub use error::Error;
