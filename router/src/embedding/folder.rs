//! Reads the files in which sentence-transformers describes a model of vectors.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Component, Path};
use std::sync::Arc;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::configuration::{EmbeddingError, size};
use super::layers::{Dense, LayerNorm, VectorModule};
use super::model::{ConfiguredPooling, EmbeddingFiles, EmbeddingModel, MODULES, TokenBound};
use super::pooling::{PoolingConfig, gguf_mode};

/// The configuration of the pooling of a folder without a list of modules.
const POOLING: &str = "1_Pooling/config.json";

/// Prompts, and the kind of the model.
const PROMPTS: &str = "config_sentence_transformers.json";

/// The configuration of the transformer in the layout of sentence-transformers. The first file that
/// exists is used.
const TRANSFORMER: [&str; 7] = [
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
];

/// Returns the names of the small files that describe vectors of texts. The list of modules may
/// name more.
pub fn configuration_files() -> impl Iterator<Item = &'static str> {
    [MODULES, POOLING, PROMPTS].into_iter().chain(TRANSFORMER)
}

/// The most modules of a model.
const MAX_MODULES: usize = 32;

/// The content of a file, or `None` if it does not exist. An error names the file.
pub(crate) type FileContent<'f> = Result<Option<Cow<'f, [u8]>>, String>;

/// A module in the list.
#[derive(Debug, Deserialize)]
struct ListedModule {
    #[serde(default)]
    path: String,
    r#type: String,
}

/// The files of a folder: `read` returns the content of a file, or `None` if it does not exist.
/// Modules with weights need `path`.
struct Folder<'a, 'f> {
    path: Option<&'a Path>,
    read: &'a dyn Fn(&str) -> FileContent<'f>,
}

/// Reads what a folder says about vectors. `config` is the content of `config.json`, and
/// `tokenizer_config` the content of `tokenizer_config.json`.
pub(crate) fn read<'f>(
    path: Option<&Path>,
    read: &dyn Fn(&str) -> FileContent<'f>,
    config: &Value,
    tokenizer_config: &Value,
) -> EmbeddingFiles {
    match (Folder { path, read }).model(tokenizer_config) {
        Ok(mut model) => {
            if let Some(pooling) = gguf_pooling(config) {
                model.set_gguf_pooling(pooling);
            }
            EmbeddingFiles::Usable(Arc::new(model))
        }
        Err(error) => EmbeddingFiles::Unusable(error),
    }
}

impl Folder<'_, '_> {
    fn model(&self, tokenizer_config: &Value) -> Result<EmbeddingModel, EmbeddingError> {
        let mut model = EmbeddingModel::default();
        let listed: Option<Vec<ListedModule>> = self.json(MODULES)?;
        self.read_prompts(&mut model)?;
        self.read_transformer(&mut model)?;
        let Some(listed) = listed else {
            if let Some(config) = self.json(POOLING)? {
                model.set_pooling(POOLING, &config)?;
            }
            return Ok(model);
        };
        if model.max_tokens.is_none() {
            // Newer versions keep the limit with the tokenizer, whose default is a huge number.
            let tokens = tokenizer_config.get("model_max_length").and_then(size);
            let source = "model_max_length of tokenizer_config.json".to_owned();
            model.max_tokens = tokens.map(|tokens| TokenBound { tokens, source });
        }
        if listed.len() > MAX_MODULES {
            return Err(wrong(format!("it lists {} modules, more than {MAX_MODULES}", listed.len())));
        }
        for (index, module) in listed.iter().enumerate() {
            self.add_module(&mut model, index, module)?;
        }
        if model.pooling.is_none() {
            return Err(wrong("it lists no Pooling module, so there are no vectors"));
        }
        Ok(model)
    }

