//! The command line. Flags and environment variables are those of text-generation-inference where it has one.

mod bench;
mod http;
mod plan;
mod tgi;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use millrace_shard::collective::Wire;
use millrace_shard::families::{Overrides, RopeKind};
use millrace_shard::{AllReduce, DType, Device, Quantize};

pub(crate) use bench::{BenchHttpArgs, BenchRoute};
pub(crate) use http::{GenerationConfig, HttpArgs};
pub(crate) use plan::PlanArgs;
pub(crate) use tgi::TgiArgs;

use crate::nodes::NodesArgs;
use crate::telemetry::TelemetryArgs;

/// An LLM inference server: continuous batching, paged KV cache, streamed tokens over HTTP.
#[derive(Debug, Parser)]
#[command(version, about, after_help = EXAMPLES, arg_required_else_help = true)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXAMPLES: &str = "\
Examples:
  millrace serve                                   serve the built-in demo model on 127.0.0.1:3000
  millrace serve ./Llama-3.2-1B                    serve a model folder in Hugging Face layout
  millrace chat                                    talk to the demo model in the terminal
  millrace generate 'Once upon a time'             continue a text and exit
  millrace inspect --model-id ./Llama-3.2-1B       what is in a checkpoint and the memory it needs
  millrace inspect --num-shard 1,2,4 --gpu h200    what more GPUs would bring
  millrace serve --config millrace.toml            flags from a file: port = 8080, api-key = [\"…\"]
  millrace bench-http --concurrency 1,8,32         load test of any server that speaks OpenAI's API

  curl -N 127.0.0.1:3000/generate_stream -H 'content-type: application/json' \\
       -d '{\"inputs\": \"Once upon a time\", \"parameters\": {\"max_new_tokens\": 60}}'

Every flag of `serve` can also be set by the environment variable named in its help.";

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve a model over HTTP (TGI's and OpenAI's APIs)
    Serve(Box<ServeArgs>),
    /// Talk to a model in the terminal, with history
    Chat(Box<ChatArgs>),
    /// Continue a prompt, print the text and exit
    Generate(Box<GenerateArgs>),
    /// Show what is in a checkpoint, the memory it needs, and what several devices would make of it
    Inspect(Box<InspectArgs>),
    /// Load test of a server that speaks OpenAI's API: latencies and throughput
    BenchHttp(Box<BenchHttpArgs>),
    /// Print version, machine and settings for a bug report
    Env,
    /// Print the description of the HTTP API (OpenAPI, JSON)
    PrintSchema,
    /// Say which NVIDIA driver, cards and libraries are found, what is missing and how to get it
    Doctor,
    /// Print how many cards can be used, or why none (started by the other commands)
    #[command(hide = true)]
    Cards,
    /// Try grammars of clients for a router, under limits of time and memory (started by the other commands)
    #[command(hide = true)]
    GrammarWorker,
    /// Compute one rank of a model for a router (started by the other commands)
    #[command(hide = true)]
    Shard(Box<ShardArgs>),
}

