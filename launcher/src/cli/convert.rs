//! Flags of `millrace convert`.

use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::{Args, ValueEnum};
use millrace_convert::convert::{ConvertTarget, FlmKind, GgufKind, TokenIds, VocabularyCut};
use millrace_formats::regular_file;
use millrace_model::DType;

use super::values::bytes;

/// `millrace convert`.
#[derive(Debug, Args)]
pub(crate) struct ConvertArgs {
    /// Model: a folder in Hugging Face layout, a file with a whole model such as a GGUF file, the
    /// name of a repository on the Hugging Face hub, or `demo`
    #[arg(value_name = "IN")]
    pub(crate) input: String,
    /// New folder, or new file with another format than safetensors
    #[arg(value_name = "OUT")]
    pub(crate) output: PathBuf,
    /// Format of the result. If absent, gguf for a name that ends with .gguf, flm for one that ends
    /// with .flm, else safetensors
    #[arg(long, value_name = "FORMAT")]
    to: Option<ConvertFormat>,
    /// Type of the weights. If absent, safetensors keep the types of the model, blocks of GGUF
    /// become bfloat16, or the type that the configuration names, files of GGUF and FastLLM get
    /// f16, and those of llama2.c f32
    #[arg(long, value_name = "TYPE")]
    dtype: Option<ConvertType>,
    /// Limit of the size of a file of weights, such as 500M or 5G, for safetensors
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    max_shard_size: Option<usize>,
    /// File with the ids of the tokens to keep, one id or range A..B in a line, for safetensors.
    /// Embedding, head and tokenizer lose all others, but for special tokens, single characters and
    /// what the kept tokens are made of
    #[arg(long, value_name = "FILE", conflicts_with = "drop_ids")]
    keep_vocab: Option<PathBuf>,
    /// Ids of tokens to remove from embedding, head and tokenizer, for safetensors; B is not one of
    /// them. Can be given several times
    #[arg(long, value_name = "A..B", value_parser = ids)]
    drop_ids: Vec<Range<u32>>,
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
    /// A file of FastLLM.
    Flm,
    /// A file of llama2.c: version 1 with f32, version 2 with int8.
    Llama2c,
    /// A file of the first version of llama2.c, which `run.c` reads.
    #[value(name = "llama2c-v0")]
    Llama2cV0,
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
    /// 8 bits, for FastLLM and llama2.c.
    Int8,
    /// 4 bits, for FastLLM.
    Int4,
}

/// The largest size of a file of weights if no flag gives it, as in transformers.
const MAX_FILE_BYTES: usize = 5_000_000_000;

impl ConvertArgs {
    /// Returns the format of the result.
    ///
    /// # Errors
    /// If flags contradict each other.
    pub(crate) fn target(&self) -> Result<ConvertTarget> {
        let end = self.output.extension().and_then(|end| end.to_str());
        let format = self.to.unwrap_or(match end {
            Some("gguf") => ConvertFormat::Gguf,
            Some("flm") => ConvertFormat::Flm,
            _ => ConvertFormat::Safetensors,
        });
        if format != ConvertFormat::Safetensors {
            ensure!(
                self.max_shard_size.is_none(),
                "--max-shard-size is for safetensors: other formats are not split"
            );
            ensure!(
                self.keep_vocab.is_none() && self.drop_ids.is_empty(),
                "--keep-vocab and --drop-ids are for safetensors: convert the result to the other format"
            );
        }
        match format {
            ConvertFormat::Safetensors => self.safetensors(),
            ConvertFormat::Gguf => Ok(ConvertTarget::Gguf { kind: self.gguf_kind()? }),
            ConvertFormat::Flm => Ok(ConvertTarget::Flm { kind: self.flm_kind()? }),
            ConvertFormat::Llama2c => Ok(ConvertTarget::Llama2c {
                version: match self.dtype {
                    None | Some(ConvertType::F32) => 1,
                    Some(ConvertType::Int8) => 2,
                    Some(_) => bail!("--to llama2c takes --dtype f32 or int8"),
                },
            }),
            ConvertFormat::Llama2cV0 => {
                ensure!(
                    matches!(self.dtype, None | Some(ConvertType::F32)),
                    "--to llama2c-v0 takes --dtype f32"
                );
                Ok(ConvertTarget::Llama2c { version: 0 })
            }
        }
    }

