//! The CUDA kernels against references on the host, with random shapes.
//!
//! They run on the simulated device, with the fiber schedule that `MILLRACE_SIM_ORDER` names, on
//! the first GPU with `MILLRACE_TEST_DEVICE=cuda`, or on the PTX interpreter with
//! `MILLRACE_TEST_DEVICE=ptx`.

#![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

mod activation;
mod allreduce;
mod arena;
mod columns;
mod common;
mod decode;
mod embed;
mod fp8;
mod gemv;
mod grouped_gemm;
mod latent;
mod moe;
mod nccl;
mod norm;
mod peers;
mod prefill;
mod prologue;
mod ptx;
mod quant_gemm;
mod recurrent;
mod reference;
mod sample;
mod sim;
mod step;
mod streams;
mod symbols;
mod words;
