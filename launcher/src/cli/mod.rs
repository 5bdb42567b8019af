//! The command line. Flags and environment variables have the names of text-generation-inference
//! where it has them.

mod adapters;
mod arguments;
mod bench;
mod bench_http;
mod convert;
mod disk_cache;
mod elsewhere;
mod engine;
mod http;
mod neighbours;
mod null;
mod one_adapter;
mod operations;
mod plan;
mod quantize;
mod speculation;
mod tgi;
mod values;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use millrace_model::families::{Overrides, RopeKind};
use millrace_model::{DType, KvFormat, Quantize, QuantizeRequest};
use millrace_router::engine::Schedule;
use millrace_shard::{DeviceKind, NullOptions, WeightCacheOptions};
use serde::{Deserialize, Serialize};
use values::{bytes, quantize, rope_factor};

pub(crate) use adapters::{AdapterArgs, AdapterPool, RequestedAdapter, adapter_at_run_time};
pub(crate) use arguments::{of_server, with_subcommand};
pub(crate) use bench::BenchArgs;
pub(crate) use bench_http::{BenchHttpArgs, BenchRoute};
pub(crate) use convert::ConvertArgs;
pub(crate) use disk_cache::{DiskCacheArgs, KvDisk};
pub(crate) use elsewhere::known_elsewhere;
pub(crate) use engine::{EngineArgs, GPU_BATCH, GPU_PREFILL_TOKENS};
pub(crate) use http::{GenerationConfig, HttpArgs, KvEventsArg};
pub(crate) use neighbours::translated;
pub(crate) use null::NullArgs;
pub(crate) use one_adapter::OneAdapterArgs;
pub(crate) use operations::{CompletionsArgs, DownloadArgs, HealthArgs, ManArgs, RestartGroupsArgs};
pub(crate) use plan::PlanArgs;
pub(crate) use quantize::QuantizeArgs;
pub(crate) use speculation::DraftModelName;
pub(crate) use tgi::TgiArgs;
pub(crate) use values::{ActivationsArg, DTypeArg, KvCacheArg, RopeScalingArg, seconds};

use crate::nodes::NodesArgs;
use crate::telemetry::TelemetryArgs;

