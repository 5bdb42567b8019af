//! Flags of `millrace convert`.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};
use millrace_shard::DType;
use millrace_shard::convert::{ConvertTarget, GgufKind};

use super::values::bytes;

/// `millrace convert`.
#[derive(Debug, Args)]
pub(crate) struct ConvertArgs {
    /// Model: a folder in Hugging Face layout, a file with a whole model such as a GGUF file, the
    /// name of a repository on the Hugging Face hub, or `demo`
    #[arg(value_name = "IN")]
    pub(crate) input: String,
    /// New folder, or new file with --to gguf
    #[arg(value_name = "OUT")]
    pub(crate) output: PathBuf,
    /// Format of the result. If absent, gguf for a name that ends with .gguf, else safetensors
    #[arg(long, value_name = "FORMAT")]
    to: Option<ConvertFormat>,
    /// Type of the weights. If absent, safetensors keep the types of the model, blocks of GGUF
    /// become bfloat16, or the type that the configuration names, and GGUF files get f16
    #[arg(long, value_name = "TYPE")]
    dtype: Option<ConvertType>,
    /// Limit of the size of a file of weights, such as 500M or 5G, for safetensors
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    max_shard_size: Option<usize>,
    /// Branch, tag or commit of a repository
    #[arg(long, env = "REVISION", default_value = "main")]
    pub(crate) revision: String,
    /// Folder of the local Hugging Face cache; if absent, HUGGINGFACE_HUB_CACHE, HF_HUB_CACHE or
    /// HF_HOME
    #[arg(long, value_name = "FOLDER")]
    pub(crate) huggingface_hub_cache: Option<PathBuf>,
}

/// Formats of new files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ConvertFormat {
    /// A folder in Hugging Face layout.
    Safetensors,
    /// A GGUF file.
    Gguf,
}

/// Types of weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ConvertType {
    /// Single precision.
    #[value(alias = "float32")]
    F32,
    /// Half precision.
    #[value(alias = "float16")]
    F16,
    /// The upper half of single precision.
    #[value(alias = "bfloat16")]
    Bf16,
    /// Blocks of 8 bits, for GGUF.
    #[value(name = "q8_0")]
    Q8,
}

/// The largest size of a file of weights if no flag gives it, as in transformers.
const MAX_FILE_BYTES: usize = 5_000_000_000;

impl ConvertArgs {
    /// Returns the format of the result.
    ///
    /// # Errors
    /// If flags contradict each other.
    pub(crate) fn target(&self) -> Result<ConvertTarget> {
        let is_gguf = match self.to {
            Some(format) => format == ConvertFormat::Gguf,
            None => self.output.extension().is_some_and(|end| end == "gguf"),
        };
        let dense = match self.dtype {
            Some(ConvertType::F32) => Some(DType::F32),
            Some(ConvertType::F16) => Some(DType::F16),
            Some(ConvertType::Bf16) => Some(DType::BF16),
            Some(ConvertType::Q8) | None => None,
        };
        let is_q8 = self.dtype == Some(ConvertType::Q8);
        if is_gguf {
            ensure!(
                self.max_shard_size.is_none(),
                "--max-shard-size is for safetensors: a GGUF file is not split"
            );
            let kind = if is_q8 { GgufKind::Q8_0 } else { GgufKind::Dense(dense.unwrap_or(DType::F16)) };
            return Ok(ConvertTarget::Gguf { kind });
        }
        ensure!(!is_q8, "--dtype q8_0 is for GGUF; `millrace quantize` writes quantized safetensors");
        let max_file_bytes = self.max_shard_size.unwrap_or(MAX_FILE_BYTES);
        Ok(ConvertTarget::Safetensors { dtype: dense, max_file_bytes })
    }
}
