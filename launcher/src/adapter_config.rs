//! The configuration of a LoRA adapter, as far as this process reads it.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail};
use millrace_formats::regular_file;
use serde::Deserialize;

/// The configuration of an adapter in PEFT's layout.
pub(crate) const CONFIGURATION: &str = "adapter_config.json";

/// The maximum number of bytes of an adapter's configuration. Most have less than 2 kB.
const MAX_CONFIGURATION: u64 = 1 << 20;

/// The fields of an adapter's configuration that this process reads. The shards read the others.
#[derive(Debug, Deserialize)]
pub(crate) struct AdapterConfiguration {
    peft_type: Option<String>,
    base_model_name_or_path: Option<String>,
    r: Option<usize>,
    /// Ranks of single matrices.
    rank_pattern: Option<BTreeMap<String, usize>>,
}

impl AdapterConfiguration {
    /// Reads the configuration in a folder.
    ///
    /// # Errors
    /// If the file cannot be read, or is not valid.
    pub(crate) fn read(folder: &Path) -> Result<Self> {
        let path = folder.join(CONFIGURATION);
        let text =
            regular_file::read(&path, MAX_CONFIGURATION).with_context(|| path.display().to_string())?;
        serde_json::from_slice(&text).with_context(|| path.display().to_string())
    }

    /// Returns the largest rank of the adapter.
    ///
    /// # Errors
    /// If it is not a LoRA adapter.
    pub(crate) fn rank(&self) -> Result<usize> {
        if let Some(kind) = self.peft_type.as_deref().filter(|kind| !kind.eq_ignore_ascii_case("lora")) {
            bail!("{CONFIGURATION} is for {:?}, and only LoRA adapters are supported", printable(kind));
        }
        let rank = self.r.with_context(|| format!("{CONFIGURATION} has no rank `r`"))?;
        let others = self.rank_pattern.iter().flat_map(BTreeMap::values);
        Ok(others.copied().fold(rank, usize::max))
    }

    /// Returns the name of the model that the adapter changes.
    pub(crate) fn base(&self) -> Option<String> {
        self.base_model_name_or_path.as_deref().map(printable)
    }
}

/// Returns the beginning of a text of a file as it may be printed.
fn printable(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(200).collect()
}