/// An LLM inference server: continuous batching, paged KV cache, streamed tokens over HTTP.
#[derive(Debug, Parser)]
#[command(version, about, after_help = EXAMPLES, arg_required_else_help = true)]
pub(crate) struct Cli {
    /// Subcommand.
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXAMPLES: &str = "\
Examples:
  millrace serve                                   serve the built-in demo model on 127.0.0.1:3000
  millrace serve ./Llama-3.2-1B                    serve a model folder in Hugging Face layout
  millrace serve org/name                          download a model from the Hugging Face hub, and serve it
  millrace download org/name                       download a model only
  millrace chat                                    chat with the demo model in the terminal
  millrace generate 'Once upon a time'             continue a text and exit
  millrace inspect ./Llama-3.2-1B                  contents of a checkpoint and the memory it needs
  millrace inspect --num-shard 1,2,4 --gpu h200    estimates for several numbers of GPUs
  millrace quantize ./Llama-3.2-1B ./Llama-3.2-1B-int4 --format int4
  millrace serve --config millrace.toml            flags from a file: port = 8080, api-key = [\"…\"]
  millrace bench ./Llama-3.2-1B                    prefill and decode speed of this machine
  millrace bench-http --concurrency 1,8,32         load test of any server with OpenAI's API

  curl -N 127.0.0.1:3000/generate_stream -H 'content-type: application/json' \\
       -d '{\"inputs\": \"Once upon a time\", \"parameters\": {\"max_new_tokens\": 60}}'

Every flag of `serve` can also be set by the environment variable named in its help.";

/// Subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve a model over HTTP (TGI's and OpenAI's APIs)
    Serve(Box<ServeArgs>),
    /// Chat with a model in the terminal
    Chat(Box<ChatArgs>),
    /// Continue a prompt, print the text and exit
    Generate(Box<GenerateArgs>),
    /// Download a model from the Hugging Face hub into the local cache, and print its folder
    Download(Box<DownloadArgs>),
    /// Show the contents of a checkpoint, the memory it needs, and estimates for several devices
    Inspect(Box<InspectArgs>),
    /// Write a quantized checkpoint from one that is not quantized
    Quantize(Box<QuantizeArgs>),
    /// Write a model in another file format (safetensors, GGUF) or in another type
    Convert(Box<ConvertArgs>),
    /// Measure prefill and decode in this process, without a server
    Bench(Box<BenchArgs>),
    /// Load test of a server with OpenAI's API: latency and throughput
    BenchHttp(Box<BenchHttpArgs>),
    /// Ask a server on this machine whether it answers requests; exit code 1 if it does not
    Health(HealthArgs),
    /// Restart the shards of a server that runs, one group after the other, without ending a
    /// request
    RestartGroups(RestartGroupsArgs),
    /// Print version, machine and settings for a bug report
    Env,
    /// Print the description of the HTTP API (OpenAPI, JSON)
    PrintSchema,
    /// Show the NVIDIA driver, GPUs and libraries that are found, what is missing and how to get it
    Doctor,
    /// Print completions for a shell: bash, zsh, fish, elvish or powershell
    Completions(CompletionsArgs),
    /// Write the manual pages into a folder (for packages)
    #[command(hide = true)]
    Man(ManArgs),
    /// Print the number of usable GPUs, or why there is none (started by the other commands)
    #[command(hide = true, alias = "cards")]
    Gpus,
    /// Compile grammars of clients within limits of time and memory (started by the other commands)
    #[command(hide = true)]
    GrammarWorker,
    /// Compute one rank of a model for a router (started by the other commands)
    #[command(hide = true)]
    Shard(Box<ShardArgs>),
}

impl Command {
    /// Moves the model of the positional argument, if there is one, to the place of `--model-id`.
    pub(crate) fn with_named_model(mut self) -> Self {
        let (named, model) = match &mut self {
            Command::Serve(args) => (args.named_model.take(), &mut args.model),
            Command::Chat(args) => (args.named_model.take(), &mut args.model),
            Command::Inspect(args) => (args.named_model.take(), &mut args.model),
            Command::Bench(args) => (args.named_model.take(), &mut args.model),
            Command::Generate(args) if args.texts.len() > 1 => (Some(args.texts.remove(0)), &mut args.model),
            _ => return self,
        };
        if let Some(named) = named {
            model.model_id = named;
        }
        self
    }

