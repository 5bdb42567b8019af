//! The device operations on NVIDIA GPUs: kernels in CUDA C++ and the host code that launches them.
//!
//! The kernels are the files `kernels/*.cu` of this crate. The host code has these parts, each of
//! which uses only those above it:
//!
//! - [`device`]: memory, streams, events, graphs and launches of one device, which is an NVIDIA GPU
//!   or, with the feature `cpu-sim`, a simulation that runs the same CUDA sources on the CPU. Tests
//!   run on either.
//! - [`weights`]: the layout of weights of 4 and 8 bits that the kernels read.
//! - [`ops`]: one function per operation. It checks shapes and types, chooses the kernel and the
//!   grid, and launches it.
//! - [`comm`]: collectives between the devices of a group.
//! - `tuning`: the fastest way to multiply for each shape, found by timing and kept on disk.
//! - `backend`: [`Cuda`], the backend that models run on.
//!
//! The libraries of NVIDIA are opened at run time. Nothing here knows a model, a request or the
//! backends of other devices.

mod backend;
mod cache_folder;
pub mod comm;
pub mod device;
pub mod doctor;
pub mod ops;
mod tuning;
pub mod weights;

pub use backend::Cuda;
pub use comm::{DeviceCollectives, measure_all_reduce, nccl};
pub use comm::{PeerCollectives, PeerOffer};
pub use device::Gpu;
pub use device::params;
pub use device::{
    Algorithm, ArenaUsage, CopyStream, Device, DeviceEvent, DeviceStream, Driver, Elem, Gemm, Graph, Grid,
    KernelName, MatrixLibrary, Memory, PeerMemory, Pinned, Properties, RowScales, SharedName, StreamCall,
    StreamDriver, TensorLayout, TensorMap, View,
};
#[cfg(feature = "cpu-sim")]
pub use device::{FiberSchedule, GpuModel, Simulated};
