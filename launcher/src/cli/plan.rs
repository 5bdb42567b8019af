//! Flags of `millrace inspect` that compare numbers of devices.

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use millrace_model::DType;
use millrace_model::estimate::{GPUS, GpuModel, Hardware};

/// Group sizes, hardware and load.
#[derive(Debug, Args)]
#[command(next_help_heading = "Plan for several devices (with any of these flags)")]
pub(crate) struct PlanArgs {
    /// Numbers of shards to compare. The model is split by attention heads, so not every number
    /// works
    #[arg(long, value_delimiter = ',', default_value = "1", value_name = "N,N,…", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) num_shard: Vec<u32>,
    /// Sequences in a decode step
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) batch: u32,
    /// Prompt tokens in a prefill step
    #[arg(long, default_value_t = 512, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) prefill_tokens: u32,
    /// Predict times on this GPU from published figures, under the assumption that 80% of the
    /// bandwidth and 60% of the 16-bit peak are reached. The flags below take precedence over its
    /// figures
    #[arg(long, value_parser = gpus())]
    pub(crate) gpu: Option<&'static GpuModel>,
    /// Memory of a device, of which 90% may be used
    #[arg(long, value_name = "GIB", value_parser = positive)]
    pub(crate) memory_gib: Option<f64>,
    /// Bandwidth of a device's memory
    #[arg(long, value_name = "GB/S", value_parser = positive)]
    pub(crate) memory_bandwidth: Option<f64>,
    /// Peak throughput of a device in the element type of the weights, without sparsity
    #[arg(long, value_name = "TFLOP/S", value_parser = positive)]
    pub(crate) compute: Option<f64>,
    /// Bandwidth between devices, in one direction
    #[arg(long, value_name = "GB/S", value_parser = positive)]
    pub(crate) link_bandwidth: Option<f64>,
    /// Latency of an exchange between devices without the transfer of its bytes; the defaults of 10
    /// with NVLink and 30 with PCIe are estimates
    #[arg(long, value_name = "MICROS", value_parser = positive)]
    pub(crate) link_latency: Option<f64>,
}

impl PlanArgs {
    /// Returns the hardware from the flags, with the figures of `--gpu` for absent flags. `dtype`
    /// is the element type of the weights.
    pub(crate) fn hardware(&self, dtype: DType) -> Hardware {
        let given = Hardware {
            memory: self.memory_gib.map(|gib| (gib * (1_u64 << 30) as f64) as usize),
            memory_bandwidth: self.memory_bandwidth.map(|gigabytes| gigabytes * 1e9),
            compute: self.compute.map(|teraflops| teraflops * 1e12),
            link_bandwidth: self.link_bandwidth.map(|gigabytes| gigabytes * 1e9),
            link_latency: self.link_latency.map(|micros| micros * 1e-6),
        };
        given.or(self.gpu.map(|gpu| gpu.hardware(dtype)).unwrap_or_default())
    }
}

/// Parses the name of a known GPU.
fn gpus() -> impl TypedValueParser<Value = &'static GpuModel> {
    PossibleValuesParser::new(GPUS.iter().map(|gpu| gpu.name)).try_map(|name| {
        // The parser accepts only names of the list.
        GPUS.iter().find(|gpu| gpu.name == name).ok_or("not a known GPU")
    })
}

/// Parses a number above zero and below a billion.
fn positive(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if number > 0.0 && number < 1e9 { Ok(number) } else { Err("must be above 0, and below a billion".into()) }
}
