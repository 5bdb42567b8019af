//! Files of FastLLM (`.flm`): the configuration as texts, the vocabulary, and tensors with the
//! names of Hugging Face.
//!
//! Matrices of 8 and 4 bits have a range for each row, or for each group of columns. The codes are
//! those of a checkpoint of compressed-tensors (pack-quantized), to which they are translated.

mod config;
mod quantized;
#[cfg(test)]
mod tests;
mod writer;

use std::collections::BTreeMap;
use std::sync::Arc;

use config::Keys;
use quantized::Quantized;
use serde_json::json;
pub use writer::{FlmKind, FlmTensor, FlmToken, flm_header};

use crate::cursor::Cursor;
use crate::dtype::DType;
use crate::error::{Error, TensorFault};
use crate::fault::FileFault;
use crate::header::Entry;
use crate::mapped_file::MappedFile;
use crate::translated::ModelFile;
use crate::vocabulary::{PieceKind, SpecialTokenIds, TokenizerData};

const FORMAT: &str = "FastLLM";

const MAX_KEYS: u32 = 1 << 12;
const MAX_ADAPTERS: u32 = 1 << 8;
const MAX_KEY: u32 = 1 << 10;
const MAX_TEXT: u32 = 1 << 20;
const MAX_TOKENS: u32 = 1 << 24;
const MAX_TOKEN: u32 = 1 << 16;
const MAX_TENSORS: u32 = 1 << 18;
const MAX_AXES: u32 = 4;

/// Returns whether a file begins as one of this format: a version, a number of keys, and a key.
/// The format has no first bytes of its own.
pub(crate) fn is_flm(file: &[u8]) -> bool {
    let mut cursor = Cursor::new(file);
    let mut word = || cursor.u32("the header").unwrap_or(u32::MAX);
    let [version, keys, length] = [word(), word(), word()];
    let is_key = |byte: &u8| byte.is_ascii_alphanumeric() || b"_.-".contains(byte);
    (1..=2).contains(&version)
        && (1..=MAX_KEYS).contains(&keys)
        && (1..=MAX_KEY).contains(&length)
        && cursor.take(length.into(), "a key").is_ok_and(|key| key.iter().all(is_key))
}

/// Opens a model.
pub(crate) fn open(file: MappedFile) -> Result<ModelFile, Error> {
    let contents = read(&file.path, &file, true);
    file.check_readable()?;
    let Contents { keys, tensors, quantized, .. } = contents?;
    let mut config = keys.config(&file.path, FORMAT)?;
    let is_dense = |dtype: DType| tensors.iter().any(|entry| entry.dtype == dtype);
    let dtype = match (quantized.is_empty(), is_dense(DType::F16), is_dense(DType::BF16)) {
        (true, true, _) => "float16",
        (true, false, false) => "float32",
        _ => "bfloat16",
    };
    config.insert("torch_dtype".into(), dtype.into());
    config.remove("quantization_config");
    let mut model = ModelFile::new(config, vec![Arc::new(file)]);
    model.tensors = tensors.into_iter().map(|entry| (0, entry)).collect();
    let mut groups = BTreeMap::new();
    for matrix in quantized {
        if let Some((name, group)) = matrix.config_group() {
            groups.insert(name, group);
        }
        matrix.add_to(&mut model);
    }
    if !groups.is_empty() {
        let quantization = json!({
            "quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": groups,
        });
        model.config.insert("quantization_config".into(), quantization);
    }
    Ok(model)
}

/// Reads the tokenizer of a file. Returns `None` for a vocabulary without scores, whose merges are
/// not in the file.
pub(crate) fn tokenizer(file: &MappedFile) -> Result<Option<TokenizerData>, Error> {
    let contents = read(&file.path, file, false);
    file.check_readable()?;
    let Contents { keys, tokens, special, .. } = contents?;
    if !keys.is_true("tokenizer_use_score") {
        return Ok(None);
    }
    tokenizer_data(&keys, tokens, &special).map(Some).map_err(|fault| Error::ModelFile {
        file: file.path.clone(),
        format: FORMAT,
        fault,
    })
}

/// The contents of a file.
struct Contents {
    keys: Keys,
    tokens: Vec<Token>,
    special: Vec<String>,
    tensors: Vec<Entry>,
    quantized: Vec<Quantized>,
}

struct Token {
    bytes: Vec<u8>,
    id: u32,
    score: f32,
}