/// Which model, and how it is held in memory.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Model")]
pub(crate) struct ModelArgs {
    /// A folder in Hugging Face layout, a repository name that is in the local Hugging Face cache, or `demo` for the
    /// model built into this binary
    #[arg(
        long,
        short,
        visible_alias = "model",
        env = "MODEL_ID",
        default_value = "demo",
        value_name = "FOLDER|NAME|demo"
    )]
    pub(crate) model_id: String,
    /// Branch, tag or commit of a repository in the local Hugging Face cache
    #[arg(long, env = "REVISION", default_value = "main")]
    pub(crate) revision: String,
    /// Folder of the local Hugging Face cache; else HUGGINGFACE_HUB_CACHE, HF_HUB_CACHE or HF_HOME say where it is
    #[arg(long, value_name = "FOLDER")]
    pub(crate) huggingface_hub_cache: Option<PathBuf>,
    /// TGI's: goes before --huggingface-hub-cache
    #[arg(long, env = "WEIGHTS_CACHE_OVERRIDE", hide = true)]
    pub(crate) weights_cache_override: Option<PathBuf>,
    /// File in the form of tokenizer_config.json whose chat template and begin and end tokens are used instead of the model's
    #[arg(long, env = "TOKENIZER_CONFIG_PATH", value_name = "PATH")]
    pub(crate) tokenizer_config_path: Option<PathBuf>,
    /// Element type of the weights in memory; the checkpoint's own when absent
    #[arg(long, env = "DTYPE")]
    pub(crate) dtype: Option<DTypeArg>,
    /// Element type of the KV cache; that of the weights when absent
    #[arg(long, env = "KV_CACHE_DTYPE")]
    pub(crate) kv_cache_dtype: Option<DTypeArg>,
    /// Keep the matrices of the layers (QKV, output, gate, up, down) in 8 bits, quantised while they are loaded; on cards
    #[arg(long, env = "QUANTIZE", value_name = "fp8", value_parser = quantize)]
    pub(crate) quantize: Option<QuantizeArg>,
    /// Stretch rotary positions beyond those of config.json, by --rope-factor
    #[arg(long, env = "ROPE_SCALING", requires = "rope_factor")]
    pub(crate) rope_scaling: Option<RopeScalingArg>,
    /// How far --rope-scaling stretches positions
    #[arg(long, env = "ROPE_FACTOR", requires = "rope_scaling", value_name = "FACTOR", value_parser = rope_factor)]
    pub(crate) rope_factor: Option<f64>,
    /// Where weights come from: `auto` reads the checkpoint, `dummy` makes random ones from config.json alone
    #[arg(long, env = "LOAD_FORMAT", default_value = "auto")]
    pub(crate) load_format: LoadFormat,
}

