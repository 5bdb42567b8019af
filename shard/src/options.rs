//! The options of a shard process.
//!
//! [`ShardOptions`] are the same for all ranks of a machine. They travel from the launcher to
//! `millrace shard` as one JSON message. A [`RankPlacement`] is one process's own: its rank, and
//! the address of the router.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use millrace_backend::KvFormat;
use millrace_model::{Quantize, QuantizeRequest};
use millrace_numbers::DType;
use millrace_proto::handshake::Secret;
use serde::{Deserialize, Serialize};

use crate::collective::Transport;

/// The address at which the router listens for its shards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RouterAddress {
    /// The path of a Unix socket.
    Unix(PathBuf),
    /// `host:port`.
    Tcp(String),
}

impl fmt::Display for RouterAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RouterAddress::Unix(path) => path.display().fmt(f),
            RouterAddress::Tcp(address) => f.write_str(address),
        }
    }
}

/// The kind of device that computes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeviceKind {
    /// The CPU.
    Cpu,
    /// NVIDIA GPUs. Rank r of a host uses GPU number r of those that `CUDA_VISIBLE_DEVICES` shows.
    Cuda,
    /// A simulated GPU for each rank.
    #[cfg(feature = "cpu-sim")]
    CudaSim,
    /// No device. The shard answers each step with made-up tokens after a modelled time, which
    /// measures everything but the model.
    Null(NullOptions),
}

/// The options of a shard without a device.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NullOptions {
    /// The modelled costs of a step. If all are zero, steps are answered at once.
    pub costs: NullCosts,
    /// A file that gets one line of JSON for each step.
    pub log: Option<PathBuf>,
}

/// The modelled costs of a step, which are added up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NullCosts {
    /// Cost of a step, whatever it computes.
    pub step: Duration,
    /// Cost of each token.
    pub token: Duration,
    /// Cost of each key that each token attends to.
    pub key: Duration,
}

/// The method by which GPUs exchange activations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AllReduce {
    /// The fastest available method for each message size.
    Auto,
    /// NCCL only.
    Nccl,
    /// Peer memory only: each GPU reads and writes the memory of the others.
    Peer,
}

/// The size of the KV pool that a lost shard had. The shard that replaces it gets a pool of the
/// same size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PreviousPool {
    /// Number of tokens in the pool.
    pub tokens: usize,
    /// Number of tokens of the longest sequence.
    pub longest_sequence: usize,
    /// Time that the new shard waits for the memory of the lost shard to become free.
    pub wait: Duration,
}

/// The place of one shard process in its group.
#[derive(Debug, Clone, PartialEq)]
pub struct RankPlacement {
    /// Address of the router.
    pub address: RouterAddress,
    /// Secret of the group, for a router on another machine. Only used over TCP.
    pub secret: Option<Secret>,
    /// Number of this shard, from 0.
    pub rank: usize,
    /// Number of shards.
    pub world_size: usize,
    /// The KV pool of the lost shard that this one replaces.
    pub previous_pool: Option<PreviousPool>,
    /// Whether the process ends as soon as its standard input is closed, so that it never outlives
    /// its parent.
    pub lifeline: bool,
}

/// The memory that a shard may take of its GPU.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GpuMemory {
    /// A number of bytes.
    Bytes(usize),
    /// A share of the free memory, above 0 and up to 1.
    Share(f64),
}

impl GpuMemory {
    /// Returns the bytes on a device with this much free memory. Returns `None` for a share of
    /// memory whose size is unknown.
    pub fn bytes(self, free: Option<usize>) -> Option<usize> {
        match self {
            GpuMemory::Bytes(bytes) => Some(bytes),
            GpuMemory::Share(share) => Some((free? as f64 * share) as usize),
        }
    }
}

/// The place of a group of ranks among the groups of one router. Each group has the whole model,
/// and as many ranks as the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Replica {
    /// The number of this group, from 0.
    pub index: usize,
    /// Number of groups.
    pub count: usize,
}

impl Default for Replica {
    /// The only group.
    fn default() -> Self {
        Replica { index: 0, count: 1 }
    }
}

impl ShardOptions {
    /// Returns the number of a rank among all ranks of this host, whatever their group.
    pub(crate) fn place_on_host(&self, rank: usize) -> usize {
        let each = self.host_ranks.max(1);
        self.replica.index * each + rank % each
    }

    /// Returns the number of ranks of all groups on this host.
    pub(crate) fn places_on_host(&self) -> usize {
        self.host_ranks.max(1) * self.replica.count.max(1)
    }
}

