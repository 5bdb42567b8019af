//! One rank of a model: its weights, its KV pool, and the loop that computes steps.
//!
//! [`run`] is the life of a shard process. [`families`] turns a checkpoint into a [`model`],
//! [`split`] cuts out the share of one rank, [`memory_plan`] decides the sizes of everything, and
//! [`decoder`] computes steps on the device that a [`Platform`] opens. [`collective`] connects the
//! ranks of a group. [`offline`] drives a shard inside this process, without a router. [`quantize`]
//! writes quantized checkpoints, and [`convert`] writes models in other file formats.

mod classifier;
pub mod collective;
pub mod convert;
pub mod decoder;
mod error;
mod host_memory;
mod null;
pub mod offline;
mod options;
mod partial;
mod platform;
mod pooling;
mod process;
mod prompt_handling;
pub mod quantize;
pub mod state;
mod step_engine;
mod worker;

pub use error::Error;
pub use millrace_proto::handshake::Secret;
pub use options::{
    AllReduce, DeviceKind, GpuMemory, NullCosts, NullOptions, PreviousPool, RankPlacement, RouterAddress,
    ShardOptions, WeightCacheOptions,
};
pub use partial::PlaceError;
pub use platform::{
    GpuRequirement, HostCollectives, HostPlatform, OpenDevice, Platform, check_gpu_requirements, usable_gpus,
};
pub use process::{Connection, compute_threads, run, serve};
