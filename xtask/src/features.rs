//! The one set of Cargo features that development builds use.

/// The simulated GPU, on which the CUDA kernels' tests run, and the functions that the cost fuzzer
/// calls. Another set would build every crate a second time.
pub(crate) const FEATURES: &str = "--features=millrace/cpu-sim,millrace-router/fuzz";