/// How much is computed and held at once.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Engine")]
pub(crate) struct EngineArgs {
    /// What computes the model; `auto` is the cards that CUDA_VISIBLE_DEVICES shows, or the processor if none can be used
    #[arg(long, env = "DEVICE", default_value = "auto")]
    pub(crate) device: DeviceArg,
    /// Processes that the model is split over (tensor parallelism); with --nnodes, those of all machines together. When absent, 1 on
    /// the processor, and on cards as many as there are and the model can be split over
    #[arg(long, visible_alias = "tensor-parallel-size", env = "NUM_SHARD", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) num_shard: Option<u32>,
    /// What carries activations between cards: NCCL, the memory of peers, which each card then reads and writes, or for each
    /// message what a measurement at the start found faster
    #[arg(long, env = "ALL_REDUCE", default_value = "auto")]
    pub(crate) all_reduce: AllReduceArg,
    /// vLLM's name for `--all-reduce nccl`
    #[arg(long, hide = true, conflicts_with = "all_reduce")]
    pub(crate) disable_custom_all_reduce: bool,
    /// Shards that share each card, for tests on machines with one
    #[arg(long, default_value_t = 1, value_name = "N", hide = true, value_parser = clap::value_parser!(u32).range(1..=8))]
    pub(crate) ranks_per_card: u32,
    /// Microseconds that a step takes on `--device null`
    #[arg(long, default_value_t = 0, value_name = "N", hide = true)]
    pub(crate) null_step_micros: u32,
    /// Threads that each shard computes with, on cores of its own if there are several; an equal share of all cores when
    /// absent
    #[arg(long, env = "CPUS_PER_SHARD", value_name = "N")]
    pub(crate) cpus_per_shard: Option<usize>,
    /// Prompt tokens computed per step: a larger number fills prompts faster, a smaller one delays running streams less
    #[arg(long, env = "MAX_BATCH_PREFILL_TOKENS", default_value_t = 512, value_name = "N")]
    pub(crate) max_batch_prefill_tokens: u32,
    /// Tokens that the KV cache can hold; computed from the free memory when absent
    #[arg(long, env = "MAX_BATCH_TOTAL_TOKENS", value_name = "N")]
    pub(crate) max_batch_total_tokens: Option<u32>,
    /// Share of the device's free memory that may be used; the KV cache is what this leaves when its size is not given
    #[arg(long, env = "CUDA_MEMORY_FRACTION", default_value_t = 1.0, value_name = "SHARE", value_parser = share)]
    pub(crate) cuda_memory_fraction: f64,
    /// Sequences computed per step
    #[arg(long, visible_aliases = ["max-num-seqs", "parallel"], env = "MAX_BATCH_SIZE", default_value_t = 64, value_name = "N")]
    pub(crate) max_batch_size: u32,
    /// Batch sizes whose decode steps are recorded as CUDA graphs, such as 1,8,32; 0 for none; sizes up to --max-batch-size when absent
    #[arg(long, env = "CUDA_GRAPHS", value_name = "SIZES", value_delimiter = ',')]
    pub(crate) cuda_graphs: Option<Vec<usize>>,
    /// Prompt and generated tokens of one sequence; the model's own limit when absent
    #[arg(long, visible_aliases = ["max-model-len", "ctx-size"], visible_short_alias = 'c', env = "MAX_TOTAL_TOKENS", value_name = "N")]
    pub(crate) max_total_tokens: Option<u32>,
    /// Keep what was computed for a prompt and share it with prompts that begin alike
    #[arg(long, env = "PREFIX_CACHING", default_value_t = true, action = clap::ArgAction::Set, value_name = "true|false",
          value_parser = clap::builder::BoolishValueParser::new())]
    pub(crate) prefix_caching: bool,
    /// On cards: compute a sequence's tokens by the same algorithm whatever else is in the batch, at some cost in speed; on the processor it is
    /// always so
    #[arg(long, env = "BATCH_INVARIANT", value_parser = clap::builder::BoolishValueParser::new())]
    pub(crate) batch_invariant: bool,
    /// Seconds that one step may take before the shards count as hung and are started again; when absent, 120 or eight times what
    /// the steps before it predict, whichever is more
    #[arg(long, env = "STEP_TIMEOUT", value_name = "SECONDS", value_parser = seconds)]
    pub(crate) step_timeout: Option<f64>,
    /// Seconds after which a shard that gives no sign of life counts as lost
    #[arg(long, env = "HEARTBEAT_TIMEOUT", default_value_t = 2.0, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) heartbeat_timeout: f64,
    /// Seconds that a shard waits for another in the middle of a step
    #[arg(long, env = "COLLECTIVE_TIMEOUT", default_value_t = 60.0, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) collective_timeout: f64,
    /// Losses of shards in a row, without a token in between, after which the server gives up, once --shard-failure-window is over.
    /// With 1 it gives up at the first loss
    #[arg(long, env = "MAX_SHARD_FAILURES", default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_shard_failures: u32,
    /// Seconds since the first of these losses for which shards are started again in any case, with growing pauses. Ten times as
    /// long if the system has no memory, processes or open files for them
    #[arg(long, env = "SHARD_FAILURE_WINDOW", default_value_t = 60.0, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) shard_failure_window: f64,
}

/// A time that is longer than nothing and shorter than a year.
pub(crate) fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if seconds > 0.0 && seconds < 3.2e7 {
        Ok(seconds)
    } else {
        Err("must be above 0, and below a year".into())
    }
}

/// More than nothing and no more than all.
fn share(text: &str) -> Result<f64, String> {
    let share: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if share > 0.0 && share <= 1.0 { Ok(share) } else { Err("must be above 0 and at most 1".into()) }
}

/// `millrace serve`.
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// The same as --model-id, and goes before it
    #[arg(value_name = "MODEL")]
    pub(crate) model_to_serve: Option<String>,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    #[command(flatten)]
    pub(crate) http: HttpArgs,
    #[command(flatten)]
    pub(crate) nodes: NodesArgs,
    #[command(flatten)]
    pub(crate) telemetry: TelemetryArgs,
    #[command(flatten)]
    pub(crate) tgi: TgiArgs,
    /// TOML file with flags of this command by their names, such as `port = 8080`. Flags and environment variables win
    #[arg(long, env = "MILLRACE_CONFIG", value_name = "PATH")]
    pub(crate) config: Option<PathBuf>,
    /// One JSON object per log line
    #[arg(long, env = "JSON_OUTPUT", value_parser = clap::builder::BoolishValueParser::new())]
    pub(crate) json_output: bool,
    /// Log what `millrace env` prints before anything else
    #[arg(long, short)]
    pub(crate) env: bool,
}

