//! A simulated device: the CUDA sources run on this machine's CPU, one fiber per CUDA
//! thread (`kernels/cuda/kernels/sim/`).

mod allocation;
mod fault;
mod functions;
mod gpu_model;
mod kernels;
mod product;
mod queue;
mod schedule;
#[cfg(target_os = "linux")]
mod shared_memory;
mod simulated;
mod streams;

pub use gpu_model::GpuModel;
pub use schedule::FiberSchedule;
pub use simulated::Simulated;
