//! The memory of a device and of a block.

mod clock;
mod device;
mod shared;
mod tensor_map;

pub(crate) use clock::{Clock, FIRST_MBARRIER};
pub use device::DeviceMemory;
pub(crate) use shared::{CHUNK, SharedMemory, Viewer};
pub(crate) use tensor_map::{Chunk, Decoded};
pub use tensor_map::{Fill, MAP_BYTES, Swizzle, TensorElement, TensorMapError, TensorMapLayout};
