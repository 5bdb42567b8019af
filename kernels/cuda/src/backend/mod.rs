//! The decoder's operations on a GPU, or on a simulated one.
//!
//! Activations and dense weights have one type, that of the model; constants and logits are f32.
//! All work is submitted in the order of one stream. Only `read`, `score` and `collect` wait for
//! it.

mod activations;
mod allocation;
mod buffers;
mod collectives;
mod cuda;
mod decoding;
mod experts;
mod latent;
mod loading;
mod operations;
mod packed;
mod prepared;
mod products;
mod queue;
mod recurrent;
mod sampler;
mod saved_blocks;
mod scorer;
mod slots;
mod steps;
mod tuning;
mod upload;

pub use cuda::Cuda;
