//! The fields of `tokenizer_config.json`, and the ids of tokens in other configurations.

use serde::Deserialize;
use serde_json::Value;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct TokenizerConfig {
    pub(super) chat_template: Option<Templates>,
    pub(super) bos_token: Option<TokenText>,
    pub(super) eos_token: Option<TokenText>,
    pub(super) pad_token: Option<TokenText>,
    pub(super) unk_token: Option<TokenText>,
    pub(super) tokenizer_class: Option<String>,
    pub(super) add_bos_token: Option<bool>,
    pub(super) add_eos_token: Option<bool>,
}

/// A special token: its text, or an object with its properties.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum TokenText {
    Text(String),
    Object { content: String },
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Templates {
    One(String),
    Named(Vec<NamedTemplate>),
}

#[derive(Debug, Deserialize)]
pub(super) struct NamedTemplate {
    pub(super) name: String,
    pub(super) template: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct TokenIds {
    pub(super) bos_token_id: Option<Ids>,
    pub(super) eos_token_id: Option<Ids>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Ids {
    One(u32),
    Many(Vec<u32>),
    /// Some configurations use -1 or an empty string for "none".
    None(#[allow(dead_code)] Value),
}

impl Ids {
    pub(super) fn list(self) -> Vec<u32> {
        match self {
            Ids::One(id) => vec![id],
            Ids::Many(ids) => ids,
            Ids::None(_) => Vec::new(),
        }
    }
}

impl TokenText {
    pub(super) fn into_text(self) -> String {
        match self {
            TokenText::Text(text) | TokenText::Object { content: text } => text,
        }
    }
}

impl Templates {
    /// Returns the usual template and the one for tools. Each can stand in for the other.
    pub(super) fn split(self) -> (Option<String>, Option<String>) {
        match self {
            Templates::One(template) => (Some(template), None),
            Templates::Named(mut list) => {
                let mut take = |name: &str| {
                    let index = list.iter().position(|entry| entry.name == name)?;
                    Some(list.swap_remove(index).template)
                };
                let (default, tools) = (take("default"), take("tool_use"));
                (default.or_else(|| tools.clone()), tools)
            }
        }
    }
}
