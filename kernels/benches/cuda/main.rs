//! The CUDA kernels against the limits of the card they run on: `cargo bench -p millrace-kernels --bench cuda [-- FILTER]`.
//!
//! Every figure stands beside what a plain copy of memory and a large matrix product reach in the same run. With `--simulate` (feature
//! `cpu-sim`) each case runs once on the simulated device, which measures nothing and shows that all of them launch.

mod harness;
mod norm;
mod sample;

use harness::{Bench, Result};

fn main() -> Result<()> {
    let mut bench = Bench::from_arguments()?;
    norm::run(&mut bench)?;
    sample::run(&mut bench)?;
    bench.finish()
}