    /// Whether the command does nothing but print, so that it is of no use without a reader.
    pub(crate) fn only_prints(&self) -> bool {
        matches!(
            self,
            Command::Inspect(_)
                | Command::Env
                | Command::PrintSchema
                | Command::Doctor
                | Command::Completions(_)
        )
    }
}

/// Flags that choose a model and its representation in memory. Only the flags that locate the
/// model's files are part of the message that starts a shard.
#[derive(Debug, Clone, Args, Serialize, Deserialize)]
#[command(next_help_heading = "Model")]
pub(crate) struct ModelArgs {
    /// Folder in Hugging Face layout, name of a repository on the Hugging Face hub, which is
    /// downloaded into the local cache, or `demo` for the embedded demo model
    #[arg(
        long,
        short,
        visible_alias = "model",
        env = "MODEL_ID",
        default_value = "demo",
        value_name = "FOLDER|NAME|demo"
    )]
    pub(crate) model_id: String,
    /// Branch, tag or commit of a repository, or a reference such as refs/pr/1
    #[arg(long, env = "REVISION", default_value = "main")]
    pub(crate) revision: String,
    /// Folder of the local Hugging Face cache; if absent, HUGGINGFACE_HUB_CACHE, HF_HUB_CACHE or
    /// HF_HOME
    #[arg(long, value_name = "FOLDER")]
    pub(crate) huggingface_hub_cache: Option<PathBuf>,
    /// TGI's flag with the same meaning as --huggingface-hub-cache, and precedence over it
    #[arg(long, env = "WEIGHTS_CACHE_OVERRIDE", hide = true)]
    pub(crate) weights_cache_override: Option<PathBuf>,
    /// File like tokenizer_config.json; its chat template and begin and end tokens replace those of
    /// the model
    #[arg(long, env = "TOKENIZER_CONFIG_PATH", value_name = "PATH")]
    #[serde(skip)]
    pub(crate) tokenizer_config_path: Option<PathBuf>,
    /// Element type of the weights in memory; as in the checkpoint if absent
    #[arg(long, env = "DTYPE")]
    #[serde(skip)]
    pub(crate) dtype: Option<DTypeArg>,
    /// Element type of the KV cache, or int8 on the CPU; as the weights if absent
    #[arg(long, env = "KV_CACHE_DTYPE")]
    #[serde(skip)]
    pub(crate) kv_cache_dtype: Option<KvCacheArg>,
    /// Quantize the matrices of the layers (QKV, output, gate, up, down) during loading: fp8, int8
    /// (or eetq), q8_0, int4, q4_0, q4_k, q5_k or q6_k, or on the CPU nf4. A checkpoint that is
    /// quantized needs no flag; gptq, awq, compressed-tensors and bitsandbytes-fp4 insist on one
    #[arg(long, env = "QUANTIZE", value_name = "FORMAT", value_parser = quantize)]
    #[serde(skip)]
    pub(crate) quantize: Option<Quantize>,
    /// Keep the head (the last matrix, which computes the logits) in the element type of the
    /// weights. Without this flag, the CPU keeps it as a quantized checkpoint has it, or as q8_0
    /// beside layers of integers
    #[arg(long, env = "DENSE_HEAD")]
    #[serde(skip)]
    pub(crate) dense_head: bool,
    /// Inputs of matrix products on the CPU: `rounded` to what the instruction set multiplies
    /// fastest (bf16, or bytes for weights that are integers), or `exact`, which is several times
    /// as slow for integers
    #[arg(long, env = "ACTIVATIONS", default_value = "rounded")]
    #[serde(skip)]
    pub(crate) activations: ActivationsArg,
    /// Folder in which packed weights are kept on the CPU: the next start with the same model and
    /// flags reads them from there. One start of a model with other flags needs room for another
    /// copy
    #[arg(long, env = "PACKED_WEIGHTS_CACHE", value_name = "FOLDER")]
    #[serde(skip)]
    pub(crate) packed_weights_cache: Option<PathBuf>,
    /// Leave packed weights in the file of the cache instead of copying them to huge pages. The
    /// start is faster, processes share the memory, and weights may be larger than the memory;
    /// steps are slower
    #[arg(long, env = "MAP_PACKED_WEIGHTS", requires = "packed_weights_cache",
          value_parser = clap::builder::BoolishValueParser::new())]
    #[serde(skip)]
    pub(crate) map_packed_weights: bool,
    /// Extend the rotary positions of config.json by --rope-factor; linear if only the factor is
    /// given
    #[arg(long, env = "ROPE_SCALING")]
    pub(crate) rope_scaling: Option<RopeScalingArg>,
    /// Factor of --rope-scaling; 1 if only the kind is given
    #[arg(long, env = "ROPE_FACTOR", value_name = "FACTOR", value_parser = rope_factor)]
    pub(crate) rope_factor: Option<f64>,
    /// Source of the weights: `auto` reads the checkpoint, `dummy` makes random weights from
    /// config.json
    #[arg(long, env = "LOAD_FORMAT", default_value = "auto")]
    pub(crate) load_format: LoadFormat,
}

