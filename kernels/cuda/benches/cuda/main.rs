//! The CUDA kernels beside the limits of the GPU that they run on: `cargo bench -p millrace-cuda
//! --bench cuda [-- FILTER]`.
//!
//! Every figure is compared with a copy of memory and a large matrix product in the same run. With
//! `--simulate` (feature `cpu-sim`) each case runs once on the simulated device, which shows that
//! all cases launch and measures nothing.

mod activation;
mod allreduce;
mod decode;
mod embed;
mod fp8;
mod gemv;
mod grouped_gemm;
mod harness;
mod moe;
mod norm;
mod peak;
mod prefill;
mod products;
mod prologue;
mod quant_gemm;
mod recurrent;
mod sample;
mod step;

use harness::{Bench, Result};

fn main() -> Result<()> {
    let mut bench = Bench::from_arguments()?;
    norm::run(&mut bench)?;
    embed::run(&mut bench)?;
    activation::run(&mut bench)?;
    prologue::run(&mut bench)?;
    step::run(&mut bench)?;
    moe::run(&mut bench)?;
    allreduce::run(&mut bench)?;
    prefill::run(&mut bench)?;
    decode::run(&mut bench)?;
    gemv::run(&mut bench)?;
    quant_gemm::run(&mut bench)?;
    fp8::run(&mut bench)?;
    grouped_gemm::run(&mut bench)?;
    recurrent::run(&mut bench)?;
    sample::run(&mut bench)?;
    bench.finish()
}
