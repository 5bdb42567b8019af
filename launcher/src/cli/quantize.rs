//! Flags of `millrace quantize`.

use std::path::PathBuf;

use clap::Args;
use millrace_convert::quantize::Target;
use millrace_model::Quantize;

/// `millrace quantize`.
#[derive(Debug, Args)]
pub(crate) struct QuantizeArgs {
    /// Checkpoint that is not quantized: a folder in Hugging Face layout, the name of a repository
    /// on the Hugging Face hub, or `demo`
    #[arg(value_name = "IN")]
    pub(crate) input: String,
    /// New folder for the quantized checkpoint
    #[arg(value_name = "OUT")]
    pub(crate) output: PathBuf,
    /// Format of the layers' matrices: int8 and int4 (compressed-tensors), fp8 (compressed-tensors,
    /// a scale per row), fp8-block (a scale per block of 128 x 128) or nf4 (bitsandbytes)
    #[arg(long, value_parser = format)]
    pub(crate) format: Target,
    /// Columns that share a scale with --format int4: 32, 64 or 128. Smaller groups are more exact
    /// and take more memory
    #[arg(long, value_name = "COLUMNS", value_parser = group_size)]
    group_size: Option<usize>,
    /// With --format int4: no zero points. The error is larger, but more programs read the result
    #[arg(long)]
    symmetric: bool,
    /// Print one JSON object per matrix instead of a table
    #[arg(long)]
    pub(crate) json: bool,
    /// Branch, tag or commit of a repository
    #[arg(long, env = "REVISION", default_value = "main")]
    pub(crate) revision: String,
    /// Folder of the local Hugging Face cache; if absent, HUGGINGFACE_HUB_CACHE, HF_HUB_CACHE or
    /// HF_HOME
    #[arg(long, value_name = "FOLDER")]
    pub(crate) huggingface_hub_cache: Option<PathBuf>,
}

/// Columns of a group of `int4` if no flag gives them.
const DEFAULT_GROUP: usize = 128;

impl QuantizeArgs {
    /// Returns the format with its groups.
    ///
    /// # Errors
    /// If the format has no groups, but there is a flag for them.
    pub(crate) fn target(&self) -> anyhow::Result<Target> {
        if let Target::Int4 { group, .. } = self.format {
            return Ok(Target::Int4 { group: self.group_size.unwrap_or(group), symmetric: self.symmetric });
        }
        let name = self.format.name();
        anyhow::ensure!(self.group_size.is_none(), "--group-size is for --format int4, not {name}");
        anyhow::ensure!(!self.symmetric, "--symmetric is for --format int4, not {name}");
        Ok(self.format)
    }
}

/// Parses a format of new checkpoints. The error for formats that weights can be quantized to while
/// they are loaded says so.
fn format(name: &str) -> Result<Target, String> {
    let all = [
        Target::Int8,
        Target::Int4 { group: DEFAULT_GROUP, symmetric: false },
        Target::Fp8,
        Target::Fp8Block,
        Target::Nf4,
    ];
    if let Some(target) = all.into_iter().find(|target| target.name() == name) {
        return Ok(target);
    }
    let known = all.map(Target::name).join(", ");
    let gguf =
        [Quantize::Q8_0, Quantize::Q4_0, Quantize::Q4K, Quantize::Q5K, Quantize::Q6K].map(Quantize::name);
    Err(if gguf.contains(&name) {
        format!(
            "`millrace convert` writes GGUF files; `millrace serve MODEL --quantize {name}` quantizes while loading. \
             Checkpoints can be written in {known}"
        )
    } else {
        format!("not one of {known}")
    })
}

fn group_size(text: &str) -> Result<usize, String> {
    text.parse()
        .ok()
        .filter(|group| [32, 64, 128].contains(group))
        .ok_or_else(|| "not 32, 64 or 128".to_owned())
}