/// The options that all ranks of a machine share.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShardOptions {
    /// The kind of device that computes.
    pub device: DeviceKind,
    /// Number of ranks on this host, whose numbers follow each other. They share the memory and the
    /// cores of the host.
    pub host_ranks: usize,
    /// The place of the group of ranks among those of one router on this host.
    pub replica: Replica,
    /// Whether each rank has some of the layers (pipeline parallel) instead of a share of each one
    /// (tensor parallel).
    pub pipeline: bool,
    /// Transport of the collectives over host memory.
    pub transport: Transport,
    /// The method by which GPUs exchange activations.
    pub all_reduce: AllReduce,
    /// Number of ranks that share a GPU. More than 1 is for tests.
    pub ranks_per_gpu: usize,
    /// Time limit of a rank that waits for another in the middle of a step.
    pub collective_timeout: Duration,
    /// Element type of the weights in memory. If absent, that of the checkpoint.
    #[serde(with = "dtype_name")]
    pub dtype: Option<DType>,
    /// Quantization of the matrices of the layers at load time.
    pub quantize: Option<Quantize>,
    /// Whether the head is never quantized.
    pub dense_head: bool,
    /// Whether the CPU multiplies activations in full precision instead of rounding them to bf16,
    /// or to bytes for weights that are integers.
    pub exact_activations: bool,
    /// Cache of packed weights on the CPU, if there is to be one.
    pub weight_cache: Option<WeightCacheOptions>,
    /// Cache of evicted blocks on disk, if there is to be one.
    pub disk_cache: Option<DiskCacheOptions>,
    /// Format of the KV cache. If absent, the type of the weights.
    #[serde(with = "kv_format_name")]
    pub kv_cache_dtype: Option<KvFormat>,
    /// Number of tokens of the longest sequence. If absent, as many as the model and the memory
    /// allow.
    pub max_total_tokens: Option<usize>,
    /// Number of tokens in the KV cache. If absent, as many as the memory allows.
    pub max_batch_total_tokens: Option<usize>,
    /// The share of the device's free memory that the shard may use, above 0 and up to 1.
    pub memory_fraction: f64,
    /// The memory that the shard may take of its GPU, if it is bounded. The host computes the
    /// layers that do not fit.
    pub gpu_memory: Option<GpuMemory>,
    /// Host memory for evicted blocks of the KV caches of all ranks together, in bytes, if there is
    /// to be any. Only a device with memory of its own can use it.
    pub host_cache_bytes: Option<u64>,
    /// Maximum number of tokens in one step.
    pub max_step_tokens: usize,
    /// Maximum number of sequences at once.
    pub max_sequences: usize,
    /// Number of tokens per block of the KV cache.
    pub block_size: usize,
    /// Number of checkpoints of recurrent states. If absent, the usual number.
    pub state_checkpoints: Option<usize>,
    /// Maximum number of drafts of all rows of one step together.
    pub max_drafts: usize,
    /// The adapters of the model.
    pub adapters: AdapterOptions,
    /// Numbers of rows of the decode steps that a GPU records as graphs. If absent, sizes up to
    /// `max_sequences`.
    pub graph_sizes: Option<Vec<usize>>,
    /// Whether the results of a sequence are independent of the rest of the batch, bit by bit, at
    /// some cost in speed. Only GPUs have the choice: results of the CPU are always independent.
    pub batch_invariant: bool,
    /// Number of threads of the CPU backend. If absent, one per physical core.
    pub threads: Option<usize>,
}

impl ShardOptions {
    /// Returns the quantization that is asked for.
    pub(crate) fn quantize_request(&self) -> QuantizeRequest {
        QuantizeRequest { layers: self.quantize, dense_head: self.dense_head }
    }
}

impl Default for ShardOptions {
    /// Returns the options of the only rank of a model on the CPU, with the server's defaults.
    fn default() -> Self {
        ShardOptions {
            device: DeviceKind::Cpu,
            host_ranks: 1,
            replica: Replica::default(),
            pipeline: false,
            transport: Transport::Shm,
            all_reduce: AllReduce::Auto,
            ranks_per_gpu: 1,
            collective_timeout: Duration::from_secs(30),
            dtype: None,
            quantize: None,
            dense_head: false,
            exact_activations: false,
            weight_cache: None,
            disk_cache: None,
            kv_cache_dtype: None,
            max_total_tokens: None,
            max_batch_total_tokens: None,
            memory_fraction: 1.0,
            gpu_memory: None,
            host_cache_bytes: None,
            max_step_tokens: 512,
            max_sequences: 64,
            block_size: 16,
            state_checkpoints: None,
            max_drafts: 0,
            adapters: AdapterOptions::default(),
            graph_sizes: None,
            batch_invariant: false,
            threads: None,
        }
    }
}

/// The adapters that a shard has room for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdapterOptions {
    /// The folders of the adapters that the router loads first, by their index.
    pub folders: Vec<PathBuf>,
    /// Number of places in the pools.
    pub places: usize,
    /// Maximum number of adapters that are loaded, at least `places`. If it is larger, all of them
    /// are kept in host memory.
    pub max_loaded: usize,
    /// The largest rank that a matrix of an adapter may have.
    pub max_rank: usize,
}

