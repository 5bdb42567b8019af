//! Collectives between the devices of a group: by NCCL, or over each other's memory.

mod collectives;
pub mod nccl;
mod peers;

pub use collectives::{DeviceCollectives, measure_all_reduce};
pub use peers::{PeerCollectives, PeerOffer};
