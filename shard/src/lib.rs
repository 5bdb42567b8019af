//! One rank of a model: its weights, its KV pool, and the loop that computes steps.

pub mod checkpoint;
mod error;
pub mod families;
pub mod inspect;
pub mod model;

pub use error::Error;
