//! The interface that both kinds of device implement: the GPU and the simulation.

mod interface;
mod launch;
pub mod params;
mod peers;
mod product;
mod recorder;
mod shared_limit;
mod streams;

pub use interface::{Driver, Properties};
pub use launch::{Grid, KernelName, TensorLayout, TensorMap};
pub use peers::{PeerMemory, SharedName};
pub use product::{Algorithm, Gemm, MatrixLibrary, RowScales};
pub(super) use recorder::{Freed, Recorder};
#[cfg(feature = "cpu-sim")]
pub(super) use shared_limit::DEFAULT_SHARED;
pub(super) use shared_limit::{SharedAllowance, SharedAttributes};
pub use streams::{DeviceStream, StreamCall, StreamDriver};
