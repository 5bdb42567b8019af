//! The memory of a device and of a block.

mod device;
mod shared;

pub use device::DeviceMemory;
pub(crate) use shared::SharedMemory;
