//! Compares every operation of the CPU and CUDA backends with the reference, and checks their
//! guarantees on determinism bit for bit.

#![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

mod adapters;
mod attention;
mod blocks;
mod common;
#[cfg(feature = "cpu-sim")]
mod cuda;
mod expert_matrices;
mod experts;
#[cfg(feature = "cpu-sim")]
mod fp8;
#[cfg(feature = "cpu-sim")]
mod gpu_integers;
mod k_quants;
mod latent;
mod linear;
mod product;
mod quantized;
mod recurrent;
mod rows;
mod sampling;
mod stacks;
mod stored;
mod stored_codes;
mod tables;
