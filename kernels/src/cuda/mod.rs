//! Kernels in CUDA C++ and the host code that launches them.
//!
//! `cuda/*.cu` hold the kernels. [`ops`] has one function per operation: it checks shapes and types, chooses the kernel and the size of its
//! grid, and launches it on a [`Device`]. A device is a card or, with the feature `cpu-sim`, a simulation that runs the
//! same sources on this machine's processor; tests run on either.

mod backend;
#[cfg(feature = "cuda")]
mod cache;
#[cfg(feature = "cuda")]
mod card;
pub mod cost;
mod device;
#[cfg(feature = "cuda")]
pub mod doctor;
mod driver;
mod memory;
mod modules;
#[cfg(feature = "cuda")]
pub mod nccl;
#[cfg(feature = "cuda")]
mod nvrtc;
pub mod ops;
pub mod pack;
mod peers;
#[cfg(feature = "cuda")]
pub mod ranks;
#[cfg(feature = "cpu-sim")]
mod sim;

pub use backend::Cuda;
#[cfg(feature = "cuda")]
pub use card::Card;
pub use cost::Cost;
pub use device::Device;
pub use driver::{Arg, Args, Driver, Function, Gemm, Grid, Properties, SharedName, TensorLayout, TensorMap};
pub use memory::{Elem, Memory, View};
pub use peers::{Offer, Peers};
#[cfg(feature = "cpu-sim")]
pub use sim::{Order, Simulated};
