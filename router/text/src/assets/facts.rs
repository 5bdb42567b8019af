//! The properties of a model that decide about its tokenizer and its prompt format.

use serde_json::Value;

/// The configuration of a model, as far as tokenizers and prompt formats depend on it.
#[derive(Debug, Default)]
pub(super) struct ModelFacts {
    /// `model_type` of `config.json`; empty if absent.
    pub(super) model_type: String,
    /// The names of the model and of its folder, in lower case.
    pub(super) name: String,
    /// `tokenizer_class` of `tokenizer_config.json`.
    pub(super) tokenizer_class: Option<String>,
    /// `config.json`.
    pub(super) config: Value,
    /// `tokenizer_config.json`.
    pub(super) tokenizer_config: Value,
    /// `generation_config.json`.
    pub(super) generation: Value,
}

impl ModelFacts {
    /// Collects the properties. `origin` is the path of the folder.
    pub(super) fn new(origin: &str, config: Value, tokenizer_config: Value, generation: Value) -> Self {
        let text = |value: &Value, key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
        let folder = origin.rsplit(['/', '\\']).next().unwrap_or_default();
        let name = format!("{} {folder}", text(&config, "_name_or_path").unwrap_or_default()).to_lowercase();
        ModelFacts {
            model_type: text(&config, "model_type").unwrap_or_default(),
            name,
            tokenizer_class: text(&tokenizer_config, "tokenizer_class"),
            config,
            tokenizer_config,
            generation,
        }
    }

    /// Whether the model is ChatGLM-6B. Its successors have the same model type.
    pub(super) fn is_chatglm1(&self) -> bool {
        let has = |key| self.config.get(key).is_some();
        self.model_type == "chatglm" && (has("position_encoding_2d") || has("inner_hidden_size"))
    }

    /// Whether the model is ChatGLM3, whose configuration differs from ChatGLM2's in its name, its
    /// special tokens and the length of its context only.
    pub(super) fn is_chatglm3(&self) -> bool {
        let mentions = |key: &str| {
            self.tokenizer_config.get(key).is_some_and(|value| value.to_string().contains("<|user|>"))
        };
        self.model_type == "chatglm"
            && (self.name.contains("chatglm3")
                || mentions("added_tokens_decoder")
                || mentions("additional_special_tokens")
                || self.config.get("seq_length").and_then(Value::as_u64) == Some(8192))
    }

    /// Returns `add_bos_token` of `tokenizer_config.json`.
    pub(super) fn add_bos_token(&self) -> Option<bool> {
        self.tokenizer_config.get("add_bos_token").and_then(Value::as_bool)
    }

    /// Returns an id of `config.json`.
    pub(super) fn config_id(&self, key: &str) -> Option<u32> {
        id(&self.config, key)
    }

    /// Returns an id of `tokenizer_config.json`.
    pub(super) fn tokenizer_id(&self, key: &str) -> Option<u32> {
        id(&self.tokenizer_config, key)
    }

    /// Returns an id of `generation_config.json`.
    pub(super) fn generation_id(&self, key: &str) -> Option<u32> {
        id(&self.generation, key)
    }
}

/// The exclusive upper bound of ids in configurations.
const MAX_ID: u64 = 1 << 22;

fn id(value: &Value, key: &str) -> Option<u32> {
    let id = value.get(key).and_then(Value::as_u64).filter(|&id| id < MAX_ID)?;
    u32::try_from(id).ok()
}