fn text(cursor: &mut Cursor<'_>, limit: u32, what: &'static str) -> Result<String, FileFault> {
    let length = cursor.u32(what)?;
    if length > limit {
        return Err(FileFault::TooMany {
            what: "bytes of a text",
            count: length.into(),
            limit: limit.into(),
        });
    }
    let bytes = cursor.take(length.into(), what)?;
    String::from_utf8(bytes.to_vec()).map_err(|_| FileFault::NotText { what: what.to_owned() })
}

/// Reads the number of items that take at least `shortest` bytes each.
fn count(cursor: &mut Cursor<'_>, limit: u32, shortest: u64, what: &'static str) -> Result<u32, FileFault> {
    let count = cursor.u32(what)?;
    let limit = u64::from(limit).min(cursor.left() as u64 / shortest);
    if u64::from(count) > limit {
        return Err(FileFault::TooMany { what, count: count.into(), limit });
    }
    Ok(count)
}

/// Reads a file, with or without its tensors.
fn read(path: &str, bytes: &[u8], with_tensors: bool) -> Result<Contents, Error> {
    let fault = |fault| Error::ModelFile { file: path.to_owned(), format: FORMAT, fault };
    let mut cursor = Cursor::new(bytes);
    let keys = keys(&mut cursor).map_err(fault)?;
    let tokens = tokens(&mut cursor, keys.is_true("tokenizer_use_score")).map_err(fault)?;
    let mut special = Vec::new();
    if keys.is_true("tokenizer_has_special_tokens") {
        for _ in 0..count(&mut cursor, MAX_TOKENS, 4, "special tokens").map_err(fault)? {
            special.push(text(&mut cursor, MAX_TOKEN, "a special token").map_err(fault)?);
        }
    }
    let mut contents = Contents { keys, tokens, special, tensors: Vec::new(), quantized: Vec::new() };
    if with_tensors {
        // A tensor has a name, a number of axes, and a type.
        let tensors = count(&mut cursor, MAX_TENSORS, 12, "tensors").map_err(fault)?;
        for _ in 0..tensors {
            tensor(path, &mut cursor, &mut contents)?;
        }
        check_names(path, &contents)?;
    }
    Ok(contents)
}

fn keys(cursor: &mut Cursor<'_>) -> Result<Keys, FileFault> {
    let version = cursor.u32("the version")?;
    if !(1..=2).contains(&version) {
        return Err(FileFault::Version { found: version.into(), known: "1 and 2" });
    }
    let mut keys = Keys::default();
    for _ in 0..count(cursor, MAX_KEYS, 8, "keys")? {
        let key = text(cursor, MAX_KEY, "a key")?;
        keys.add(key, text(cursor, MAX_TEXT, "the value of a key")?);
    }
    if keys.has("peft_size") {
        // Descriptions of adapters, whose weights are not in the file.
        let adapters = keys.count("peft_size").filter(|&count| count <= u64::from(MAX_ADAPTERS));
        let Some(adapters) = adapters else {
            let reason = "is no number of adapters".to_owned();
            return Err(FileFault::Value { key: "peft_size".to_owned(), reason });
        };
        for _ in 0..adapters {
            text(cursor, MAX_KEY, "the name of an adapter")?;
            for _ in 0..2 * count(cursor, MAX_KEYS, 8, "keys of an adapter")? {
                text(cursor, MAX_TEXT, "a key of an adapter")?;
            }
        }
    }
    Ok(keys)
}

fn tokens(cursor: &mut Cursor<'_>, has_scores: bool) -> Result<Vec<Token>, FileFault> {
    let mut tokens = Vec::new();
    for index in 0..count(cursor, MAX_TOKENS, 8, "tokens")? {
        let length = count(cursor, MAX_TOKEN, 4, "bytes of a token")?;
        // Each byte is a word.
        let words = cursor.take(u64::from(length) * 4, "a token")?;
        let bytes = words.as_chunks::<4>().0.iter().map(|word| word[0]).collect();
        let id = cursor.u32("the id of a token")?;
        let score = if has_scores { cursor.f32("the score of a token")? } else { -(index as f32) };
        if !score.is_finite() {
            let (key, reason) = ("score".to_owned(), format!("of token {id} is not a number"));
            return Err(FileFault::Value { key, reason });
        }
        tokens.push(Token { bytes, id, score });
    }
    Ok(tokens)
}

