//! Statements of several files of a folder about the same thing, so that contradictions can be
//! named.

use serde_json::Value;

use super::configuration::{Ids, Templates, TokenIds};
use super::error::AssetError;
use super::facts::ModelFacts;
use super::files::ModelFiles;

/// The most tokens of `added_tokens_decoder` that are compared.
const MAX_ADDED: usize = 1 << 16;

/// Statements of the files of a folder about tokens and chat templates.
#[derive(Debug, Clone, Default)]
pub struct Claims {
    /// The ids that files name, such as `eos_token_id` of `config.json`.
    pub ids: Vec<ClaimedIds>,
    /// The ids and texts of `added_tokens_decoder` of `tokenizer_config.json`, if the tokenizer is
    /// in another file.
    pub added: Vec<(u32, String)>,
    /// The file with the chat template that is used, and the files with another one.
    pub templates: Option<(&'static str, Vec<&'static str>)>,
}

/// The ids that one file gives to a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimedIds {
    /// The name of the file.
    pub file: &'static str,
    /// The key in the file.
    pub key: &'static str,
    /// The ids, at least one.
    pub ids: Vec<u32>,
}

impl Claims {
    /// Collects what the files say. `has_json` tells whether the tokenizer is in `tokenizer.json`.
    pub(super) fn collect(
        files: &ModelFiles<'_>,
        facts: &ModelFacts,
        has_json: bool,
    ) -> Result<Self, AssetError> {
        let mut ids = Vec::new();
        // The file that is used comes first.
        for name in ["generation_config.json", "config.json"] {
            let found: TokenIds = files.json(name)?;
            for (key, found) in [("bos_token_id", found.bos_token_id), ("eos_token_id", found.eos_token_id)] {
                let found = found.map(Ids::list).filter(|ids| !ids.is_empty());
                ids.extend(found.map(|ids| ClaimedIds { file: name, key, ids }));
            }
        }
        let added = if has_json { added(&facts.tokenizer_config) } else { Vec::new() };
        Ok(Claims { ids, added, templates: templates(files, &facts.tokenizer_config)? })
    }
}

fn added(tokenizer_config: &Value) -> Vec<(u32, String)> {
    let listed = tokenizer_config.get("added_tokens_decoder").and_then(Value::as_object);
    let token =
        |(id, token): (&String, &Value)| Some((id.parse().ok()?, token.get("content")?.as_str()?.to_owned()));
    listed.into_iter().flatten().take(MAX_ADDED).filter_map(token).collect()
}

/// Returns the file with the chat template that is used, and the files with a template that differs
/// from it.
fn templates(
    files: &ModelFiles<'_>,
    tokenizer_config: &Value,
) -> Result<Option<(&'static str, Vec<&'static str>)>, AssetError> {
    let parsed = |config: &Value| -> Option<String> {
        let templates = serde_json::from_value(config.get("chat_template")?.clone()).ok()?;
        Templates::split(templates).0
    };
    let jinja =
        files.read("chat_template.jinja")?.and_then(|bytes| String::from_utf8(bytes.into_owned()).ok());
    let separate: Value = files.json("chat_template.json")?;
    let all = [
        ("chat_template.jinja", jinja),
        ("chat_template.json", parsed(&separate)),
        ("tokenizer_config.json", parsed(tokenizer_config)),
    ];
    let mut found = all.into_iter().filter_map(|(name, text)| Some((name, text?)));
    let Some((used, text)) = found.next() else { return Ok(None) };
    // A file of its own usually ends with a line break.
    let others = found.filter(|(_, other)| other.trim() != text.trim()).map(|(name, _)| name);
    Ok(Some((used, others.collect())))
}
