//! One rank of a model: its weights, its KV pool, and the loop that computes steps.
//!
//! [`run`] is the life of a shard process. [`decoder`] computes steps of a model on the device that
//! a [`Platform`] opens, and [`state`] has the tokens and blocks of its sequences. [`collective`]
//! connects the ranks of a group. [`offline`] drives a shard inside this process, without a router.
//! What a model is, how it is split and which memory it needs is known to [`millrace_model`].

mod classifier;
pub mod collective;
pub mod decoder;
mod disk_cache;
mod draft_model;
mod error;
mod head_states;
mod host_memory;
mod null;
pub mod offline;
mod options;
mod platform;
mod pooling;
mod process;
mod prompt_handling;
mod reused;
pub mod state;
mod step_engine;
mod worker;

pub use error::Error;
pub use millrace_proto::handshake::Secret;
pub use options::{
    AdapterOptions, AllReduce, DeviceKind, DiskCacheOptions, GpuMemory, NullCosts, NullOptions, PreviousPool,
    RankPlacement, Replica, RouterAddress, ShardOptions, WeightCacheOptions,
};
pub use platform::{
    GpuRequirement, HostCollectives, HostPlatform, OpenDevice, Platform, check_gpu_requirements, usable_gpus,
};
pub use process::{Connection, OpenAdapter, OpenModel, OpenedModel, compute_threads, run, serve};
