//! The tokenizer of a new file, made from `tokenizer.json`.

use std::collections::HashMap;
use std::path::Path;

use millrace_formats::Source;
use millrace_formats::vocabulary::{PieceKind, SpecialTokenIds, TokenizerData};
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
    let mut data = match &json {
        Some(text) => {
            let json = |source| ConvertError::Json { file: model.source.path(NAME), source };
            let rows = rows.map_or_else(|| model.count("vocab_size"), Ok)?;
            read(&serde_json::from_str(text).map_err(json)?, rows)
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

/// Reads a `tokenizer.json` for a model with `rows` rows in its embedding. Returns `None` for a
/// kind that no file has: all but byte-pair encoding and WordPiece.
fn read(json: &Value, rows: usize) -> Option<TokenizerData> {
    match json.pointer("/model/type")?.as_str()? {
        _ if rows > MAX_TOKENS => None,
        "BPE" => merged(json, rows),
        "WordPiece" => word_pieces(json, rows),
        _ => None,
    }
}

/// Returns the tokens with their kinds, and the token for unknown text.
fn vocabulary(json: &Value, rows: usize) -> Option<TokenizerData> {
    let model = json.get("model")?;
    let vocab = model.get("vocab")?.as_object()?;
    // Rows without a token have one that is never used.
    let mut tokens: Vec<String> = (0..rows).map(|id| format!("[PAD{id}]")).collect();
    let mut kinds = vec![PieceKind::Unused; rows];
    for (text, id) in vocab {
        let id = usize::try_from(id.as_u64()?).ok().filter(|&id| id < rows)?;
        kinds[id] = PieceKind::Normal;
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
    Some(data)
}

/// Reads byte-pair encoding of bytes, or of characters with bytes for those without a token.
fn merged(json: &Value, rows: usize) -> Option<TokenizerData> {
    let model = json.get("model")?;
    let merges: Vec<(&str, &str)> =
        model.get("merges")?.as_array()?.iter().map(merge).collect::<Option<_>>()?;
    let mut data = vocabulary(json, rows)?;
    data.add_bos = Some(json.pointer("/post_processor/single/0/SpecialToken").is_some());
    data.merges = merges.iter().map(|(left, right)| format!("{left} {right}")).collect();
    if model.get("byte_fallback").and_then(Value::as_bool) == Some(true) {
        with_scores(&mut data, &merges, json);
        return Some(data);
    }
    if !json.get("pre_tokenizer")?.to_string().contains("\"ByteLevel\"") {
        return None;
    }
    data.model = "gpt2".to_owned();
    data.pre = pattern(json.get("pre_tokenizer")?).map(str::to_owned);
    Some(data)
}

/// Adds what a vocabulary of characters has: scores that fall with the rank of the merge, and the
/// kinds of tokens for single bytes.
fn with_scores(data: &mut TokenizerData, merges: &[(&str, &str)], json: &Value) {
    let mut ranks: HashMap<String, usize> = HashMap::with_capacity(merges.len());
    for (rank, (left, right)) in merges.iter().enumerate() {
        ranks.entry(format!("{left}{right}")).or_insert(rank);
    }
    for (text, kind) in data.tokens.iter().zip(&mut data.kinds) {
        let is_byte = text.len() == 6 && text.starts_with("<0x") && text.ends_with('>');
        if *kind == PieceKind::Normal && is_byte {
            *kind = PieceKind::Byte;
        }
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
}

/// Reads the tokens of WordPiece. A file marks the tokens that begin a word, where `tokenizer.json`
/// marks the others.
fn word_pieces(json: &Value, rows: usize) -> Option<TokenizerData> {
    const INNER: &str = "##";
    const WORD: char = '\u{2581}';
    if json.pointer("/model/continuing_subword_prefix").and_then(Value::as_str) != Some(INNER) {
        return None;
    }
    let mut data = vocabulary(json, rows)?;
    let id = |text: &str| data.tokens.iter().position(|token| token == text).map(|id| id as u32);
    data.special = SpecialTokenIds {
        cls: id("[CLS]"),
        separator: id("[SEP]"),
        padding: id("[PAD]"),
        mask: id("[MASK]"),
        ..data.special
    };
    (data.special.bos, data.special.eos) = (data.special.cls, data.special.separator);
    for (token, kind) in data.tokens.iter_mut().zip(&data.kinds) {
        if *kind != PieceKind::Normal || token.starts_with('[') && token.ends_with(']') {
            continue;
        }
        *token = match token.strip_prefix(INNER) {
            Some(rest) => rest.to_owned(),
            None => format!("{WORD}{token}"),
        };
    }
    data.model = "bert".to_owned();
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
