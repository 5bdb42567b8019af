//! The CUDA kernels beside the limits of the GPU that they run on: `cargo bench -p millrace-cuda
//! --bench cuda [-- FILTER]`. `FILTER` is the name of a module, or a part of the names of cases.
//!
//! Every figure is compared with a copy of memory and a large matrix product in the same run. With
//! `--simulate` (feature `cpu-sim`) each case runs once on the simulated device, which shows that
//! all cases launch and measures nothing.

mod activation;
mod allreduce;
mod cost;
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

/// Measures the cases of a module.
type Run = fn(&mut Bench) -> Result<()>;

/// The modules by name, in the order in which they run.
const MODULES: [(&str, Run); 15] = [
    ("norm", norm::run),
    ("embed", embed::run),
    ("activation", activation::run),
    ("prologue", prologue::run),
    ("step", step::run),
    ("moe", moe::run),
    ("prefill", prefill::run),
    ("decode", decode::run),
    ("gemv", gemv::run),
    ("quant_gemm", quant_gemm::run),
    ("fp8", fp8::run),
    ("grouped_gemm", grouped_gemm::run),
    ("recurrent", recurrent::run),
    ("sample", sample::run),
    ("allreduce", allreduce::run),
];

/// Runs all modules, even if one fails.
fn main() -> Result<()> {
    let mut bench = Bench::from_arguments(&MODULES.map(|(name, _)| name))?;
    for (name, run) in MODULES {
        if bench.is_wanted(name) {
            let result = run(&mut bench);
            bench.report(name, result);
        }
    }
    bench.finish()
}
