//! How a model makes vectors of texts, by the files of its folder.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::configuration::EmbeddingError;
use super::layers::VectorModule;
use super::pooling::{PoolingMode, UnknownPooling};

/// The list of modules.
pub const MODULES: &str = "modules.json";

/// The description of vectors of texts in a folder.
#[derive(Debug, Clone)]
pub enum EmbeddingFiles {
    /// The files describe vectors, or say nothing about them.
    Usable(Arc<EmbeddingModel>),
    /// The files describe vectors that cannot be computed.
    Unusable(EmbeddingError),
}

impl Default for EmbeddingFiles {
    fn default() -> Self {
        EmbeddingFiles::Usable(Arc::default())
    }
}

/// How a model makes vectors of texts, by the files of its folder. By default the files say
/// nothing.
#[derive(Debug, Clone, Default)]
pub struct EmbeddingModel {
    pub(super) pooling: Option<ConfiguredPooling>,
    /// Whether the states of a prompt in front of a text are left out of the pooling.
    pub(super) excludes_prompt: bool,
    /// The modules after the pooling, in their order.
    pub(super) modules: Vec<VectorModule>,
    /// The maximum number of tokens of a text, if a file limits it.
    pub(super) max_tokens: Option<TokenBound>,
    /// Whether texts are converted to lower case.
    pub(super) lower_case: bool,
    /// Texts that requests can put in front of a text, by name.
    pub(super) prompts: BTreeMap<String, String>,
    /// The name of the prompt for requests that name none.
    pub(super) default_prompt: Option<String>,
}

/// The pooling that a file asks for.
#[derive(Debug, Clone)]
pub(super) struct ConfiguredPooling {
    pub(super) file: String,
    pub(super) modes: Result<Vec<PoolingMode>, UnknownPooling>,
    /// The number of features of a state, if the file has it.
    pub(super) features: Option<usize>,
}

/// The maximum number of tokens of a text, and the file that sets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenBound {
    /// The number of tokens, including the special tokens around the text.
    pub tokens: usize,
    /// The file and the key.
    pub source: String,
}

/// The pooling of a model, and what has chosen it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChosenPooling {
    /// The modes, whose vectors follow each other.
    pub modes: Vec<PoolingMode>,
    /// A file, a flag, or the rule for models whose files say nothing.
    pub source: String,
    /// Whether nothing but that rule has chosen it.
    pub is_guess: bool,
}

impl EmbeddingModel {
    /// Returns the pooling: `asked`, which is that of the operator, or else that of the folder, or
    /// else `usual`.
    ///
    /// # Errors
    /// If the folder asks for an unknown pooling.
    pub fn pooling(
        &self,
        asked: Option<PoolingMode>,
        usual: impl FnOnce() -> PoolingMode,
    ) -> Result<ChosenPooling, EmbeddingError> {
        let (modes, source, is_guess) = match (asked, &self.pooling) {
            (Some(mode), _) => (vec![mode], "--pooling", false),
            (None, Some(pooling)) => {
                let modes = pooling.modes.clone();
                (modes.map_err(|error| EmbeddingError::new(&pooling.file, error))?, &*pooling.file, false)
            }
            (None, None) => (vec![usual()], "default", true),
        };
        Ok(ChosenPooling { modes, source: source.to_owned(), is_guess })
    }

    /// Returns the number of features of a vector, for states with `hidden` features and a pooling
    /// of `modes` modes.
    ///
    /// # Errors
    /// If the files contradict these numbers or each other.
    pub fn output_features(&self, hidden: usize, modes: usize) -> Result<usize, EmbeddingError> {
        if let Some(ConfiguredPooling { file, features: Some(features), .. }) = &self.pooling
            && *features != hidden
        {
            let reason = format!("states have {features} features there, but the model's have {hidden}");
            return Err(EmbeddingError::new(file, reason));
        }
        let mut width = hidden.saturating_mul(modes);
        for module in &self.modules {
            if let Some(inputs) = module.inputs().filter(|inputs| *inputs != width) {
                let reason = format!("{module} takes {inputs} features, but gets {width}");
                return Err(EmbeddingError::new(MODULES, reason));
            }
            width = module.outputs(width);
        }
        Ok(width)
    }

    /// Computes the vector of a text from its pooled states.
    pub fn apply(&self, pooled: Vec<f32>) -> Vec<f32> {
        self.modules.iter().fold(pooled, |vector, module| module.apply(vector))
    }

    /// Returns whether the modules contain a matrix, whose product takes a notable time.
    pub fn has_matrix(&self) -> bool {
        self.modules.iter().any(|module| matches!(module, VectorModule::Dense(_)))
    }

    /// Returns whether the last module scales vectors to the length 1.
    pub fn normalizes(&self) -> bool {
        matches!(self.modules.last(), Some(VectorModule::Normalize))
    }

    /// Returns the descriptions of the modules after the pooling.
    pub fn modules(&self) -> Vec<String> {
        self.modules.iter().map(ToString::to_string).collect()
    }

    /// Returns the maximum number of tokens of a text, if a file limits it.
    pub fn max_tokens(&self) -> Option<&TokenBound> {
        self.max_tokens.as_ref()
    }

    /// Returns whether the states of a prompt in front of a text are left out of the pooling.
    pub fn excludes_prompt(&self) -> bool {
        self.excludes_prompt
    }

    /// Returns whether a file of the folder says how vectors are made.
    pub fn is_configured(&self) -> bool {
        self.pooling.is_some() || !self.modules.is_empty()
    }

    /// Returns the prompt with this name, or the default prompt if no name is given. There may be
    /// no default prompt.
    ///
    /// # Errors
    /// The names of all prompts, if there is no prompt with this name.
    pub fn prompt(&self, name: Option<&str>) -> Result<Option<&str>, String> {
        let Some(name) = name.or(self.default_prompt.as_deref()) else { return Ok(None) };
        match self.prompts.get(name) {
            Some(prompt) => Ok(Some(prompt)),
            None if self.prompts.is_empty() => Err("the model's folder has no prompts".to_owned()),
            None => {
                let names: Vec<&str> = self.prompts.keys().map(String::as_str).collect();
                Err(format!("the model's folder has no prompt {name:?}, but {}", names.join(", ")))
            }
        }
    }

    /// Returns the names of the prompts.
    pub fn prompt_names(&self) -> impl Iterator<Item = &str> {
        self.prompts.keys().map(String::as_str)
    }

    /// Returns the name of the prompt for requests that name none.
    pub fn default_prompt(&self) -> Option<&str> {
        self.default_prompt.as_deref()
    }

    /// Returns a text as the model expects it, behind a prompt.
    pub fn text(&self, prompt: Option<&str>, text: &str) -> String {
        let text = [prompt.unwrap_or_default(), text].concat();
        if self.lower_case { text.to_lowercase() } else { text }
    }
}