/// How tokens are chosen in the terminal commands.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplingArgs {
    /// Tokens to generate at most
    #[arg(long, short = 'n', default_value_t = 256, value_name = "N")]
    pub(crate) max_new_tokens: u32,
    /// Randomness: 0 takes the most likely token each time
    #[arg(long, short, default_value_t = 0.0)]
    pub(crate) temperature: f32,
    /// Draw from the N most likely tokens
    #[arg(long, value_name = "N")]
    pub(crate) top_k: Option<u32>,
    /// Draw from the most likely tokens that together have this probability
    #[arg(long)]
    pub(crate) top_p: Option<f32>,
    /// Above 1 discourages tokens that occurred before
    #[arg(long)]
    pub(crate) repetition_penalty: Option<f32>,
    /// Makes a random answer repeatable
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// End when this text appears. May be repeated
    #[arg(long, value_name = "TEXT")]
    pub(crate) stop: Vec<String>,
}

/// `millrace chat`.
#[derive(Debug, Args)]
pub(crate) struct ChatArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    /// Instructions that the conversation begins with
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
}

/// `millrace generate`.
#[derive(Debug, Args)]
pub(crate) struct GenerateArgs {
    /// The text to continue; read from standard input when absent
    pub(crate) prompt: Option<String>,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
}

/// `millrace inspect`.
#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// List every tensor
    #[arg(long)]
    pub(crate) tensors: bool,
    /// Context lengths to compute the memory for
    #[arg(long, value_delimiter = ',', value_name = "N,N,…")]
    pub(crate) contexts: Vec<usize>,
    #[command(flatten)]
    pub(crate) plan: Option<PlanArgs>,
}

/// `millrace shard`: the flags that the other commands pass on.
#[derive(Debug, Args)]
pub(crate) struct ShardArgs {
    /// Where the router listens: unix:PATH or tcp:HOST:PORT
    #[arg(long)]
    pub(crate) connect: String,
    /// This process's number in the group
    #[arg(long, default_value_t = 0)]
    pub(crate) rank: usize,
    /// Processes in the group
    #[arg(long, default_value_t = 1)]
    pub(crate) world_size: usize,
    /// Processes of the group on this machine; all when absent
    #[arg(long)]
    pub(crate) host_ranks: Option<usize>,
    /// What carries values from rank to rank: shm or tcp:IP, rank 0's address
    #[arg(long, default_value = "shm", value_parser = wire)]
    pub(crate) wire: Wire,
    /// After a loss: tokens of the KV cache that the lost shard had
    #[arg(long, requires = "kept_sequence_tokens")]
    pub(crate) kept_pool_tokens: Option<usize>,
    /// After a loss: tokens of the longest sequence that the lost shard could hold
    #[arg(long, requires = "kept_pool_tokens")]
    pub(crate) kept_sequence_tokens: Option<usize>,
    /// After a loss: the files that the lost shard had loaded, as it announced them
    #[arg(long)]
    pub(crate) kept_checkpoint: Option<String>,
    /// One JSON object per log line
    #[arg(long)]
    pub(crate) json_output: bool,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
}

/// `shm`, or `tcp:` and an address of rank 0's machine.
fn wire(text: &str) -> Result<Wire, String> {
    match text.split_once(':') {
        None if text == "shm" => Ok(Wire::Shm),
        Some(("tcp", ip)) => ip.parse().map(Wire::Tcp).map_err(|_| format!("{ip}: not an IP address")),
        _ => Err("give shm or tcp:IP".into()),
    }
}

/// Element types on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DTypeArg {
    /// 32 bits.
    #[value(name = "float32", alias = "f32")]
    Float32,
    /// 16 bits, IEEE.
    #[value(name = "float16", alias = "f16")]
    Float16,
    /// 16 bits, with the range of 32.
    #[value(name = "bfloat16", alias = "bf16")]
    Bfloat16,
}

/// How matrices are kept in fewer bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum QuantizeArg {
    /// FP8 (e4m3) with a factor per output.
    Fp8,
}