/// Reads the next tensor.
fn tensor(path: &str, cursor: &mut Cursor<'_>, contents: &mut Contents) -> Result<(), Error> {
    let fault = |fault| Error::ModelFile { file: path.to_owned(), format: FORMAT, fault };
    let name = text(cursor, MAX_KEY, "the name of a tensor").map_err(fault)?;
    let tensor_fault = |fault: TensorFault| Error::Tensor {
        file: path.to_owned(),
        tensor: name.clone(),
        fault: fault.into(),
    };
    let axes = cursor.u32("a tensor's number of axes").map_err(fault)?;
    if axes > MAX_AXES {
        return Err(tensor_fault(TensorFault::Axes { found: axes, limit: MAX_AXES }));
    }
    let mut shape: Vec<usize> = Vec::new();
    for _ in 0..axes {
        shape.push(cursor.u32("a tensor's shape").map_err(fault)? as usize);
    }
    let overflow = || TensorFault::Overflow { shape: shape.iter().map(|&size| size as u64).collect() };
    let elements = shape.iter().try_fold(1u64, |all, &size| all.checked_mul(size as u64));
    let elements = elements.filter(|&elements| elements < 1 << 48).ok_or_else(|| tensor_fault(overflow()))?;
    let id = cursor.u32("a tensor's type").map_err(fault)?;
    let dense = match id {
        0 => DType::F32,
        1 => DType::BF16,
        7 => DType::F16,
        3 | 4 | 8 | 9 => {
            let matrix = Quantized::read(cursor, &name, &shape, id).map_err(fault)?;
            contents.quantized.push(matrix);
            return Ok(());
        }
        _ => return Err(fault(FileFault::UnknownType { what: format!("the tensor {name}"), id })),
    };
    let start = cursor.at();
    let size = dense.bits().unwrap_or(32) as u64 / 8;
    cursor.take(elements * size, "the data of a tensor").map_err(fault)?;
    contents.tensors.push(Entry { name, dtype: dense, shape, range: start..cursor.at() });
    Ok(())
}

fn check_names(path: &str, contents: &Contents) -> Result<(), Error> {
    let dense = contents.tensors.iter().map(|entry| entry.name.as_str());
    let mut names: Vec<&str> = dense.chain(contents.quantized.iter().map(Quantized::name)).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(Error::Tensor {
            file: path.to_owned(),
            tensor: pair[0].to_owned(),
            fault: TensorFault::Duplicate.into(),
        }),
        None => Ok(()),
    }
}

/// Returns the vocabulary in the order of the ids.
fn tokenizer_data(keys: &Keys, tokens: Vec<Token>, special: &[String]) -> Result<TokenizerData, FileFault> {
    let value = |reason: String| FileFault::Value { key: "vocabulary".to_owned(), reason };
    // Ids of ChatGLM begin behind those of its images, so that there may be gaps.
    let limit = tokens.len() as u64 * 2 + (1 << 16);
    let last = tokens.iter().map(|token| token.id).max().unwrap_or_default();
    if u64::from(last) >= limit {
        return Err(value(format!("has the id {last}, but only {} tokens", tokens.len())));
    }
    let count = last as usize + 1;
    let mut data = TokenizerData {
        model: "llama".to_owned(),
        tokens: (0..count).map(|id| format!("<unused {id}>")).collect(),
        scores: vec![0.0; count],
        kinds: vec![PieceKind::Unused; count],
        special: SpecialTokenIds::default(),
        add_space_prefix: keys
            .get("tokenizer_add_dummy_prefix")
            .map(|_| keys.is_true("tokenizer_add_dummy_prefix")),
        remove_extra_whitespaces: Some(keys.is_true("tokenizer_remove_extra_whitespaces")),
        chat_template: keys
            .get("chat_template")
            .filter(|text| !text.is_empty() && *text != "None")
            .map(str::to_owned),
        ..TokenizerData::default()
    };
    let id = |key: &str| keys.count(key).filter(|&id| id < count as u64).map(|id| id as u32);
    data.special.bos = id("bos_token_id");
    data.special.eos = id("eos_token_id");
    for token in tokens {
        let place = token.id as usize;
        if data.kinds[place] != PieceKind::Unused {
            return Err(value(format!("has two tokens with the id {place}")));
        }
        let text = String::from_utf8(token.bytes)
            .map_err(|_| FileFault::NotText { what: format!("the token {place}") })?;
        data.kinds[place] = match text.as_str() {
            "<unk>" => PieceKind::Unknown,
            _ if [data.special.bos, data.special.eos].contains(&Some(token.id)) => PieceKind::Control,
            _ if special.contains(&text) => PieceKind::UserDefined,
            _ if crate::vocabulary::is_byte_name(&text) => PieceKind::Byte,
            _ => PieceKind::Normal,
        };
        (data.tokens[place], data.scores[place]) = (text, token.score);
    }
    Ok(data)
}
