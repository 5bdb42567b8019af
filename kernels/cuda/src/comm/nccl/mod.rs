//! Collectives between GPUs by NVIDIA's library (NCCL), which is opened at run time.

mod communicator;
mod library;

pub use communicator::{Aborter, Communicator};
pub use library::Nccl;
