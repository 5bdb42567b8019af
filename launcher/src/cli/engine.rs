//! Flags of the engine: devices, batches and timeouts.

use std::time::Duration;

use clap::Args;
use millrace_shard::{AllReduce, DeviceKind, GpuMemory};

use super::speculation::{DraftModelName, MAX_DRAFTS, MODEL_DRAFTS, Speculation, speculative_config};
use super::values::{bytes, count, gpu_memory, milliseconds, seconds, share, state_checkpoints};
use super::{AllReduceArg, DeviceArg, NullArgs, ScheduleArg};

/// Most groups of shards of one router.
const MAX_REPLICAS: i64 = 64;

/// Flags of the engine: devices, batches and timeouts.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Engine")]
pub(crate) struct EngineArgs {
    /// Device that runs the model; `auto` uses the GPUs that CUDA_VISIBLE_DEVICES lists, or the CPU
    /// if no GPU is usable
    #[arg(long, env = "DEVICE", default_value = "auto")]
    pub(crate) device: DeviceArg,
    /// Number of processes that share the model (tensor parallelism); with --nnodes, on all
    /// machines together. If absent, one for each machine on CPUs, and on GPUs as many as the
    /// model can be split over
    #[arg(long, visible_alias = "tensor-parallel-size", env = "NUM_SHARD", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) num_shard: Option<u32>,
    /// Number of processes that share the model by layers (pipeline parallel): each computes its
    /// layers and passes hidden states on. Not together with --num-shard
    #[arg(long, visible_alias = "pipeline-parallel-size", env = "PIPELINE_PARALLEL", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) pipeline_parallel: Option<u32>,
    /// Number of groups of shards, each with a copy of the whole model. Requests go to the group
    /// that has their prefix, unless it has much more to do, and continue on the others when a
    /// group is lost or restarted (`millrace restart-groups`). Each group needs --num-shard GPUs;
    /// on the CPU, the groups share cores and memory
    #[arg(long, visible_alias = "data-parallel-size", env = "REPLICAS", default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=MAX_REPLICAS))]
    pub(crate) replicas: u32,
    /// Transport of activations between GPUs: `nccl`, `peer` (each GPU accesses the memory of the
    /// others), or `auto`, which uses for each message size the one that was faster in a
    /// measurement at the start
    #[arg(long, env = "ALL_REDUCE", default_value = "auto")]
    pub(crate) all_reduce: AllReduceArg,
    /// vLLM's flag for `--all-reduce nccl`
    #[arg(long, hide = true, conflicts_with = "all_reduce")]
    pub(crate) disable_custom_all_reduce: bool,
    /// Shards that share each GPU, for tests on machines with one GPU
    #[arg(long, default_value_t = 1, value_name = "N", hide = true, value_parser = clap::value_parser!(u32).range(1..=8))]
    pub(crate) ranks_per_gpu: u32,
    /// Modelled device of `--device null`.
    #[command(flatten)]
    pub(crate) null: NullArgs,
    /// Compute threads of each shard on the CPU: two shards with 4 threads each use 8 cores. If
    /// absent, an equal share of the physical cores
    #[arg(long, visible_alias = "threads", env = "CPUS_PER_SHARD", value_name = "N", value_parser = count())]
    pub(crate) cpus_per_shard: Option<usize>,
    /// Target for the time between two tokens of a stream, in milliseconds: prompts extend the
    /// steps of running streams up to this time, and up to twice the time of a step without prompts
    /// in any case. If absent, 50 on a GPU and 5 on the CPU
    #[arg(long, env = "TARGET_ITL", value_name = "MILLISECONDS", value_parser = milliseconds)]
    pub(crate) target_itl: Option<f64>,
    /// Limit of the prompt tokens in a step. Smaller values need less memory; while streams run,
    /// --target-itl is usually the stricter limit. If absent, 2048 on a GPU and 512 on the CPU
    #[arg(long, env = "MAX_BATCH_PREFILL_TOKENS", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_batch_prefill_tokens: Option<u32>,
    /// Capacity of the KV cache in tokens; computed from the free memory if absent. On the CPU, it
    /// is then at most half of the free memory, and at most 16 GiB
    #[arg(long, env = "MAX_BATCH_TOTAL_TOKENS", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_batch_total_tokens: Option<u32>,
    /// Share of the device's free memory that may be used; the KV cache takes what weights and
    /// buffers leave of it
    #[arg(long, env = "CUDA_MEMORY_FRACTION", default_value_t = 1.0, value_name = "SHARE", value_parser = share)]
    pub(crate) cuda_memory_fraction: f64,
    /// Memory that is taken of the GPU at most, such as 6G, or a share of its free memory, such as
    /// 0.5. The CPU computes the layers that do not fit
    #[arg(long, env = "GPU_MEMORY", value_name = "SIZE", value_parser = gpu_memory)]
    pub(crate) gpu_memory: Option<GpuMemory>,
    /// Host memory for prefixes that leave the KV caches of the GPUs, such as 200G: they are copied
    /// back from there instead of being computed again
    #[arg(long, env = "KV_HOST_MEMORY", value_name = "SIZE", value_parser = bytes)]
    pub(crate) kv_host_memory: Option<usize>,
    /// Limit of the sequences in a step. If absent, 256 on a GPU and 64 on the CPU
    #[arg(long, visible_aliases = ["max-num-seqs", "parallel"], env = "MAX_BATCH_SIZE", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_batch_size: Option<u32>,
    /// Batch sizes whose decode steps are recorded as CUDA graphs, such as 1,8,32; 0 for none. If
    /// absent, usual sizes up to --max-batch-size
    #[arg(long, env = "CUDA_GRAPHS", value_name = "SIZES", value_delimiter = ',')]
    pub(crate) cuda_graphs: Option<Vec<usize>>,
    /// Limit of the tokens of a sequence, prompt and answer together; the model's limit if absent
    #[arg(long, visible_aliases = ["max-model-len", "ctx-size"], visible_short_alias = 'c', env = "MAX_TOTAL_TOKENS", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_total_tokens: Option<u32>,
    /// Keep the KV cache of prompts and share it with later prompts that have the same prefix
    #[arg(long, env = "PREFIX_CACHING", default_value_t = true, action = clap::ArgAction::Set, value_name = "true|false",
          value_parser = clap::builder::BoolishValueParser::new())]
    pub(crate) prefix_caching: bool,
    /// Checkpoints of recurrent states, with which later prompts that have the same prefix begin,
    /// and to which a sequence goes back after a wrong guess (--speculate); `off` for none. Each
    /// takes as much memory as the states of a sequence. If absent, one for each sequence of
    /// --max-batch-size, but not more than 32
    #[arg(long, env = "STATE_CHECKPOINTS", value_name = "N|off", value_parser = state_checkpoints)]
    pub(crate) state_checkpoints: Option<u32>,
    /// Guess up to N tokens of an answer from what its text and its prompt repeat, and verify them
    /// in one step. The text stays the same. 0 for none. With --draft-model, 8 if absent
    #[arg(long, visible_aliases = ["num-speculative-tokens", "draft-max"], env = "SPECULATE", value_name = "N", value_parser = clap::value_parser!(u32).range(..=i64::from(MAX_DRAFTS)))]
    speculate: Option<u32>,
    /// A smaller model with the same tokens, which guesses instead of what is repeated: a folder, a
    /// GGUF file, or a repository of the hub. On the CPU, with one shard
    #[arg(long, visible_alias = "model-draft", env = "DRAFT_MODEL", value_name = "MODEL")]
    draft_model: Option<String>,
    /// vLLM's flag for --speculate and --draft-model, such as '{"method": "ngram",
    /// "num_speculative_tokens": 4}' or '{"model": "org/small", "num_speculative_tokens": 4}'. The
    /// method `suffix` also guesses from the answers to earlier requests, and with `mtp` the
    /// model's own head guesses, which predicts further tokens (Qwen3.5, DeepSeek-V3, GLM-4.5)
    #[arg(long, env = "SPECULATIVE_CONFIG", value_name = "JSON", conflicts_with_all = ["speculate", "draft_model"], value_parser = speculative_config)]
    speculative_config: Option<Speculation>,
    /// Verify as many guesses as there are, for tests and measurements. Otherwise a step has them
    /// only if they are expected to raise the tokens per second
    #[arg(long, hide = true)]
    pub(crate) speculate_always: bool,
    /// The request of the first ones in the queue that starts first: the one that came first
    /// (`fcfs`), or the one with the longest prefix in the prefix cache (`lpm`)
    #[arg(long, env = "SCHEDULE", default_value = "fcfs", value_name = "fcfs|lpm")]
    pub(crate) schedule: ScheduleArg,
    /// On GPUs, compute a sequence with the same algorithms whatever else is in the batch, which
    /// costs some speed. The CPU backend always does
    #[arg(long, env = "BATCH_INVARIANT", value_parser = clap::builder::BoolishValueParser::new())]
    pub(crate) batch_invariant: bool,
    /// Seconds after which a step counts as hung and the shards are restarted; if absent, the
    /// larger of 120 and eight times the duration that earlier steps predict
    #[arg(long, env = "STEP_TIMEOUT", value_name = "SECONDS", value_parser = seconds)]
    pub(crate) step_timeout: Option<f64>,
    /// Seconds without a heartbeat after which a shard counts as lost
    #[arg(long, env = "HEARTBEAT_TIMEOUT", default_value_t = 2.0, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) heartbeat_timeout: f64,
    /// Seconds that a shard waits for another in the middle of a step
    #[arg(long, env = "COLLECTIVE_TIMEOUT", default_value_t = 60.0, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) collective_timeout: f64,
    /// Losses of shards in a row, without a token in between, after which the server gives up once
    /// --shard-failure-window is over. With 1 it gives up at the first loss
    #[arg(long, env = "MAX_SHARD_FAILURES", default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_shard_failures: u32,
    /// Seconds since the first of these losses in which shards are always restarted, with growing
    /// pauses. Ten times as long if the system lacks memory, processes or open files for them
    #[arg(long, env = "SHARD_FAILURE_WINDOW", default_value_t = 60.0, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) shard_failure_window: f64,
}

