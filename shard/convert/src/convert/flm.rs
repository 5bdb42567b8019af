//! Writes a file of FastLLM.
//!
//! As FastLLM's own converter does, only the matrices of linear modules are rounded. Embeddings,
//! norms and biases have single precision.

use std::collections::BTreeSet;
use std::path::Path;

use millrace_formats::vocabulary::{PieceKind, TokenizerData};
use millrace_formats::{FlmKind, FlmTensor, FlmToken, TensorInfo, flm_header};
use millrace_model::families;
use millrace_numbers::DType;
use serde_json::Value;

use super::error::ConvertError;
use super::model::{ConvertReport, Model, continued};
use super::new_file::{FilePart, NewFile};
use super::tensors::{self, RowType, Rows};
use super::tokenizer;
use crate::partial::{Job, Partial, ResultKind};

/// The longest keys and values, and the largest number of keys and axes that readers take.
const MAX_KEY: usize = 1 << 10;
const MAX_VALUE: usize = 1 << 20;
const MAX_KEYS: usize = 1 << 12;
const MAX_AXES: usize = 4;

/// Keys of the configuration that describe the source and not the result.
const OMITTED: [&str; 2] = ["millrace", "quantization_config"];

pub(super) fn write(
    model: &Model<'_>,
    place: &Path,
    job: &Job,
    kind: FlmKind,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<ConvertReport, ConvertError> {
    if let Some(method) = model.quantization() {
        return Err(model.quantized(method));
    }
    let mut notes = Vec::new();
    let vocabulary = vocabulary(model, &mut notes)?;
    let keys = keys(model, vocabulary.as_ref())?;
    let planned = plan(model, kind)?;
    let (tokens, special) = vocabulary.as_ref().map(tokens).unwrap_or_default();
    let special = vocabulary.is_some().then_some(&special[..]);
    let header = flm_header(&keys, &tokens, special, planned.len());
    let part = |(_, new): &(TensorInfo, FlmTensor)| FilePart { name: new.name.clone(), bytes: new.bytes() };
    let partial = Partial::open(place, ResultKind::File, job)?;
    let mut file = NewFile::create(partial, &header, planned.iter().map(part).collect(), progress)?;
    notes.extend(continued(file.part(), planned.len()));
    for (info, new) in planned.iter().skip(file.part()) {
        tensor(model, info, new, &mut file)?;
        model.checkpoint.check_readable()?;
        file.end_part()?;
    }
    model.checkpoint.verify()?;
    file.complete()?;
    let bytes = planned.iter().map(|(_, new)| new.bytes()).sum();
    Ok(ConvertReport { tensors: planned.len(), bytes, notes })
}

/// Returns the tensors in the order of their names.
fn plan(model: &Model<'_>, kind: FlmKind) -> Result<Vec<(TensorInfo, FlmTensor)>, ConvertError> {
    let names = families::matrix_names(model.source)?;
    if kind.is_quantized() && names.transposed {
        return Err(model.unsupported(
            "its matrices are stored transposed, so that a range would belong to an input feature; give f32 or f16",
        ));
    }
    let exists = |name: &str| model.checkpoint.contains(name);
    let of_tokens = families::vocabulary_tensors(model.source, exists)?;
    let head = of_tokens.into_iter().filter(|name| !names.embedding.contains(name));
    let linear: BTreeSet<String> = names.layers.into_iter().flatten().chain(head).collect();
    let mut planned = Vec::new();
    for info in model.checkpoint.tensors() {
        // The frequencies of old checkpoints follow from the configuration.
        if info.name.ends_with("rotary_emb.inv_freq") {
            continue;
        }
        if info.shape.len() > MAX_AXES || info.name.len() > MAX_KEY {
            return Err(
                model.unsupported(format!("its tensor {} has too many axes or too long a name", info.name))
            );
        }
        let is_linear =
            info.shape.len() == 2 && info.name.ends_with(".weight") && linear.contains(&info.name);
        let kind = if is_linear { kind } else { FlmKind::F32 };
        let new = FlmTensor { name: info.name.clone(), shape: info.shape.clone(), kind };
        planned.push((info, new));
    }
    Ok(planned)
}

/// Writes a tensor: its description, and its elements.
fn tensor(
    model: &Model<'_>,
    info: &TensorInfo,
    new: &FlmTensor,
    file: &mut NewFile<'_>,
) -> Result<(), ConvertError> {
    // The rows of query and key have the order of Hugging Face.
    let order = match model.is_interleaved() {
        true => model.order(&info.name, info.shape.first().copied().unwrap_or(0), false)?,
        false => None,
    };
    let rows = order.map_or(Rows::All, Rows::Heads);
    let stored = model.checkpoint.tensor(&info.name, &info.shape)?;
    let dense = match new.kind {
        FlmKind::F32 => Some(DType::F32),
        FlmKind::F16 => Some(DType::F16),
        FlmKind::Int8 | FlmKind::Int4 => None,
    };
    if let Some(dtype) = dense {
        file.write(&new.description(&[]))?;
        let to = RowType::Dense(dtype);
        return tensors::convert(&info.name, &stored, rows, to, &mut |bytes| file.write(bytes));
    }
    let mut ranges = Vec::new();
    tensors::numbers(&info.name, &stored, rows, &mut |row| {
        if row.iter().any(|number| !number.is_finite()) {
            return Err(
                model.unsupported(format!("its tensor {} has weights that are no numbers", info.name))
            );
        }
        let limits = |(min, max): (f32, f32), number: &f32| (min.min(*number), max.max(*number));
        // A reader extends every range to 0.
        ranges.push(row.iter().fold((0.0, 0.0), limits));
        Ok(())
    })?;
    file.write(&new.description(&ranges))?;
    let (mut each, mut bytes, mut half) = (ranges.into_iter(), Vec::new(), None);
    tensors::numbers(&info.name, &stored, rows, &mut |row| {
        let scale = new.kind.scale(each.next().unwrap_or_default());
        bytes.clear();
        for &number in row {
            let code = new.kind.code(number, scale);
            match (new.kind, half.take()) {
                (FlmKind::Int4, None) => half = Some(code),
                // The even element is in the upper half, also where a row ends within a byte.
                (FlmKind::Int4, Some(even)) => bytes.push(even << 4 | code),
                _ => bytes.push(code),
            }
        }
        file.write(&bytes)
    })?;
    match half {
        Some(even) => file.write(&[even << 4]),
        None => Ok(()),
    }
}

/// Returns the tokenizer, if a file can hold it: one whose tokens have scores.
fn vocabulary(model: &Model<'_>, notes: &mut Vec<String>) -> Result<Option<TokenizerData>, ConvertError> {
    let found =
        tokenizer::of(model, None)?.data.filter(|data| data.model == "llama" && !data.scores.is_empty());
    if found.is_none() {
        notes.push("the format cannot hold this tokenizer: put tokenizer.json beside the file".to_owned());
    }
    Ok(found)
}

/// Returns the vocabulary, and the texts of special tokens.
fn tokens(data: &TokenizerData) -> (Vec<FlmToken>, Vec<String>) {
    let token = |(id, text): (usize, &String)| FlmToken {
        text: text.clone(),
        id: id as u32,
        score: data.scores.get(id).copied(),
    };
    let is_special =
        |id: &usize| matches!(data.kinds.get(*id), Some(PieceKind::Control | PieceKind::UserDefined));
    let special = (0..data.tokens.len()).filter(is_special).map(|id| data.tokens[id].clone()).collect();
    (data.tokens.iter().enumerate().map(token).collect(), special)
}

/// Returns the configuration as sorted keys with texts of Python.
fn keys(
    model: &Model<'_>,
    vocabulary: Option<&TokenizerData>,
) -> Result<Vec<(String, String)>, ConvertError> {
    let mut keys = std::collections::BTreeMap::new();
    for (key, value) in model.config.iter().filter(|(key, _)| !OMITTED.contains(&key.as_str())) {
        let text = python(value).ok_or_else(|| {
            model
                .unsupported(format!("the value of {key} in config.json cannot be written as text of Python"))
        })?;
        keys.insert(key.clone(), text);
        // FastLLM reads the keys of an object one by one.
        for (inner, value) in value.as_object().into_iter().flatten() {
            if let Some(text) = python(value).filter(|_| !value.is_object()) {
                keys.insert(format!("{key}.{inner}"), text);
            }
        }
    }
    let base = ["rope_parameters", "rope_scaling"]
        .into_iter()
        .find_map(|key| model.config.get(key).and_then(|scaling| scaling.get("rope_theta")));
    if let (Some(base), false) = (base, keys.contains_key("rope_theta")) {
        keys.insert("rope_theta".to_owned(), base.to_string());
    }
    let flag = |is_set: bool| if is_set { "1" } else { "0" }.to_owned();
    keys.insert("tokenizer_use_score".to_owned(), flag(vocabulary.is_some()));
    keys.insert("tokenizer_has_special_tokens".to_owned(), flag(vocabulary.is_some()));
    if let Some(data) = vocabulary {
        let mut add = |key: &str, value: Option<String>| {
            if let Some(value) = value {
                keys.insert(key.to_owned(), value);
            }
        };
        add("tokenizer_add_dummy_prefix", data.add_space_prefix.map(flag));
        add("tokenizer_remove_extra_whitespaces", data.remove_extra_whitespaces.map(flag));
        add("chat_template", data.chat_template.clone());
        add("bos_token_id", data.special.bos.map(|id| id.to_string()));
        add("eos_token_id", data.special.eos.map(|id| id.to_string()));
    }
    if keys.len() > MAX_KEYS {
        return Err(model.unsupported("its config.json has too many keys"));
    }
    if let Some((key, _)) = keys.iter().find(|(key, text)| key.len() > MAX_KEY || text.len() > MAX_VALUE) {
        return Err(model.unsupported(format!("the key {key:.100} of config.json is too long")));
    }
    Ok(keys.into_iter().collect())
}

/// Returns the text that `str` of Python gives for a value. Texts within lists and objects must not
/// need escapes, which readers of the format do not know.
fn python(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        other => inner(other),
    }
}

