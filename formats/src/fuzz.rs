//! The entry points of `cargo xtask fuzz` for files that hold a whole model, for PyTorch's files,
//! and for safetensors files and indices. The inputs in `fuzz/seeds` also run as normal tests.
#![allow(clippy::unwrap_used, reason = "the target searches for panics")]

use std::path::PathBuf;

use crate::{Checkpoint, Source};

/// A file or folder that is removed when this is dropped.
struct Input(PathBuf);

impl Input {
    /// Names an input of this thread. `end` is the end of its name.
    fn named(end: &str) -> Self {
        let thread = format!("{:?}", std::thread::current().id()).replace(['(', ')'], "-");
        let name = format!("millrace-fuzz-{}-{thread}{end}", std::process::id());
        Input(std::env::temp_dir().join(name))
    }
}

impl Drop for Input {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Reads everything of a model file. It may be refused, but every tensor must lie in the file.
///
/// # Panics
/// If a reader returns a tensor that contradicts itself, or the file cannot be written.
pub fn model_files(data: &[u8]) {
    let input = Input::named(".gguf");
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
    read_all(&checkpoint);
}

/// Reads all tensors of a checkpoint, which must agree with their descriptions.
fn read_all(checkpoint: &Checkpoint) {
    for info in checkpoint.tensors() {
        let tensor = checkpoint.tensor(&info.name, &info.shape).unwrap();
        assert_eq!(tensor.bytes.len(), info.bytes);
        // The last byte is in the mapping.
        assert_eq!(tensor.bytes.last().is_some(), info.bytes > 0);
    }
    checkpoint.check_readable().unwrap();
}

/// The headers and data of the files beside an index. Both files have a tensor `x`, and the first
/// one also has a tensor `y`.
const INDEXED: [(&str, &str, &[u8]); 2] = [
    (
        "a.safetensors",
        r#"{"x":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"y":{"dtype":"F16","shape":[1,1],"data_offsets":[2,4]}}"#,
        &[1, 2, 3, 4],
    ),
    ("b.safetensors", r#"{"x":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}"#, &[5, 6]),
];

/// Reads a safetensors file, or an index of them. The first byte selects: `i` is an index, and
/// everything else a file.
///
/// # Panics
/// If the reader returns a tensor that contradicts itself, or the files cannot be written.
pub fn safetensors(data: &[u8]) {
    let Some((kind, bytes)) = data.split_first() else { return };
    let folder = Input::named("");
    std::fs::create_dir_all(&folder.0).unwrap();
    let write = |name: &str, bytes: &[u8]| std::fs::write(folder.0.join(name), bytes).unwrap();
    if *kind == b'i' {
        write(crate::checkpoint::INDEX, bytes);
        for (name, header, data) in INDEXED {
            let length = (header.len() as u64).to_le_bytes();
            write(name, &[&length, header.as_bytes(), data].concat());
        }
    } else {
        write(crate::checkpoint::SINGLE, bytes);
    }
    let Ok(checkpoint) = Checkpoint::open(&Source::Directory(folder.0.clone())) else { return };
    read_all(&checkpoint);
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
    fn safetensors_seeds_pass() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds/safetensors");
        for entry in std::fs::read_dir(folder).unwrap() {
            super::safetensors(&std::fs::read(entry.unwrap().path()).unwrap());
        }
    }

    #[test]
    fn pytorch_seeds_pass() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds/pytorch");
        for entry in std::fs::read_dir(folder).unwrap() {
            super::pytorch(&std::fs::read(entry.unwrap().path()).unwrap());
        }
    }
}
