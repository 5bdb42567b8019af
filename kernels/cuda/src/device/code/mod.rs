//! The kernels' code: what the build embedded, and what NVRTC compiles for GPUs that the embedded
//! machine code does not fit.

mod cache;
pub(crate) mod embedded;
pub(crate) mod nvrtc;

pub(super) use cache::Cache;