/// TGI's and vLLM's names for what cannot be read yet are refused by what can be.
fn quantize(name: &str) -> Result<QuantizeArg, String> {
    QuantizeArg::from_str(name, false).map_err(|_| {
        "not supported: fp8 is, for checkpoints whose weights are not quantised yet; leave the flag out to serve a checkpoint as it is"
            .to_owned()
    })
}

/// How rotary positions are stretched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum RopeScalingArg {
    /// Positions are divided by the factor.
    Linear,
    /// The base grows with the length of the sequence (NTK).
    Dynamic,
}

fn rope_factor(text: &str) -> Result<f64, String> {
    let factor = text.parse().ok().filter(|factor: &f64| *factor >= 1.0 && factor.is_finite());
    factor.ok_or_else(|| "must be a number of at least 1".to_owned())
}

/// Where weights come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LoadFormat {
    /// The checkpoint's safetensors.
    Auto,
    /// Random weights from config.json alone, to measure speed without a checkpoint.
    Dummy,
}

/// What computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DeviceArg {
    /// The best there is.
    Auto,
    /// The processor.
    Cpu,
    /// NVIDIA's cards.
    Cuda,
    /// A simulated card, which runs the CUDA kernels on the processor: for tests.
    #[cfg(feature = "cpu-sim")]
    CudaSim,
    /// Nothing: made-up tokens at once, to measure the server without a model.
    Null,
}

/// What carries activations between cards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum AllReduceArg {
    /// What is faster, by size.
    Auto,
    /// NCCL alone.
    Nccl,
    /// The cards' own memory alone.
    Peer,
}

impl From<DTypeArg> for DType {
    fn from(argument: DTypeArg) -> Self {
        match argument {
            DTypeArg::Float32 => DType::F32,
            DTypeArg::Float16 => DType::F16,
            DTypeArg::Bfloat16 => DType::BF16,
        }
    }
}

impl From<QuantizeArg> for Quantize {
    fn from(argument: QuantizeArg) -> Self {
        match argument {
            QuantizeArg::Fp8 => Quantize::Fp8,
        }
    }
}

impl ModelArgs {
    /// The folder of the Hugging Face cache, if it was given.
    pub(crate) fn hub_cache(&self) -> Option<&PathBuf> {
        self.weights_cache_override.as_ref().or(self.huggingface_hub_cache.as_ref())
    }

    /// What goes before the model's own configuration.
    pub(crate) fn overrides(&self) -> Overrides {
        let kind = self.rope_scaling.map(|kind| match kind {
            RopeScalingArg::Linear => RopeKind::Linear,
            RopeScalingArg::Dynamic => RopeKind::Dynamic,
        });
        Overrides { rope_scaling: kind.zip(self.rope_factor) }
    }
}

impl EngineArgs {
    /// What carries activations between cards.
    pub(crate) fn all_reduce(&self) -> AllReduce {
        match self.all_reduce {
            _ if self.disable_custom_all_reduce => AllReduce::Nccl,
            AllReduceArg::Auto => AllReduce::Auto,
            AllReduceArg::Nccl => AllReduce::Nccl,
            AllReduceArg::Peer => AllReduce::Peer,
        }
    }

    /// Number of shards on all machines together.
    pub(crate) fn num_shard(&self) -> usize {
        self.num_shard.unwrap_or(1) as usize
    }

    /// What computes.
    pub(crate) fn device(&self) -> Device {
        match self.device {
            DeviceArg::Auto | DeviceArg::Cpu => Device::Cpu,
            DeviceArg::Cuda => Device::Cuda,
            #[cfg(feature = "cpu-sim")]
            DeviceArg::CudaSim => Device::CudaSim,
            DeviceArg::Null => Device::Null(Duration::from_micros(self.null_step_micros.into())),
        }
    }

    /// Tokens of one step: a full batch of decode rows and the prompt tokens beside them.
    pub(crate) fn max_step_tokens(&self) -> u32 {
        self.max_batch_prefill_tokens.saturating_add(self.max_batch_size)
    }
}

/// The path of this executable, which shards are started from.
pub(crate) fn own_executable() -> anyhow::Result<PathBuf> {
    use anyhow::Context;
    std::env::current_exe().context("cannot find the path of this program to start shards from")
}
