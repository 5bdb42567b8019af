//! A shard inside this process, without a router, for benchmarks.

mod engine;
mod workload;

pub use engine::{BatchTimes, MachineLimits, OfflineEngine, WorkloadStep};
pub use workload::BenchWorkload;