    fn add_module(
        &self,
        model: &mut EmbeddingModel,
        index: usize,
        module: &ListedModule,
    ) -> Result<(), EmbeddingError> {
        let ListedModule { path, r#type: kind } = module;
        let is_plain = Path::new(path).components().all(|part| matches!(part, Component::Normal(_)));
        if !is_plain || path.contains('\\') {
            return Err(wrong(format!("the path {path:?} of a module does not stay in the folder")));
        }
        let file = if path.is_empty() { "config.json".to_owned() } else { format!("{path}/config.json") };
        // All versions of sentence-transformers keep the name of the class.
        let class = kind.strip_prefix("sentence_transformers.").and_then(|path| path.rsplit('.').next());
        match (class, &model.pooling) {
            (Some("Transformer"), None) if index == 0 && path.is_empty() => {}
            (Some("Transformer"), None) if index == 0 => {
                return Err(wrong(format!(
                    "the transformer is in the folder {path:?}; move its files beside modules.json, and set its path \
                     to \"\""
                )));
            }
            (Some("Pooling"), None) if index > 0 => {
                model.set_pooling(&file, &self.required(&file)?)?;
            }
            (Some("Dense"), Some(_)) => {
                let config = self.required(&file)?;
                check_input(&file, &config)?;
                let dense = Dense::read(&file, &self.weights_of(path)?, &config)?;
                model.modules.push(VectorModule::Dense(dense));
            }
            (Some("LayerNorm"), Some(_)) => {
                let norm = LayerNorm::read(&file, &self.weights_of(path)?, &self.required(&file)?)?;
                model.modules.push(VectorModule::LayerNorm(norm));
            }
            (Some("Normalize"), Some(_)) => {
                // Older versions write no configuration.
                if let Some(config) = self.json::<Map<String, Value>>(&file)?.filter(|_| !path.is_empty()) {
                    check_input(&file, &config)?;
                }
                model.modules.push(VectorModule::Normalize);
            }
            // It only changes the training.
            (Some("Dropout"), Some(_)) => {}
            (Some("Transformer" | "Pooling" | "Dense" | "LayerNorm" | "Normalize" | "Dropout"), _) => {
                return Err(wrong(format!(
                    "the module {kind} at place {index} is not supported there: a Transformer comes first, then one \
                     Pooling, then Dense, LayerNorm and Normalize"
                )));
            }
            _ => {
                return Err(wrong(format!(
                    "the module {kind} is not supported; Transformer, Pooling, Dense, LayerNorm, Normalize and Dropout \
                     of sentence-transformers are"
                )));
            }
        }
        Ok(())
    }

    /// Returns the folder with the weights of a module.
    fn weights_of(&self, path: &str) -> Result<std::path::PathBuf, EmbeddingError> {
        let folder = self.path.filter(|_| !path.is_empty()).map(|folder| folder.join(path));
        folder.ok_or_else(|| wrong(format!("the module at {path:?} has no folder with weights")))
    }

    fn read_transformer(&self, model: &mut EmbeddingModel) -> Result<(), EmbeddingError> {
        for file in TRANSFORMER {
            let Some(config) = self.json::<Map<String, Value>>(file)? else { continue };
            let fault = |reason: &str| Err(EmbeddingError::new(file, reason));
            for (key, value) in &config {
                match (key.as_str(), value) {
                    (_, Value::Null) => {}
                    ("max_seq_length", value) => match size(value) {
                        Some(tokens) => {
                            let source = format!("max_seq_length of {file}");
                            model.max_tokens = Some(TokenBound { tokens, source });
                        }
                        None => return fault("`max_seq_length` must be a number of tokens"),
                    },
                    ("do_lower_case", Value::Bool(lower_case)) => model.lower_case = *lower_case,
                    ("transformer_task", Value::String(task)) if task == "feature-extraction" => {}
                    ("transformer_task", _) => {
                        return fault(&format!(
                            "`transformer_task` {value} is not supported; feature-extraction is"
                        ));
                    }
                    ("module_output_name", Value::String(name)) if name == "token_embeddings" => {}
                    ("modality_config", modalities) => check_modalities(file, modalities)?,
                    // Arguments for the libraries of Python, which newer versions write.
                    (_, Value::Object(arguments)) if arguments.is_empty() => {}
                    ("unpad_inputs" | "backend", _) => {}
                    (key, value) => {
                        tracing::warn!("{file}: `{key}` ({value}) is not supported and has no effect")
                    }
                }
            }
            return Ok(());
        }
        Ok(())
    }

    fn read_prompts(&self, model: &mut EmbeddingModel) -> Result<(), EmbeddingError> {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Config {
            prompts: Option<BTreeMap<String, Option<String>>>,
            default_prompt_name: Option<String>,
            model_type: Option<String>,
        }
        let Some(config) = self.json::<Config>(PROMPTS)? else { return Ok(()) };
        if let Some(kind) = config.model_type.filter(|kind| kind != "SentenceTransformer") {
            let reason = format!("the model is a {kind}; vectors are those of a SentenceTransformer");
            return Err(EmbeddingError::new(PROMPTS, reason));
        }
        let prompts = config.prompts.unwrap_or_default().into_iter();
        model.prompts = prompts.map(|(name, text)| (name, text.unwrap_or_default())).collect();
        if let Some(name) = config.default_prompt_name {
            if !model.prompts.contains_key(&name) {
                let reason = format!("`default_prompt_name` is {name:?}, but `prompts` has no such prompt");
                return Err(EmbeddingError::new(PROMPTS, reason));
            }
            model.default_prompt = Some(name);
        }
        Ok(())
    }

    /// Returns the content of a file that must exist, because the list of modules needs it.
    fn required(&self, file: &str) -> Result<Map<String, Value>, EmbeddingError> {
        self.json(file)?.ok_or_else(|| EmbeddingError::new(file, "it is missing, and modules.json names it"))
    }

    fn json<T: DeserializeOwned>(&self, file: &str) -> Result<Option<T>, EmbeddingError> {
        let bytes = (self.read)(file).map_err(EmbeddingError::plain)?;
        let Some(bytes) = bytes else { return Ok(None) };
        serde_json::from_slice(&bytes)
            .map(Some)
            .map_err(|error| EmbeddingError::new(file, format!("it is not valid: {error}")))
    }
}

impl EmbeddingModel {
    fn set_pooling(&mut self, file: &str, config: &Map<String, Value>) -> Result<(), EmbeddingError> {
        let PoolingConfig { modes, features, include_prompt } = PoolingConfig::read(file, config)?;
        self.excludes_prompt = !include_prompt;
        self.pooling = Some(ConfiguredPooling { file: file.to_owned(), modes, features });
        Ok(())
    }

