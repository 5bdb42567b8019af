//! The files of a model folder that the router needs.

mod sampling;

use std::path::Path;

use millrace_formats::vocabulary::TokenizerData;
use millrace_text::assets::{AssetError, ModelFiles, TextAssets};
use serde_json::{Map, Value};

pub use self::sampling::SamplingDefaults;
use crate::embedding::{self, EmbeddingFiles};

/// The files of a model that the router reads.
#[derive(Debug, Clone, Default)]
pub struct Assets {
    /// The tokenizer, the chat template, and what else the files say about text.
    pub text: TextAssets,
    /// The sampling parameters for requests that do not specify them, from
    /// `generation_config.json`.
    pub sampling: SamplingDefaults,
    /// The description of vectors of texts in the folder.
    pub embedding: EmbeddingFiles,
    /// The number of features of a state by `config.json`.
    pub hidden_size: Option<usize>,
    /// Whether `config.json` says that the model generates texts or classifies them, so that it is
    /// of use without vectors.
    pub has_head: bool,
    /// The names of the classes of a classifier, from `id2label` of `config.json`. Empty if it has
    /// none.
    pub class_names: Vec<String>,
    /// Whether `model_input_names` of `tokenizer_config.json` leaves out the types of tokens, so
    /// that all tokens of a pair have the first type.
    pub omits_token_types: bool,
}

impl Assets {
    /// Reads the files from a folder.
    ///
    /// # Errors
    /// [`AssetError`] names the file and a remedy.
    pub fn from_dir(folder: &Path) -> Result<Self, AssetError> {
        Self::read(&ModelFiles::in_folder(folder), None)
    }

    /// Reads the files of a model that is one file: those of the folder, unless `inside` has a file
    /// of that name, as it was translated from the model's file. The tokenizer is the
    /// `tokenizer.json` of the folder, or else `tokenizer`, which was in the model's file, or else
    /// that of another file in the folder.
    ///
    /// # Errors
    /// [`AssetError`] names the file and a remedy.
    pub fn from_model_file(
        folder: &Path,
        inside: &[(&str, Vec<u8>)],
        tokenizer: Option<TokenizerData>,
    ) -> Result<Self, AssetError> {
        Self::read(&ModelFiles::in_model_file(folder, inside), tokenizer)
    }

    /// Reads the files from memory.
    ///
    /// # Errors
    /// [`AssetError`] names the file and a remedy.
    pub fn from_files(files: &[(&str, &[u8])]) -> Result<Self, AssetError> {
        Self::read(&ModelFiles::in_memory(files), None)
    }

    fn read(files: &ModelFiles<'_>, tokenizer: Option<TokenizerData>) -> Result<Self, AssetError> {
        let text = TextAssets::read(files, tokenizer)?;
        let config: Value = files.json("config.json")?;
        let generation: Map<String, Value> = files.json("generation_config.json")?;
        let tokenizer_config: Value = files.json("tokenizer_config.json")?;
        let embedding = embedding::read(
            files.folder(),
            &|name| files.read(name).map_err(|error| error.to_string()),
            &config,
            &tokenizer_config,
        );
        Ok(Assets {
            text,
            sampling: SamplingDefaults::of(&generation),
            embedding,
            hidden_size: hidden_size(&config),
            has_head: has_head(&config),
            class_names: class_names(&config),
            omits_token_types: omits_token_types(&tokenizer_config),
        })
    }
}

/// The most names of classes that are read. Shards refuse a classifier with fewer outputs than
/// that.
const MAX_CLASSES: usize = 1024;

/// Returns the names of classes in the order of their numbers, up to the first number without one.
fn class_names(config: &Value) -> Vec<String> {
    let name = |class: usize| config.get("id2label")?.get(class.to_string())?.as_str().map(str::to_owned);
    (0..MAX_CLASSES).map_while(name).collect()
}

/// Whether the tokenizer's configuration lists the inputs of the model without the types of tokens.
fn omits_token_types(tokenizer_config: &Value) -> bool {
    let names = tokenizer_config.get("model_input_names").and_then(Value::as_array);
    names.is_some_and(|names| names.iter().all(|name| name != "token_type_ids"))
}

/// Returns the number of features of a state, if `config.json` has it under a usual name.
fn hidden_size(config: &Value) -> Option<usize> {
    let parts = [Some(config), config.get("text_config")];
    let sizes = parts.into_iter().flatten().flat_map(|part| {
        ["hidden_size", "d_model", "n_embd", "dim"].map(|key| part.get(key).and_then(Value::as_u64))
    });
    sizes.flatten().next().and_then(|size| usize::try_from(size).ok())
}

/// Whether the names of the architectures in `config.json` say that the model generates texts or
/// classifies them.
fn has_head(config: &Value) -> bool {
    let heads = ["ForCausalLM", "LMHeadModel", "ForConditionalGeneration", "ForSequenceClassification"];
    let names = config.get("architectures").and_then(Value::as_array);
    let mut names = names.into_iter().flatten().filter_map(Value::as_str);
    names.any(|name| heads.iter().any(|head| name.ends_with(head)))
}
