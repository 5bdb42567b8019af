//! The entry points of `cargo xtask fuzz` for configurations and the weights that they describe,
//! and for adapters. The inputs in `fuzz/seeds/models` and `fuzz/seeds/adapters` also run as normal
//! tests.
#![allow(clippy::unwrap_used, reason = "the target searches for panics")]

use std::path::PathBuf;

use millrace_formats::Source;
use millrace_numbers::Part;

use crate::adapters::{Adapter, AdapterError, adaptable};
use crate::families::{self, Overrides};
use crate::inspect::Inspection;
use crate::split::Split;

/// The largest number of layers whose weights are read. A configuration may announce many more.
const MAX_LAYERS: usize = 8;

/// A folder that is removed when this is dropped.
struct Folder(PathBuf);

impl Folder {
    /// Writes the parts of `data` before and after its first NUL byte to two files. There is no
    /// second file if there is no NUL byte.
    fn with(data: &[u8], names: [&str; 2]) -> Self {
        let thread = format!("{:?}", std::thread::current().id()).replace(['(', ')'], "-");
        let name = format!("millrace-fuzz-model-{}-{thread}", std::process::id());
        let folder = Folder(std::env::temp_dir().join(name));
        std::fs::create_dir_all(&folder.0).unwrap();
        for (name, bytes) in names.into_iter().zip(data.splitn(2, |&byte| byte == 0)) {
            std::fs::write(folder.0.join(name), bytes).unwrap();
        }
        folder
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Reads a `config.json`. If a NUL byte follows, which JSON cannot have, the rest is
/// `model.safetensors`. The model may be refused, but everything that it is said to have must be
/// there.
///
/// # Panics
/// If a weight contradicts its description, or the files cannot be written.
pub fn models(data: &[u8]) {
    let folder = Folder::with(data, ["config.json", "model.safetensors"]);
    let source = Source::Directory(folder.0.clone());
    let Ok(found) = Inspection::new(&source, None, None, None, &Overrides::default()) else { return };
    assert!(found.to_string().contains("parameters"));
    if found.files.is_empty() || found.spec.layers.len() > MAX_LAYERS {
        return;
    }
    let model = families::load(&source, &Overrides::default()).unwrap();
    for slot in model.spec.slots() {
        let (rows, cols) = model.spec.shape(slot);
        let parts = model.weights.parts(slot).unwrap();
        // Matrices are stacked by rows, and vectors by columns.
        let elements = |part: &Part| part.rows.len() * part.cols.len();
        assert_eq!(parts.iter().map(elements).sum::<usize>(), rows * cols, "{slot:?}");
        for part in parts {
            let mut row = vec![0.0; part.cols.len()];
            // Numbers may be infinite or NaN; reading them may not panic.
            let last = part.rows.len().saturating_sub(1);
            for at in [0, last / 2, last].into_iter().filter(|&at| at < part.rows.len()) {
                part.read_row(at, &mut row);
            }
        }
    }
}

const ADAPTER_FILES: [&str; 2] = ["adapter_config.json", "adapter_model.safetensors"];

/// The model that the adapters of [`adapters`] are for.
const BASE: &[(&str, &[u8])] = &[(
    "config.json",
    br#"{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8, "intermediate_size": 4,
         "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 16,
         "max_position_embeddings": 16, "rms_norm_eps": 1e-5}"#,
)];

/// Reads an `adapter_config.json`, a NUL byte and an `adapter_model.safetensors`. The adapter may
/// be refused, but its products must have the shapes that they are said to have.
///
/// # Panics
/// If a product contradicts its description, or the files cannot be written.
pub fn adapters(data: &[u8]) {
    let folder = Folder::with(data, ADAPTER_FILES);
    let Ok(adapter) = open(&folder) else { return };
    let spec = families::spec(&Source::Memory(BASE)).unwrap();
    for (slot, rank) in adaptable(&spec).into_iter().flat_map(|slot| [(slot, 0), (slot, 1)]) {
        let (split, (rows, cols)) = (Split { rank, world_size: 2 }, spec.shape(slot));
        // Numbers may be infinite or NaN, and are refused then.
        let Ok(Some(weights)) = adapter.weights(slot, split) else { continue };
        for product in weights.products {
            let outputs: usize = product.rows.iter().map(|rows| rows.len()).sum();
            assert!(product.rank <= adapter.max_rank());
            assert!(product.rows.iter().all(|range| range.end <= rows));
            assert_eq!(product.up.len(), outputs * product.rank);
            assert!([cols, cols / 2].contains(&(product.down.len() / product.rank)));
        }
    }
}

fn open(folder: &Folder) -> Result<Adapter, AdapterError> {
    Adapter::open(&Source::Memory(BASE), &Overrides::default(), &folder.0)
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    /// Returns the paths of the seeds of a target.
    fn seeds(target: &str) -> Vec<PathBuf> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds").join(target);
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
    }

    #[test]
    fn model_seeds_pass() {
        let seeds = seeds("models");
        seeds.iter().for_each(|seed| super::models(&std::fs::read(seed).unwrap()));
        assert!(seeds.len() > 20, "{} seeds", seeds.len());
    }

    #[test]
    fn adapter_seeds_pass() {
        let seeds = seeds("adapters");
        for seed in &seeds {
            let data = std::fs::read(seed).unwrap();
            super::adapters(&data);
            let folder = super::Folder::with(&data, super::ADAPTER_FILES);
            let result = super::open(&folder);
            assert_eq!(result.is_err(), seed.ends_with("refused"), "{}: {result:?}", seed.display());
        }
        assert!(seeds.len() >= 4, "{} seeds", seeds.len());
    }
}
