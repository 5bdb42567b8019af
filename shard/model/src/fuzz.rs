//! The entry point of `cargo xtask fuzz` for configurations and the weights that they describe. The
//! inputs in `fuzz/seeds/models` also run as a normal test.
#![allow(clippy::unwrap_used, reason = "the target searches for panics")]

use std::path::PathBuf;

use millrace_formats::Source;
use millrace_numbers::Part;

use crate::families::{self, Overrides};
use crate::inspect::Inspection;

/// The largest number of layers whose weights are read. A configuration may announce many more.
const MAX_LAYERS: usize = 8;

/// A folder that is removed when this is dropped.
struct Folder(PathBuf);

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
    let thread = format!("{:?}", std::thread::current().id()).replace(['(', ')'], "-");
    let name = format!("millrace-fuzz-model-{}-{thread}", std::process::id());
    let folder = Folder(std::env::temp_dir().join(name));
    std::fs::create_dir_all(&folder.0).unwrap();
    let mut parts = data.splitn(2, |&byte| byte == 0);
    for (name, bytes) in ["config.json", "model.safetensors"].into_iter().zip(&mut parts) {
        std::fs::write(folder.0.join(name), bytes).unwrap();
    }
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    #[test]
    fn model_seeds_pass() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/models");
        let mut seeds = 0;
        for entry in std::fs::read_dir(folder).unwrap() {
            super::models(&std::fs::read(entry.unwrap().path()).unwrap());
            seeds += 1;
        }
        assert!(seeds > 20, "{seeds} seeds");
    }
}