impl EngineArgs {
    /// Returns the transport of activations between GPUs.
    pub(crate) fn all_reduce(&self) -> AllReduce {
        match self.all_reduce {
            _ if self.disable_custom_all_reduce => AllReduce::Nccl,
            AllReduceArg::Auto => AllReduce::Auto,
            AllReduceArg::Nccl => AllReduce::Nccl,
            AllReduceArg::Peer => AllReduce::Peer,
        }
    }

    /// Returns the number of groups of shards.
    pub(crate) fn replicas(&self) -> usize {
        self.replicas as usize
    }

    /// Returns whether each shard has some of the layers instead of a share of each one.
    pub(crate) fn is_pipeline(&self) -> bool {
        self.pipeline_parallel.is_some_and(|ranks| ranks > 1)
    }

    /// Returns the number of shards on all machines together.
    pub(crate) fn num_shard(&self) -> usize {
        self.num_shard.unwrap_or(1) as usize
    }

    /// Returns the device.
    pub(crate) fn device(&self) -> DeviceKind {
        self.device.kind(|| self.null.options())
    }

    /// Returns the number of checkpoints of recurrent states, if it is given. The prefix cache uses
    /// them alone.
    pub(crate) fn state_checkpoints(&self) -> Option<usize> {
        // Without a prefix cache, only drafts need some.
        let is_used = self.prefix_caching || self.drafts() > 0;
        if is_used { self.state_checkpoints.map(|n| n as usize) } else { Some(0) }
    }