    /// Uses the pooling of a GGUF file, unless the files beside it name one.
    fn set_gguf_pooling(&mut self, found: ConfiguredPooling) {
        match &self.pooling {
            None => self.pooling = Some(found),
            Some(used) if used.modes != found.modes => {
                tracing::warn!(
                    "{}: its pooling differs from that of {}, which is used",
                    found.file,
                    used.file
                )
            }
            Some(_) => {}
        }
    }
}

/// Returns the pooling of a GGUF file, whose number is in the `config.json` that was translated
/// from the file.
fn gguf_pooling(config: &Value) -> Option<ConfiguredPooling> {
    let pooling = config.get("millrace")?.get("pooling")?;
    let file = format!("{} of the GGUF file", pooling.get("key")?.as_str()?);
    let modes = gguf_mode(pooling.get("type")?.as_u64()?).map(|mode| vec![mode]);
    Some(ConfiguredPooling { file, modes, features: None })
}

/// Refuses a module that reads or writes something else than the vector of the text.
fn check_input(file: &str, config: &Map<String, Value>) -> Result<(), EmbeddingError> {
    for key in ["module_input_name", "module_output_name"] {
        if let Some(name) = config.get(key).filter(|name| !name.is_null() && *name != "sentence_embedding") {
            let reason = format!("`{key}` {name} is not supported; sentence_embedding is");
            return Err(EmbeddingError::new(file, reason));
        }
    }
    Ok(())
}

/// Refuses a model that takes no texts, or whose vectors are made of something else than its last
/// states.
fn check_modalities(file: &str, modalities: &Value) -> Result<(), EmbeddingError> {
    let Some(text) = modalities.get("text") else {
        return Err(EmbeddingError::new(file, "`modality_config` has no texts"));
    };
    let output = text.get("method_output_name").unwrap_or(&Value::Null);
    if output.is_null() || output == "last_hidden_state" {
        return Ok(());
    }
    let reason = format!("`method_output_name` {output} is not supported; last_hidden_state is");
    Err(EmbeddingError::new(file, reason))
}

fn wrong(reason: impl std::fmt::Display) -> EmbeddingError {
    EmbeddingError::new(MODULES, reason)
}
