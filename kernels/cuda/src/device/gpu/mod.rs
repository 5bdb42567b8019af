//! NVIDIA GPUs through the CUDA driver API, which is opened at run time.

mod availability;
mod blas;
mod context;
mod driver;
mod ipc;
mod kernels;
mod launch;
mod main_stream;
mod raw;
mod streams;
mod teardown;

pub(crate) use blas::version as blas_version;
pub use context::Gpu;
