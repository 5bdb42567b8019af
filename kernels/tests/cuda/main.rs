//! The CUDA kernels against references on the host, with random shapes.
//!
//! They run on the simulated device, in the order of threads that `MILLRACE_SIM_ORDER` names, or on the first card with
//! `MILLRACE_TEST_DEVICE=cuda`.

#![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

mod activation;
mod allreduce;
mod common;
mod nccl;
mod norm;
mod sim;
mod embed;
mod moe;
mod norm;
mod prologue;
mod step;
mod words;
mod prefill;
mod decode;
mod norm;
mod reference;
mod gemv;
mod grouped_gemm;
mod norm;
mod quant_gemm;
mod sample;