/// `millrace serve`.
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Same as --model-id, and takes precedence over it
    #[arg(value_name = "MODEL")]
    pub(crate) named_model: Option<String>,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    #[command(flatten)]
    pub(crate) disk_cache: DiskCacheArgs,
    #[command(flatten)]
    pub(crate) adapters: AdapterArgs,
    #[command(flatten)]
    pub(crate) http: HttpArgs,
    #[command(flatten)]
    pub(crate) nodes: NodesArgs,
    #[command(flatten)]
    pub(crate) telemetry: TelemetryArgs,
    #[command(flatten)]
    pub(crate) tgi: TgiArgs,
    /// TOML file with flags of this command, such as `port = 8080`. Flags and environment variables
    /// take precedence
    #[arg(long, env = "MILLRACE_CONFIG", value_name = "PATH")]
    pub(crate) config: Option<PathBuf>,
    /// Log lines as JSON objects
    #[arg(long, env = "JSON_OUTPUT", value_parser = clap::builder::BoolishValueParser::new())]
    pub(crate) json_output: bool,
    /// Log the output of `millrace env` at the start
    #[arg(long, short)]
    pub(crate) env: bool,
}

/// Sampling flags of the terminal commands.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplingArgs {
    /// Limit of the generated tokens
    #[arg(long, short = 'n', default_value_t = 256, value_name = "N")]
    pub(crate) max_new_tokens: u32,
    /// Sampling temperature; 0 is greedy
    #[arg(long, short, default_value_t = 0.0)]
    pub(crate) temperature: f32,
    /// Sample from the N most likely tokens
    #[arg(long, value_name = "N")]
    pub(crate) top_k: Option<u32>,
    /// Sample from the most likely tokens that together have this probability
    #[arg(long)]
    pub(crate) top_p: Option<f32>,
    /// Values above 1 make tokens that occurred before less likely
    #[arg(long)]
    pub(crate) repetition_penalty: Option<f32>,
    /// Seed of the random numbers, which makes an answer repeatable
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// Stop when this text appears. May be repeated
    #[arg(long, value_name = "TEXT")]
    pub(crate) stop: Vec<String>,
}

/// `millrace chat`.
#[derive(Debug, Args)]
pub(crate) struct ChatArgs {
    /// Same as --model-id, and takes precedence over it
    #[arg(value_name = "MODEL")]
    pub(crate) named_model: Option<String>,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    #[command(flatten)]
    pub(crate) adapter: OneAdapterArgs,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    /// System message at the start of the conversation
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
}

/// `millrace generate`.
#[derive(Debug, Args)]
pub(crate) struct GenerateArgs {
    /// Text to continue, which is read from standard input if it is absent. With two arguments, the
    /// first one is the same as --model-id
    #[arg(value_name = "[MODEL] PROMPT", num_args = 0..=2)]
    pub(crate) texts: Vec<String>,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    #[command(flatten)]
    pub(crate) adapter: OneAdapterArgs,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
}

/// `millrace inspect`.
#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    /// Same as --model-id, and takes precedence over it
    #[arg(value_name = "MODEL")]
    pub(crate) named_model: Option<String>,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// List every tensor
    #[arg(long)]
    pub(crate) tensors: bool,
    /// Context lengths to compute the memory for
    #[arg(long, value_delimiter = ',', value_name = "N,N,…")]
    pub(crate) contexts: Vec<usize>,
    /// Show how the layers would be split between a GPU, of which so many bytes are taken, and the
    /// CPU, for sequences of the longest of --contexts
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub(crate) gpu_memory: Option<usize>,
    #[command(flatten)]
    pub(crate) plan: Option<PlanArgs>,
}

/// `millrace shard`.
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
    /// The options that the shards of this machine share, as one JSON message
    #[arg(long, value_name = "JSON")]
    pub(crate) options: String,
    /// After a loss: tokens of the KV cache that the lost shard had
    #[arg(long, requires = "kept_sequence_tokens")]
    pub(crate) kept_pool_tokens: Option<usize>,
    /// After a loss: tokens of the longest sequence that the lost shard could hold
    #[arg(long, requires = "kept_pool_tokens")]
    pub(crate) kept_sequence_tokens: Option<usize>,
    /// After a loss: the files that the lost shard had loaded, as it announced them
    #[arg(long)]
    pub(crate) kept_checkpoint: Option<String>,
}