fn inner(value: &Value) -> Option<String> {
    Some(match value {
        Value::Null => "None".to_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => quoted(text)?,
        Value::Array(values) => {
            let values: Option<Vec<String>> = values.iter().map(inner).collect();
            format!("[{}]", values?.join(", "))
        }
        Value::Object(values) => {
            let pair = |(key, value): (&String, &Value)| Some(format!("{}: {}", quoted(key)?, inner(value)?));
            let pairs: Option<Vec<String>> = values.iter().map(pair).collect();
            format!("{{{}}}", pairs?.join(", "))
        }
    })
}

fn quoted(text: &str) -> Option<String> {
    let has = |c: char| text.contains(c);
    match (has('\''), has('"')) {
        _ if has('\\') || text.chars().any(char::is_control) => None,
        (true, true) => None,
        (true, false) => Some(format!("\"{text}\"")),
        (false, _) => Some(format!("'{text}'")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_have_the_texts_of_python() {
        for (value, want) in [
            (json!(null), "None"),
            (json!([1, 2.5, true, null]), "[1, 2.5, True, None]"),
            (json!({"type": "a\"b", "on": [false]}), "{'type': 'a\"b', 'on': [False]}"),
            (json!(["it's"]), "[\"it's\"]"),
            (json!("it's \"\\ as it is"), "it's \"\\ as it is"),
        ] {
            let sorted = |text: &str| {
                let mut parts: Vec<String> = text.split(", ").map(str::to_owned).collect();
                parts.sort();
                parts
            };
            let found = python(&value).unwrap();
            assert_eq!(found.len(), want.len(), "{found}");
            assert!(
                found == want
                    || sorted(found.trim_matches(['{', '}'])) == sorted(want.trim_matches(['{', '}'])),
                "{found}"
            );
        }
        for value in [json!(["both ' and \""]), json!({"a": "back\\slash"})] {
            assert_eq!(python(&value), None);
        }
    }
}
