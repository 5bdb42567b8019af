//! Files that hold a whole model in another layout than that of Hugging Face, each as a checkpoint
//! in that layout.
//!
//! A reader of such a format translates the configuration to the keys of `config.json`, and the
//! names of tensors to those of the same model in safetensors files. So everything behind it knows
//! one layout. What a converter has changed is said in an object of the configuration, `millrace`.

use crate::error::Error;
use crate::fault::FileFault;
use crate::flm;
use crate::ggml;
use crate::gguf;
use crate::llama2c;
use crate::mapped_file::MappedFile;
use crate::pytorch;
use crate::translated::ModelFile;
use crate::vocabulary::TokenizerData;

/// Opens the model in `file`. `beside` maps another file of the same folder.
pub(crate) fn open(
    file: MappedFile,
    beside: impl Fn(&str) -> Result<Option<MappedFile>, Error>,
) -> Result<ModelFile, Error> {
    if file.starts_with(gguf::MAGIC) {
        return gguf::open(file, beside);
    }
    if ggml::is_ggml(&file) {
        return ggml::open(file);
    }
    if file.starts_with(llama2c::MAGIC) || llama2c::is_legacy(&file) {
        return llama2c::open(file);
    }
    if flm::is_flm(&file) {
        return flm::open(file);
    }
    Err(unknown(&file))
}

/// Reads the tokenizer of `file`. Returns `None` if there is none.
pub(crate) fn tokenizer(file: &MappedFile) -> Result<Option<TokenizerData>, Error> {
    if file.starts_with(gguf::MAGIC) {
        return gguf::tokenizer(file);
    }
    if ggml::is_ggml(file) {
        return ggml::tokenizer(file).map(Some);
    }
    if file.starts_with(llama2c::MAGIC) || llama2c::is_legacy(file) {
        return Ok(None);
    }
    if flm::is_flm(file) {
        return flm::tokenizer(file);
    }
    Err(unknown(file))
}

fn unknown(file: &MappedFile) -> Error {
    let reason = if file.starts_with(b"version https://git-lfs") {
        "it is a Git LFS pointer, not the file itself; run `git lfs pull` in its folder"
    } else if pytorch::is_archive(file) {
        "it is an archive of PyTorch, which has no configuration: give the folder that holds it as pytorch_model.bin, \
         beside config.json"
    } else {
        "it has no format of models that is known: give a GGUF or GGML file, a checkpoint of llama2.c, a file of FastLLM, or a folder \
         with config.json and safetensors files"
    };
    Error::ModelFile { file: file.path.clone(), format: "model", fault: FileFault::Kind(reason.to_owned()) }
}