/// Sources of weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(crate) enum LoadFormat {
    /// The checkpoint's safetensors.
    Auto,
    /// Random weights from config.json alone, to measure speed without a checkpoint.
    Dummy,
}

/// Devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DeviceArg {
    /// GPUs if any is usable, else the CPU.
    Auto,
    /// The CPU.
    Cpu,
    /// NVIDIA GPUs.
    Cuda,
    /// Simulated GPUs, which run the CUDA kernels on the CPU, for tests.
    #[cfg(feature = "cpu-sim")]
    CudaSim,
    /// No computation: made-up tokens, to measure the server without a model.
    Null,
}

/// Orders in which queued requests start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ScheduleArg {
    /// First come, first served.
    Fcfs,
    /// Longest prefix match.
    Lpm,
}

/// Transports of activations between GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum AllReduceArg {
    /// The faster one for each message size.
    Auto,
    /// Only NCCL.
    Nccl,
    /// Only peer access to GPU memory.
    Peer,
}

impl ModelArgs {
    /// Returns the cache of packed weights, if there is to be one.
    pub(crate) fn weight_cache(&self) -> Option<WeightCacheOptions> {
        let folder = self.packed_weights_cache.clone()?;
        Some(WeightCacheOptions { folder, map: self.map_packed_weights })
    }
}

impl ModelArgs {
    /// Returns the folder of the Hugging Face cache, if a flag gives it.
    pub(crate) fn hub_cache(&self) -> Option<&PathBuf> {
        self.weights_cache_override.as_ref().or(self.huggingface_hub_cache.as_ref())
    }

    /// Returns the element type of the weights, if it is not that of the checkpoint.
    pub(crate) fn dtype(&self) -> Option<DType> {
        self.dtype.and_then(DTypeArg::chosen)
    }

    /// Returns the quantization that is asked for.
    pub(crate) fn quantize_request(&self) -> QuantizeRequest {
        QuantizeRequest { layers: self.quantize, dense_head: self.dense_head }
    }

    /// Returns the format of the KV cache, if it is not that of the weights.
    pub(crate) fn kv_format(&self) -> Option<KvFormat> {
        self.kv_cache_dtype.and_then(KvCacheArg::chosen)
    }

    /// Returns the values that override the model's configuration. As in TGI, each of the two flags
    /// works alone.
    pub(crate) fn overrides(&self) -> Overrides {
        let kind = self.rope_scaling.map(Into::into);
        let is_given = kind.is_some() || self.rope_factor.is_some();
        let scaling = (kind.unwrap_or(RopeKind::Linear), self.rope_factor.unwrap_or(1.0));
        Overrides { rope_scaling: is_given.then_some(scaling) }
    }
}

impl From<ScheduleArg> for Schedule {
    fn from(argument: ScheduleArg) -> Self {
        match argument {
            ScheduleArg::Fcfs => Schedule::Fcfs,
            ScheduleArg::Lpm => Schedule::Lpm,
        }
    }
}

impl DeviceArg {
    /// Returns the kind of device, with the options of `null` for the device without computation.
    /// `auto` stands for the CPU, because a GPU that was found has replaced it.
    pub(crate) fn kind(self, null: impl FnOnce() -> NullOptions) -> DeviceKind {
        match self {
            DeviceArg::Auto | DeviceArg::Cpu => DeviceKind::Cpu,
            DeviceArg::Cuda => DeviceKind::Cuda,
            #[cfg(feature = "cpu-sim")]
            DeviceArg::CudaSim => DeviceKind::CudaSim,
            DeviceArg::Null => DeviceKind::Null(null()),
        }
    }
}

/// Returns the path of this executable, from which shards are started.
pub(crate) fn own_executable() -> anyhow::Result<PathBuf> {
    use anyhow::Context;
    std::env::current_exe().context("cannot find the path of this program to start shards from")
}
