//! The tokenizer of a new file, made from `tokenizer.json`.

use std::path::Path;

use millrace_formats::Source;
use millrace_formats::vocabulary::TokenizerData;
use serde_json::Value;

use super::error::ConvertError;
use super::model::Model;

/// The tokenizer of a model.
pub(super) struct ModelTokenizer {
    /// The text of `tokenizer.json`, from the folder of the model or from its file.
    pub(super) json: Option<String>,
    /// The vocabulary with the chat template, if it can be written to a file.
    pub(super) data: Option<TokenizerData>,
    /// The reason why the tokenizer cannot be written to a file.
    pub(super) refusal: Option<String>,
}

/// Finds the tokenizer of a model whose embedding has `rows` rows, or as many as the configuration
/// says.
pub(super) fn of(model: &Model<'_>, rows: Option<usize>) -> Result<ModelTokenizer, ConvertError> {
    const NAME: &str = "tokenizer.json";
    let text = match model.source {
        Source::File(path) => {
            let folder = path.parent().unwrap_or(Path::new("")).to_owned();
            Source::Directory(folder).text(NAME)?
        }
        folder => folder.text(NAME)?,
    };
    let inside = model.source.tokenizer_data()?;
    let text = text.map(|text| String::from_utf8_lossy(&text).into_owned());
    let json = text.or_else(|| inside.as_ref().and_then(|data| data.huggingface_json.clone()));
    let (mut data, mut refusal) = (inside, None);
    if let Some(text) = &json {
        let json = |source| ConvertError::Json { file: model.source.path(NAME), source };
        let rows = rows.map_or_else(|| model.count("vocab_size"), Ok)?;
        let read = TokenizerData::of_json(&serde_json::from_str(text).map_err(json)?, rows);
        (data, refusal) = (read.as_ref().ok().cloned(), read.err());
    }
    if let Some(data) = &mut data {
        let config: Option<Value> =
            model.source.text("tokenizer_config.json")?.and_then(|text| serde_json::from_slice(&text).ok());
        let template = config.as_ref().and_then(|config| config.get("chat_template")).and_then(Value::as_str);
        data.chat_template = template.map(str::to_owned).or(data.chat_template.take());
        if let Some(template) = model.source.text("chat_template.jinja")? {
            data.chat_template = Some(String::from_utf8_lossy(&template).into_owned());
        }
    }
    Ok(ModelTokenizer { json, data, refusal })
}
