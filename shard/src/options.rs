//! What a shard process is told when it is started.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use millrace_kernels::DType;
use millrace_proto::handshake::Secret;

use crate::collective::Wire;
use crate::model::Quantize;

/// Where the router listens for its shards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// A Unix socket.
    Unix(PathBuf),
    /// `host:port`.
    Tcp(String),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Unix(path) => path.display().fmt(f),
            Address::Tcp(address) => f.write_str(address),
        }
    }
}

/// What computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Device {
    /// The processor.
    Cpu,
    /// NVIDIA's cards: rank r of a host has number r of those that `CUDA_VISIBLE_DEVICES` shows.
    Cuda,
    /// A simulated card for each rank.
    #[cfg(feature = "cpu-sim")]
    CudaSim,
    /// Nothing: steps are answered after this time with made-up tokens, to measure all that is around the model.
    Null(Duration),
}

/// What carries activations between cards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AllReduce {
    /// What is faster for a message's size, of what there is.
    Auto,
    /// NCCL alone.
    Nccl,
    /// The cards' own memory alone, which each reads and writes.
    Peer,
}

/// The KV pool of a shard that was lost, for the one that takes its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeptPool {
    /// Tokens that the pool held.
    pub tokens: usize,
    /// Tokens of the longest sequence.
    pub longest: usize,
    /// How long the new shard waits until the memory of the lost one is free.
    pub wait: Duration,
}

/// What a shard process is told when it is started.
#[derive(Debug, Clone, PartialEq)]
pub struct ShardOptions {
    /// Where the router listens.
    pub address: Address,
    /// What proves to a router on another machine that this rank belongs to it; over TCP only.
    pub secret: Option<Secret>,
    /// What computes.
    pub device: Device,
    /// This shard's number, from 0.
    pub rank: usize,
    /// Number of shards.
    pub world_size: usize,
    /// Ranks on this host: they share its memory and its cores. Their numbers follow each other.
    pub host_ranks: usize,
    /// What carries values from rank to rank.
    pub wire: Wire,
    /// What carries activations between cards.
    pub all_reduce: AllReduce,
    /// Ranks that share a card; more than 1 is for tests.
    pub ranks_per_card: usize,
    /// How long a rank waits for another in the middle of a step.
    pub collective_timeout: Duration,
    /// Element type that weights are kept as; the checkpoint's if not given.
    pub dtype: Option<DType>,
    /// What becomes of the matrices of the layers while they are loaded; on cards alone.
    pub quantize: Option<Quantize>,
    /// Element type of the KV cache; that of the weights if not given.
    pub kv_cache_dtype: Option<DType>,
    /// Longest sequence in tokens; as long as model and memory allow if not given.
    pub max_total_tokens: Option<usize>,
    /// KV cache in tokens; as many as the memory allows if not given.
    pub max_batch_total_tokens: Option<usize>,
    /// After a loss: what the lost shard could hold. The new one gets the same, if the memory comes back.
    pub kept_pool: Option<KeptPool>,
    /// The share of the device's free memory that counts as free, above 0 and up to 1.
    pub memory_fraction: f64,
    /// Tokens of one step.
    pub max_step_tokens: usize,
    /// Sequences at once.
    pub max_sequences: usize,
    /// Tokens per block of the KV cache.
    pub block_size: usize,
    /// Rows of the decode steps that a card records; sizes up to `max_sequences` if not given.
    pub graph_sizes: Option<Vec<usize>>,
    /// On cards: results of a sequence do not depend on what else is computed with it, bit by bit, at some cost in speed. On the processor it is
    /// always so.
    pub batch_invariant: bool,
    /// Threads of the CPU backend; one per core if not given.
    pub threads: Option<usize>,
    /// End the process as soon as its standard input is closed, so that it never outlives its parent.
    pub lifeline: bool,
}
