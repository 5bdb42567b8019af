//! The CUDA kernels against references on the host, with random shapes.
//!
//! They run on the simulated device, in the order of threads that `MILLRACE_SIM_ORDER` names, or on the first card with
//! `MILLRACE_TEST_DEVICE=cuda`.

#![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

mod common;
mod norm;
mod sample;