    fn gguf_kind(&self) -> Result<GgufKind> {
        Ok(match self.dtype {
            Some(ConvertType::F32) => GgufKind::Dense(DType::F32),
            None | Some(ConvertType::F16) => GgufKind::Dense(DType::F16),
            Some(ConvertType::Bf16) => GgufKind::Dense(DType::BF16),
            Some(ConvertType::Q8) => GgufKind::Q8_0,
            Some(ConvertType::Int8 | ConvertType::Int4) => {
                bail!("--to gguf takes --dtype f32, f16, bf16 or q8_0")
            }
        })
    }

    fn flm_kind(&self) -> Result<FlmKind> {
        Ok(match self.dtype {
            Some(ConvertType::F32) => FlmKind::F32,
            None | Some(ConvertType::F16) => FlmKind::F16,
            Some(ConvertType::Int8) => FlmKind::Int8,
            Some(ConvertType::Int4) => FlmKind::Int4,
            Some(ConvertType::Bf16 | ConvertType::Q8) => {
                bail!("--to flm takes --dtype f32, f16, int8 or int4")
            }
        })
    }

    fn safetensors(&self) -> Result<ConvertTarget> {
        let dtype = match self.dtype {
            None => None,
            Some(ConvertType::F32) => Some(DType::F32),
            Some(ConvertType::F16) => Some(DType::F16),
            Some(ConvertType::Bf16) => Some(DType::BF16),
            Some(ConvertType::Q8) => {
                bail!("--dtype q8_0 is for GGUF; `millrace quantize` writes quantized safetensors")
            }
            Some(ConvertType::Int8 | ConvertType::Int4) => bail!(
                "--dtype int8 and int4 are for FastLLM and llama2.c; `millrace quantize` writes quantized safetensors"
            ),
        };
        let max_file_bytes = self.max_shard_size.unwrap_or(MAX_FILE_BYTES);
        let vocabulary = match &self.keep_vocab {
            Some(file) => Some(VocabularyCut::Keep(kept_ids(file)?)),
            None if self.drop_ids.is_empty() => None,
            None => Some(VocabularyCut::Drop(TokenIds::new(self.drop_ids.clone()))),
        };
        Ok(ConvertTarget::Safetensors { dtype, max_file_bytes, vocabulary })
    }
}

/// The maximum number of bytes of a file with ids.
const MAX_VOCABULARY: u64 = 64 << 20;

/// Reads a file with an id or a range of ids in each line.
fn kept_ids(file: &Path) -> Result<TokenIds> {
    let text = regular_file::read_text(file, MAX_VOCABULARY).with_context(|| file.display().to_string())?;
    let lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
    let ranges = lines
        .map(|(number, line)| ids(line).map_err(|why| anyhow!("{}, line {number}: {why}", file.display())));
    Ok(TokenIds::new(ranges.collect::<Result<_>>()?))
}

/// Parses an id, or a range of ids without its end.
fn ids(text: &str) -> Result<Range<u32>, String> {
    let id =
        |text: &str| text.trim().parse::<u32>().map_err(|_| format!("{:?} is no id of a token", text.trim()));
    let range = match text.split_once("..") {
        Some((start, end)) => id(start)?..id(end)?,
        None => {
            let id = id(text)?;
            id..id.saturating_add(1)
        }
    };
    if range.is_empty() {
        return Err(format!("{} has no ids: the second must be larger than the first", text.trim()));
    }
    Ok(range)
}
