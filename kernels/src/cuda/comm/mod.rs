//! Collectives between the devices of a group: by NCCL, or over each other's memory.

#[cfg(feature = "cuda")]
mod collectives;
#[cfg(feature = "cuda")]
pub mod nccl;
mod peers;

#[cfg(feature = "cuda")]
pub use collectives::{DeviceCollectives, measure_all_reduce};
pub use peers::{PeerCollectives, PeerOffer};
