//! One device: its memory, streams, events and graphs, and the drivers that implement them.

pub(super) mod arena;
mod code;
mod driver;
mod elem;
mod event;
pub(super) mod gpu;
mod graph;
mod handle;
mod memory;
mod pinned;
#[cfg(feature = "cpu-sim")]
mod sim;

pub use arena::ArenaUsage;
pub(super) use code::{embedded, nvrtc};
pub use driver::params;
pub use driver::{
    Algorithm, DeviceStream, Driver, Gemm, Grid, KernelName, MatrixLibrary, PeerMemory, Properties,
    RowScales, SharedName, StreamCall, StreamDriver, TensorLayout, TensorMap,
};
pub use elem::Elem;
pub use event::{CopyStream, DeviceEvent};
pub use gpu::Gpu;
pub use graph::Graph;
pub use handle::Device;
pub use memory::{Memory, View};
pub use pinned::Pinned;
#[cfg(feature = "cpu-sim")]
pub use sim::{FiberSchedule, GpuModel, Simulated};