    /// Returns the maximum number of drafts of a row.
    pub(crate) fn drafts(&self) -> usize {
        let usual = if self.draft_model.is_some() { MODEL_DRAFTS } else { 0 };
        let config = self.speculative_config.as_ref().map(|config| config.drafts);
        config.or(self.speculate).unwrap_or(usual) as usize
    }

    /// Returns the model that guesses, if there is to be one.
    pub(crate) fn draft_model(&self) -> Option<DraftModelName> {
        let config = self.speculative_config.as_ref().and_then(|config| config.draft_model.clone());
        config.or_else(|| self.draft_model.clone().map(DraftModelName::new))
    }

    /// Returns whether the model's own head is to guess.
    pub(crate) fn uses_mtp(&self) -> bool {
        self.speculative_config.as_ref().is_some_and(|config| config.mtp)
    }

    /// Replaces the name of the draft model by the path of its files.
    pub(crate) fn set_draft_model(&mut self, path: String) {
        match self.speculative_config.as_mut().and_then(|config| config.draft_model.as_mut()) {
            Some(named) => named.name = path,
            None => self.draft_model = Some(path),
        }
    }

    /// Returns the number of tokens of ended answers in which drafts are looked for as well.
    pub(crate) fn earlier_tokens(&self) -> usize {
        self.speculative_config.as_ref().map_or(0, |config| config.earlier_tokens)
    }

    /// Returns the maximum number of drafts of all rows of a step together.
    pub(crate) fn max_drafts(&self) -> usize {
        self.drafts() * DRAFTED_ROWS.min(self.max_sequences()) as usize
    }

    /// Returns the limit of sequences in a step.
    pub(crate) fn max_sequences(&self) -> u32 {
        self.max_batch_size.unwrap_or(if self.is_gpu() { GPU_BATCH } else { 64 })
    }

    /// Returns the limit of requests at a time, if no flag sets it: some more than the sequences of
    /// a step.
    pub(crate) fn most_requests(&self) -> usize {
        self.replicas() * if self.is_gpu() { 512 } else { 128 }
    }

    /// Returns the limit of tokens in a step: a full batch of decode rows and the prompt tokens.
    pub(crate) fn max_step_tokens(&self) -> u32 {
        let prefill =
            self.max_batch_prefill_tokens.unwrap_or(if self.is_gpu() { GPU_PREFILL_TOKENS } else { 512 });
        prefill.saturating_add(self.max_sequences())
    }

    /// Returns the target for the time between two tokens of a stream.
    pub(crate) fn target_itl(&self) -> Duration {
        let default = if self.is_gpu() { 50.0 } else { 5.0 };
        Duration::from_secs_f64(self.target_itl.unwrap_or(default) / 1e3)
    }

    /// Returns whether the shards run on GPUs. Simulated GPUs are slower than the CPU.
    fn is_gpu(&self) -> bool {
        matches!(self.device(), DeviceKind::Cuda)
    }
}

/// The limit of sequences in a step on a GPU, if no flag sets it. Llama 8B on an H200 generates 17%
/// more tokens per second than with half as many.
pub(crate) const GPU_BATCH: u32 = 256;

/// Number of rows of a step that can have the largest number of drafts. With more rows a step takes
/// long enough that few drafts are worth their time.
const DRAFTED_ROWS: u32 = 8;

/// The limit of prompt tokens in a step on a GPU, if no flag sets it.
pub(crate) const GPU_PREFILL_TOKENS: u32 = 2048;
