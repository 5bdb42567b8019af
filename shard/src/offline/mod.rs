//! A shard inside this process, without a router, for benchmarks.

mod engine;
mod workload;

pub use engine::{BatchTimes, ComputedStep, MachineLimits, OfflineEngine};
pub use workload::BenchWorkload;
