//! The logits and states of golden checkpoints that are written as GGUF files.

use std::path::{Path, PathBuf};

use crate::common::repository;
use crate::{encoders, golden};
use millrace_convert::convert::{ConvertTarget, GgufKind, convert};
use millrace_formats::Source;
use millrace_numbers::DType;

/// Writes a checkpoint in single precision. Returns `None` if its family, or what is particular
/// about it, has no GGUF file; the tests of the converter list those checkpoints.
fn write(from: &Path, folder: &Path) -> Option<PathBuf> {
    let file = folder.join("model.gguf");
    let target = ConvertTarget::Gguf { kind: GgufKind::Dense(DType::F32) };
    convert(&Source::Directory(from.to_owned()), &file, target, &mut |_, _| {}).ok()?;
    Some(file)
}

#[test]
fn written_gguf_files_give_the_logits_of_transformers() {
    let golden = repository().join("integration-tests/golden");
    let mut written = 0;
    for entry in std::fs::read_dir(golden).unwrap() {
        let from = entry.unwrap().path();
        let new = tempfile::tempdir().unwrap();
        let Some(file) = from.is_dir().then(|| write(&from, new.path())).flatten() else { continue };
        let case = from.file_name().unwrap().to_string_lossy().into_owned();
        assert!(golden::check(&case, &Source::File(file)) >= 1, "{case}");
        written += 1;
    }
    assert!(written >= 160, "{written} checkpoints were written");
}

#[test]
fn written_gguf_files_give_the_states_of_transformers() {
    let mut written = 0;
    for from in encoders::folders() {
        let new = tempfile::tempdir().unwrap();
        let Some(file) = write(&from, new.path()) else { continue };
        encoders::check_file(&from, &file);
        written += 1;
    }
    assert!(written >= 12, "{written} checkpoints were written");
}

/// An InternLM3 without biases is a Llama with another name.
#[test]
fn internlm3_is_written_as_a_llama() {
    let new = tempfile::tempdir().unwrap();
    let from = repository().join("integration-tests/golden/llama_gqa");
    std::fs::copy(from.join("model.safetensors"), new.path().join("model.safetensors")).unwrap();
    let config = std::fs::read_to_string(from.join("config.json")).unwrap();
    let renamed =
        config.replace("\"llama\"", "\"internlm3\"").replace("LlamaForCausalLM", "InternLM3ForCausalLM");
    std::fs::write(new.path().join("config.json"), &renamed).unwrap();
    let file = write(new.path(), new.path()).unwrap();
    assert!(golden::check("llama_gqa", &Source::File(file)) >= 2);
}
