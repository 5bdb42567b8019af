//! The kinds of device that a rank can compute on. Nothing outside this folder knows a device by
//! name.

pub(crate) mod cuda;
mod device;
mod gpu_collectives;
mod gpu_ranks;
mod gpus;
mod host;

pub(crate) use host::free_host_share;

pub use device::{OpenDevice, Platform};
pub use gpus::{GpuRequirement, check_gpu_requirements, usable_gpus};
pub use host::{HostCollectives, HostPlatform};
