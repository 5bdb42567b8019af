//! The entry points of `cargo xtask fuzz` for files that hold a whole model, and for those of
//! PyTorch. The inputs in `fuzz/seeds/model_files` and `fuzz/seeds/pytorch` also run as a normal
//! test.
#![allow(clippy::unwrap_used, reason = "the target searches for panics")]

use std::path::PathBuf;

use crate::{Checkpoint, Source};

/// A file that is removed when this is dropped.
struct Input(PathBuf);

impl Drop for Input {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Reads everything of a model file. It may be refused, but every tensor must lie in the file.
///
/// # Panics
/// If a reader returns a tensor that contradicts itself, or the file cannot be written.
pub fn model_files(data: &[u8]) {
    let thread = format!("{:?}", std::thread::current().id()).replace(['(', ')'], "-");
    let name = format!("millrace-fuzz-{}-{thread}.gguf", std::process::id());
    let input = Input(std::env::temp_dir().join(name));
    std::fs::write(&input.0, data).unwrap();
    let source = Source::File(input.0.clone());
    let config = source.config();
    if let Ok(Some(tokenizer)) = source.tokenizer_data() {
        let count = tokenizer.tokens.len();
        assert!(tokenizer.scores.is_empty() || tokenizer.scores.len() == count);
        assert!(tokenizer.kinds.is_empty() || tokenizer.kinds.len() == count);
        assert!(tokenizer.scores.iter().all(|score| score.is_finite()));
    }
    let Ok(checkpoint) = Checkpoint::open(&source) else { return };
    assert!(config.is_ok(), "a checkpoint without a configuration");
    for info in checkpoint.tensors() {
        let tensor = checkpoint.tensor(&info.name, &info.shape).unwrap();
        assert_eq!(tensor.bytes.len(), info.bytes);
        // The last byte is in the mapping.
        assert_eq!(tensor.bytes.last().is_some(), info.bytes > 0);
    }
    checkpoint.check_readable().unwrap();
}

/// Reads the tensors of a PyTorch file. It may be refused, but every tensor must lie in the file.
///
/// # Panics
/// If the reader returns a tensor that contradicts itself.
pub fn pytorch(data: &[u8]) {
    let Ok(entries) = crate::pytorch::read("fuzz.bin", data) else { return };
    for entry in entries {
        let elements = entry.shape.iter().product::<usize>();
        assert_eq!(entry.range.len(), elements * entry.dtype.bits().unwrap() / 8, "{entry:?}");
        assert!(data.get(entry.range.clone()).is_some(), "{entry:?}");
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    #[test]
    fn seeds_pass_and_are_models() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds/model_files");
        let mut read = 0;
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            super::model_files(&std::fs::read(&path).unwrap());
            let checkpoint = crate::Checkpoint::open(&crate::Source::File(path.clone()));
            read += usize::from(checkpoint.unwrap_or_else(|error| panic!("{error}")).tensors().count() > 0);
        }
        assert!(read >= 5, "{read} seeds");
    }

    #[test]
    fn pytorch_seeds_pass() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds/pytorch");
        for entry in std::fs::read_dir(folder).unwrap() {
            super::pytorch(&std::fs::read(entry.unwrap().path()).unwrap());
        }
    }
}
