//! The kernels' code: what the build embedded, and what NVRTC compiles for GPUs that the embedded
//! machine code does not fit.

#[cfg(feature = "cuda")]
mod cache;
pub(crate) mod embedded;
#[cfg(feature = "cuda")]
pub(crate) mod nvrtc;

#[cfg(feature = "cuda")]
pub(super) use cache::Cache;
