//! The tokenizer of a new file, made from `tokenizer.json`.

use std::collections::HashMap;
use std::path::Path;

use millrace_formats::Source;
use millrace_formats::vocabulary::{PieceKind, TokenizerData};
use serde_json::Value;

use super::error::ConvertError;
use super::model::Model;

/// The largest number of tokens.
const MAX_TOKENS: usize = 1 << 21;

/// The patterns of a `tokenizer.json` by the names that GGUF files use.
const PATTERNS: [(&str, &str); 2] = [
    (
        "qwen2",
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
    (
        "llama-bpe",
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
];

/// The tokenizer of a model.
pub(super) struct ModelTokenizer {
    /// The text of `tokenizer.json`, from the folder of the model or from its file.
    pub(super) json: Option<String>,
    /// The vocabulary with the chat template, if it can be written to a file.
    pub(super) data: Option<TokenizerData>,
}

/// Finds the tokenizer of a model.
pub(super) fn of(model: &Model<'_>) -> Result<ModelTokenizer, ConvertError> {
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
    let mut data = match &json {
        Some(text) => {
            let json = |source| ConvertError::Json { file: model.source.path(NAME), source };
            read(&serde_json::from_str(text).map_err(json)?, model.count("vocab_size")?)
        }
        None => inside,
    };
    if let Some(data) = &mut data {
        let config: Option<Value> =
            model.source.text("tokenizer_config.json")?.and_then(|text| serde_json::from_slice(&text).ok());
        let template = config.as_ref().and_then(|config| config.get("chat_template")).and_then(Value::as_str);
        data.chat_template = template.map(str::to_owned).or(data.chat_template.take());
        if let Some(template) = model.source.text("chat_template.jinja")? {
            data.chat_template = Some(String::from_utf8_lossy(&template).into_owned());
        }
    }
    Ok(ModelTokenizer { json, data })
}

/// Reads a `tokenizer.json` of byte-pair encoding for a model with `rows` rows in its embedding.
/// Returns `None` for another kind.
fn read(json: &Value, rows: usize) -> Option<TokenizerData> {
    let model = json.get("model")?;
    let vocab = model.get("vocab")?.as_object()?;
    if model.get("type").and_then(Value::as_str) != Some("BPE") || rows > MAX_TOKENS {
        return None;
    }
    let merges: Vec<(&str, &str)> =
        model.get("merges")?.as_array()?.iter().map(merge).collect::<Option<_>>()?;
    // Rows without a token have one that is never used.
    let mut tokens: Vec<String> = (0..rows).map(|id| format!("[PAD{id}]")).collect();
    let mut kinds = vec![PieceKind::Unused; rows];
    let is_bytes = model.get("byte_fallback").and_then(Value::as_bool) == Some(true);
    for (text, id) in vocab {
        let id = usize::try_from(id.as_u64()?).ok().filter(|&id| id < rows)?;
        let is_byte = is_bytes && text.len() == 6 && text.starts_with("<0x") && text.ends_with('>');
        kinds[id] = if is_byte { PieceKind::Byte } else { PieceKind::Normal };
        tokens[id].clone_from(text);
    }
    let unknown = model.get("unk_token").and_then(Value::as_str);
    for added in json.get("added_tokens").and_then(Value::as_array).into_iter().flatten() {
        let text = added.get("content")?.as_str()?;
        let id = usize::try_from(added.get("id")?.as_u64()?).ok().filter(|&id| id < rows)?;
        kinds[id] = match added.get("special").and_then(Value::as_bool) {
            _ if unknown == Some(text) => PieceKind::Unknown,
            Some(true) => PieceKind::Control,
            _ => PieceKind::UserDefined,
        };
        text.clone_into(&mut tokens[id]);
    }
    let mut data = TokenizerData { tokens, kinds, ..TokenizerData::default() };
    data.special.unknown = unknown.and_then(|text| vocab.get(text)?.as_u64()).map(|id| id as u32);
    let template = json.pointer("/post_processor/single/0/SpecialToken");
    data.add_bos = Some(template.is_some());
    if is_bytes {
        let mut ranks: HashMap<String, usize> = HashMap::with_capacity(merges.len());
        for (rank, (left, right)) in merges.iter().enumerate() {
            ranks.entry(format!("{left}{right}")).or_insert(rank);
        }
        let score = |text: &String| -(ranks.get(text).copied().unwrap_or(merges.len()) as f32);
        data.model = "llama".to_owned();
        data.scores = data.tokens.iter().map(score).collect();
        let text = json.get("normalizer").map(Value::to_string).unwrap_or_default();
        let metaspace = json.get("pre_tokenizer").map(Value::to_string).unwrap_or_default();
        let prefix = text.contains("\"Prepend\"")
            || metaspace.contains("\"prepend_scheme\":\"first\"")
            || metaspace.contains("\"prepend_scheme\":\"always\"");
        data.add_space_prefix = Some(prefix);
        return Some(data);
    }
    if !json.get("pre_tokenizer")?.to_string().contains("\"ByteLevel\"") {
        return None;
    }
    data.model = "gpt2".to_owned();
    data.pre = pattern(json.get("pre_tokenizer")?).map(str::to_owned);
    data.merges = merges.iter().map(|(left, right)| format!("{left} {right}")).collect();
    Some(data)
}

/// Returns the two parts of a merge, which older files join with a space.
fn merge(value: &Value) -> Option<(&str, &str)> {
    match value {
        Value::String(text) => text.split_once(' '),
        Value::Array(parts) => Some((parts.first()?.as_str()?, parts.get(1)?.as_str()?)),
        _ => None,
    }
}

/// Returns the name of the pattern that splits texts, if GGUF has one for it.
fn pattern(pre: &Value) -> Option<&'static str> {
    let kind = |value: &Value, name: &str| value.get("type").and_then(Value::as_str) == Some(name);
    let steps: Vec<&Value> = match pre.get("pretokenizers").and_then(Value::as_array) {
        Some(steps) => steps.iter().collect(),
        None => vec![pre],
    };
    let uses_regex = |value: &Value| value.get("use_regex").and_then(Value::as_bool).unwrap_or(true);
    match steps[..] {
        [bytes] if kind(bytes, "ByteLevel") && uses_regex(bytes) => Some("gpt-2"),
        [digits, bytes] if kind(digits, "Digits") && kind(bytes, "ByteLevel") && uses_regex(bytes) => {
            let alone = digits.get("individual_digits").and_then(Value::as_bool);
            (alone == Some(true)).then_some("smollm")
        }
        [split, bytes] if kind(split, "Split") && kind(bytes, "ByteLevel") && !uses_regex(bytes) => {
            let expression = split.pointer("/pattern/Regex")?.as_str()?;
            PATTERNS.iter().find(|(_, known)| *known == expression).map(|(name, _)| *name)
        }
        _ => None,
    }
}
