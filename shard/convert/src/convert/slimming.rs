//! A model with a part of its vocabulary.

use millrace_formats::Source;
use millrace_model::families;
use serde_json::{Map, Value, json};

use super::error::ConvertError;
use super::model::Model;
use super::token_ids::{self, REPLACED};
use super::vocabulary::{self, KeptIds, VocabularyCut};

const TOKENIZER: &str = "tokenizer.json";
/// The names of the number of tokens.
const COUNTS: [&str; 3] = ["vocab_size", "padded_vocab_size", "vocab_size_per_layer_input"];

/// The part of a vocabulary that stays, and the places where it is stored.
pub(super) struct Slimmed {
    pub(super) kept: KeptIds,
    /// Sorted names of the tensors with a row for each token.
    tensors: Vec<String>,
    rows: usize,
    tokenizer: Value,
}

/// Cuts the vocabulary of a model. Nothing is written.
///
/// # Errors
/// If the model is in one file, has no `tokenizer.json`, or stores the rows of tokens in another
/// way.
pub(super) fn cut(model: &Model<'_>, wanted: &VocabularyCut) -> Result<Slimmed, ConvertError> {
    let refused = |reason: String| ConvertError::Vocabulary { place: model.source.place(), reason };
    let Some(text) = (match model.source {
        Source::File(_) => None,
        _ => model.source.text(TOKENIZER)?,
    }) else {
        return Err(refused(
            "only a folder with tokenizer.json can be slimmed: convert it to one first".into(),
        ));
    };
    if !model.config.contains_key("vocab_size") {
        return Err(refused("config.json has no vocab_size".to_owned()));
    }
    let shapes: Map<String, Value> =
        model.checkpoint.tensors().map(|info| (info.name, json!(info.shape))).collect();
    let tensors = families::vocabulary_tensors(model.source, |name| shapes.contains_key(name))?;
    let rows_of = |name: &String| shapes.get(name).and_then(|shape| shape.get(0)).and_then(Value::as_u64);
    let rows: Vec<Option<u64>> = tensors.iter().map(rows_of).collect();
    let (Some(Some(count)), true) = (rows.first(), rows.windows(2).all(|pair| pair[0] == pair[1])) else {
        return Err(refused("its embedding is quantized, or embedding and head have different sizes".into()));
    };
    let count = *count as usize;
    let mut needed = token_ids::named(&model.config);
    if let Some(generation) =
        object(model, "generation_config.json", model.source.text("generation_config.json")?)?
    {
        needed.extend(token_ids::named(&generation));
    }
    let mut tokenizer = json_of(model, TOKENIZER, &text)?;
    let kept = vocabulary::cut(&mut tokenizer, count, &needed, wanted).map_err(refused)?;
    Ok(Slimmed { kept, tensors, rows: count, tokenizer })
}

impl Slimmed {
    /// Whether a tensor has a row for each token.
    pub(super) fn has(&self, tensor: &str) -> bool {
        self.tensors.iter().any(|name| name == tensor)
    }

    /// Changes a `config.json`.
    pub(super) fn rewrite_config(&self, config: &mut Map<String, Value>) {
        token_ids::replace(config, &self.kept);
        for key in COUNTS {
            if let Some(count) = config.get_mut(key) {
                *count = json!(self.kept.stored.len());
            }
        }
    }

    /// Returns the new content of one of the small files, if it stays.
    pub(super) fn rewrite_file(
        &self,
        model: &Model<'_>,
        name: &str,
        bytes: Vec<u8>,
    ) -> Result<Option<Vec<u8>>, ConvertError> {
        if REPLACED.contains(&name) || name.ends_with(".tiktoken") {
            return Ok(None);
        }
        let new = match name {
            TOKENIZER => self.tokenizer.clone(),
            "generation_config.json" | "tokenizer_config.json" => {
                let Some(mut config) = object(model, name, Some(bytes))? else { return Ok(None) };
                token_ids::replace(&mut config, &self.kept);
                token_ids::replace_in_tokenizer_config(&mut config, &self.kept);
                Value::Object(config)
            }
            _ => return Ok(Some(bytes)),
        };
        Ok(Some(format!("{new:#}\n").into_bytes()))
    }

    /// Returns a sentence about what stays.
    pub(super) fn note(&self) -> String {
        let (kept, unwanted) = (self.kept.stored.len(), self.kept.unwanted);
        let more = match unwanted {
            0 => String::new(),
            _ => format!(
                ", {unwanted} of them because they are special, single characters, or parts of others"
            ),
        };
        format!("{kept} of {} rows of the vocabulary stay{more}", self.rows)
    }
}

fn json_of(model: &Model<'_>, name: &str, bytes: &[u8]) -> Result<Value, ConvertError> {
    let error = |source| ConvertError::Json { file: model.source.path(name), source };
    serde_json::from_slice(bytes).map_err(error)
}

fn object(
    model: &Model<'_>,
    name: &str,
    bytes: Option<Vec<u8>>,
) -> Result<Option<Map<String, Value>>, ConvertError> {
    let Some(bytes) = bytes else { return Ok(None) };
    Ok(match json_of(model, name, &bytes)? {
        Value::Object(object) => Some(object),
        _ => None,
    })
}
