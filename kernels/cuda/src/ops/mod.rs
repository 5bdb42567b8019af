//! The operations of the CUDA backend.
//!
//! Each operation has three parts: a struct of operands, whose shapes and types are checked; its
//! cost as a function of the shape; and the choice and launch of a kernel.
//!
//! Views are row-major and at least as long as the shapes say. Constants (norm weights, biases,
//! tables) are f32; activations have the model's type. No operation waits for the device.

pub mod activation;
pub mod allreduce;
pub mod attention;
pub mod columns;
pub mod decode;
pub mod embed;
pub mod fp8;
pub mod gemv;
pub mod grouped;
pub mod latent;
pub mod matmul;
pub mod moe;
pub mod norm;
pub mod paged;
pub mod prefill;
pub mod product;
pub mod prologue;
pub mod quant;
pub mod recurrent;
pub mod sample;
mod select;
mod shared;
mod sizes;
pub mod step;
mod tiles;