/// A cache of packed weights, which makes the next start faster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WeightCacheOptions {
    /// The folder of the cache.
    pub folder: PathBuf,
    /// Whether weights stay in the mapped file instead of being copied to memory of the process.
    pub map: bool,
}

/// A cache of evicted blocks of the KV cache in files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskCacheOptions {
    /// The folder of the files.
    pub folder: PathBuf,
    /// Maximum size of the files of all ranks together, in bytes.
    pub bytes: u64,
    /// A name of this run of the server. Files of another run are not used. If absent, files of
    /// earlier runs are used.
    pub run: Option<String>,
}

/// Writes an element type as its name.
mod dtype_name {
    use millrace_numbers::DType;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(dtype: &Option<DType>, to: S) -> Result<S::Ok, S::Error> {
        dtype.map(DType::name).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<DType>, D::Error> {
        let Some(name) = Option::<String>::deserialize(from)? else { return Ok(None) };
        let known = [DType::F32, DType::F16, DType::BF16].into_iter().find(|dtype| dtype.name() == name);
        known.map(Some).ok_or_else(|| D::Error::custom(format_args!("unknown element type {name}")))
    }
}

/// Writes a format of the KV cache as its name.
mod kv_format_name {
    use millrace_backend::KvFormat;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(format: &Option<KvFormat>, to: S) -> Result<S::Ok, S::Error> {
        format.map(KvFormat::name).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<KvFormat>, D::Error> {
        let Some(name) = Option::<String>::deserialize(from)? else { return Ok(None) };
        let known = KvFormat::ALL.into_iter().find(|format| format.name() == name);
        known.map(Some).ok_or_else(|| D::Error::custom(format_args!("unknown format of the KV cache {name}")))
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv6Addr};

    use super::*;

    fn options() -> ShardOptions {
        ShardOptions {
            device: DeviceKind::Null(NullOptions {
                costs: NullCosts { step: Duration::from_micros(1500), ..NullCosts::default() },
                log: Some("steps.jsonl".into()),
            }),
            host_ranks: 2,
            replica: Replica { index: 1, count: 3 },
            pipeline: true,
            transport: Transport::Tcp(IpAddr::V6(Ipv6Addr::LOCALHOST)),
            all_reduce: AllReduce::Peer,
            ranks_per_gpu: 3,
            collective_timeout: Duration::from_secs_f64(0.25),
            dtype: Some(DType::BF16),
            quantize: Some(Quantize::Fp8),
            dense_head: true,
            exact_activations: true,
            weight_cache: Some(WeightCacheOptions { folder: "/var/cache/weights".into(), map: true }),
            disk_cache: Some(DiskCacheOptions {
                folder: "/var/cache/kv".into(),
                bytes: 1 << 40,
                run: Some("7".into()),
            }),
            kv_cache_dtype: None,
            max_total_tokens: Some(4096),
            max_batch_total_tokens: None,
            memory_fraction: 0.9,
            gpu_memory: Some(GpuMemory::Share(0.25)),
            host_cache_bytes: Some(1 << 37),
            max_step_tokens: 576,
            max_sequences: 64,
            block_size: 16,
            state_checkpoints: Some(4),
            max_drafts: 12,
            adapters: AdapterOptions {
                folders: vec!["/adapters/polite".into()],
                places: 3,
                max_loaded: 9,
                max_rank: 64,
            },
            graph_sizes: Some(vec![1, 8]),
            batch_invariant: true,
            threads: None,
        }
    }

    #[test]
    fn options_survive_the_message() {
        let bytes = Some(GpuMemory::Bytes(6_000_000_000));
        let other = ShardOptions { transport: Transport::Shm, dtype: None, gpu_memory: bytes, ..options() };
        for options in [options(), other] {
            let text = serde_json::to_string(&options).unwrap();
            assert_eq!(serde_json::from_str::<ShardOptions>(&text).unwrap(), options, "{text}");
        }
    }

    /// A message of another version must not be read as if the field were absent.
    #[test]
    fn unknown_fields_and_names_are_refused() {
        let text = serde_json::to_string(&options()).unwrap();
        let with_unknown_field = text.replacen('{', r#"{"speed":1,"#, 1);
        let error = serde_json::from_str::<ShardOptions>(&with_unknown_field).unwrap_err().to_string();
        assert!(error.contains("unknown field `speed`"), "{error}");
        let error = serde_json::from_str::<ShardOptions>(&text.replace("bfloat16", "int4")).unwrap_err();
        assert!(error.to_string().contains("unknown element type int4"), "{error}");
    }
}
