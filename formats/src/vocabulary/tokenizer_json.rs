//! The tokenizer of a model file, made from `tokenizer.json`.

use std::collections::HashMap;

use serde_json::Value;

use super::file_tokenizer::{Refusal, id_of};
use super::split_patterns::pattern_name;
use super::{MAX_TOKENS, PieceKind, SpecialTokenIds, TokenizerData, unigram_json};

impl TokenizerData {
    /// Reads a `tokenizer.json` for a model with `rows` rows in its embedding. Rows without a token
    /// get one that is never used.
    ///
    /// # Errors
    /// Returns the reason why a model file cannot have the tokenizer.
    pub fn of_json(json: &Value, rows: usize) -> Result<Self, Refusal> {
        if rows > MAX_TOKENS {
            return Err(format!("{rows} tokens are more than the limit of {MAX_TOKENS}"));
        }
        let kind = json.pointer("/model/type").and_then(Value::as_str).unwrap_or_default();
        match kind {
            "BPE" => merged(json, rows),
            "WordPiece" => word_pieces(json, rows),
            "Unigram" => unigram_json::read(json, rows),
            other => {
                Err(format!("its model is of the kind {other:?}, and files have BPE, WordPiece and Unigram"))
            }
        }
    }
}

/// Returns the tokens with their kinds, and the token for unknown text.
fn vocabulary(json: &Value, rows: usize) -> Result<TokenizerData, Refusal> {
    let vocab = json.pointer("/model/vocab").and_then(Value::as_object).ok_or("it has no vocabulary")?;
    let mut data = TokenizerData::unused(rows);
    for (text, id) in vocab {
        data.set(id_of(Some(id))?, text, PieceKind::Normal)?;
    }
    let unknown = json.pointer("/model/unk_token").and_then(Value::as_str);
    data.set_added(json, unknown)?;
    data.special.unknown = unknown.and_then(|text| vocab.get(text)?.as_u64()).map(|id| id as u32);
    Ok(data)
}

/// Reads byte-pair encoding of bytes, or of characters with bytes for those without a token.
fn merged(json: &Value, rows: usize) -> Result<TokenizerData, Refusal> {
    let list = json.pointer("/model/merges").and_then(Value::as_array);
    let merges: Option<Vec<(&str, &str)>> = list.and_then(|list| list.iter().map(merge).collect());
    let merges = merges.ok_or("its merges cannot be read")?;
    let mut data = vocabulary(json, rows)?;
    data.add_bos = Some(json.pointer("/post_processor/single/0/SpecialToken").is_some());
    data.merges = merges.iter().map(|(left, right)| format!("{left} {right}")).collect();
    let is_on = |key: &str| json.pointer(key).and_then(Value::as_bool) == Some(true);
    if is_on("/model/byte_fallback") {
        with_scores(&mut data, &merges, json);
        return Ok(data);
    }
    let pre = json.get("pre_tokenizer").unwrap_or(&Value::Null);
    if !pre.to_string().contains("\"ByteLevel\"") {
        return Err("its pre-tokenizer does not write bytes as characters".to_owned());
    }
    data.model = "gpt2".to_owned();
    if has_no_other_normalizer(json) {
        data.pre = pattern_name(pre, is_on("/model/ignore_merges")).map(str::to_owned);
    }
    Ok(data)
}

/// Returns whether texts are left as they are, apart from the normal form NFC, which readers of
/// model files leave out.
fn has_no_other_normalizer(json: &Value) -> bool {
    let kind = json.pointer("/normalizer/type").and_then(Value::as_str);
    matches!(kind, None | Some("NFC"))
}

/// Adds what a vocabulary of characters has: scores that fall with the rank of the merge, and the
/// kinds of tokens for single bytes.
fn with_scores(data: &mut TokenizerData, merges: &[(&str, &str)], json: &Value) {
    let mut ranks: HashMap<String, usize> = HashMap::with_capacity(merges.len());
    for (rank, (left, right)) in merges.iter().enumerate() {
        ranks.entry(format!("{left}{right}")).or_insert(rank);
    }
    for (text, kind) in data.tokens.iter().zip(&mut data.kinds) {
        if *kind == PieceKind::Normal && super::is_byte_name(text) {
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
fn word_pieces(json: &Value, rows: usize) -> Result<TokenizerData, Refusal> {
    const INNER: &str = "##";
    const WORD: char = '\u{2581}';
    if json.pointer("/model/continuing_subword_prefix").and_then(Value::as_str) != Some(INNER) {
        return Err(format!("tokens within a word do not begin with {INNER}"));
    }
    let mut data = vocabulary(json, rows)?;
    data.special = SpecialTokenIds {
        cls: data.id("[CLS]"),
        separator: data.id("[SEP]"),
        padding: data.id("[PAD]"),
        mask: data.id("[MASK]"),
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
    Ok(data)
}

/// Returns the two parts of a merge, which older files join with a space.
fn merge(value: &Value) -> Option<(&str, &str)> {
    match value {
        Value::String(text) => text.split_once(' '),
        Value::Array(parts) => Some((parts.first()?.as_str()?, parts.get(1)?.as_str()?)),
        _ => None,
    }
}
