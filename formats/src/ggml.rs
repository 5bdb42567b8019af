//! The formats before GGUF: GGML, GGMF and GGJT (Georgi Gerganov and the authors of llama.cpp), of
//! Llama models.
//!
//! A file has seven sizes, the vocabulary, and then tensors up to its end. What it does not say
//! follows from the shapes of its tensors, or is that of the first Llama.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::cursor::Cursor;
use crate::dtype::DType;
use crate::error::{Error, TensorFault};
use crate::fault::FileFault;
use crate::gguf::GgmlType;
use crate::header::Entry;
use crate::mapped_file::MappedFile;
use crate::translated::ModelFile;
use crate::vocabulary::{PieceKind, SpecialTokenIds, TokenizerData};

const FORMAT: &str = "GGML";

/// The data of a tensor of GGJT begins at a multiple of this.
const ALIGNMENT: usize = 32;

const MAX_TOKENS: u32 = 1 << 24;
const MAX_TOKEN: u32 = 1 << 16;
const MAX_TENSORS: usize = 1 << 16;
const MAX_NAME: u32 = 256;

/// The context of the first Llama, and the epsilon of llama.cpp for files without one.
const POSITIONS: u32 = 2048;
const EPSILON: f64 = 5e-6;

/// The kinds of files by their first four bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Container {
    Ggml,
    Ggmf,
    Ggjt,
}

/// Returns whether a file begins as one of these formats, or one of their relatives.
pub(crate) fn is_ggml(file: &[u8]) -> bool {
    file.first_chunk()
        .is_some_and(|magic| [b"lmgg", b"fmgg", b"tjgg", b"algg", b"nsgg", b"ggml"].contains(&magic))
}

/// The contents of a file.
struct Contents {
    /// Vocabulary, width, a divisor of the width of the MLP, heads, layers, rotated features, type.
    sizes: [u32; 7],
    tokens: Vec<Token>,
    tensors: Vec<Entry>,
}

/// A token: its bytes, and its score if the format has scores.
struct Token {
    bytes: Vec<u8>,
    score: Option<f32>,
}

/// Opens a model.
pub(crate) fn open(file: MappedFile) -> Result<ModelFile, Error> {
    let model =
        read(&file.path, &file, true).and_then(|contents| Ok((config(&file.path, &contents)?, contents)));
    file.check_readable()?;
    let (config, contents) = model?;
    let tensors = contents.tensors.into_iter().map(|entry| (0, entry)).collect();
    Ok(ModelFile { tensors, ..ModelFile::new(config, vec![Arc::new(file)]) })
}

/// Reads the tokenizer of a file.
pub(crate) fn tokenizer(file: &MappedFile) -> Result<TokenizerData, Error> {
    let contents = read(&file.path, file, false);
    file.check_readable()?;
    Ok(tokenizer_data(contents?.tokens))
}

/// Reads a file, with or without its tensors.
fn read(path: &str, bytes: &[u8], with_tensors: bool) -> Result<Contents, Error> {
    let fault = |fault| Error::ModelFile { file: path.to_owned(), format: FORMAT, fault };
    let mut cursor = Cursor::new(bytes);
    let (container, version) = container(&mut cursor).map_err(fault)?;
    let mut sizes = [0; 7];
    for size in &mut sizes {
        *size = cursor.u32("the header").map_err(fault)?;
    }
    let tokens = tokens(&mut cursor, sizes[0], container != Container::Ggml).map_err(fault)?;
    let mut tensors = Vec::new();
    while with_tensors && cursor.left() > 0 {
        if tensors.len() == MAX_TENSORS {
            let (count, limit) = (MAX_TENSORS as u64 + 1, MAX_TENSORS as u64);
            return Err(fault(FileFault::TooMany { what: "tensors", count, limit }));
        }
        tensors.push(tensor(path, &mut cursor, container, version)?);
    }
    Ok(Contents { sizes, tokens, tensors })
}

fn container(cursor: &mut Cursor<'_>) -> Result<(Container, u32), FileFault> {
    let magic = cursor.take(4, "the first word")?;
    let (container, versions, known) = match magic {
        b"lmgg" => return Ok((Container::Ggml, 0)),
        b"fmgg" => (Container::Ggmf, 1..=1, "1"),
        b"tjgg" => (Container::Ggjt, 1..=3, "1 to 3"),
        other => {
            let what = match other {
                b"algg" => "it is a LoRA adapter of llama.cpp, not a model",
                b"nsgg" => "it is a saved session of llama.cpp, not a model",
                _ => "it is a file of chatglm.cpp; take the model in Hugging Face layout, or as GGUF",
            };
            return Err(FileFault::Kind(what.to_owned()));
        }
    };
    let version = cursor.u32("the version")?;
    if !versions.contains(&version) {
        return Err(FileFault::Version { found: version.into(), known });
    }
    Ok((container, version))
}

fn tokens(cursor: &mut Cursor<'_>, count: u32, has_scores: bool) -> Result<Vec<Token>, FileFault> {
    // The shortest entry has an empty text.
    let shortest = if has_scores { 8 } else { 4 };
    let limit = u64::from(MAX_TOKENS).min(cursor.left() as u64 / shortest);
    if u64::from(count) > limit {
        return Err(FileFault::TooMany { what: "tokens", count: count.into(), limit });
    }
    let mut tokens = Vec::new();
    for _ in 0..count {
        let length = cursor.u32("the length of a token")?;
        if length > MAX_TOKEN {
            let (count, limit) = (length.into(), MAX_TOKEN.into());
            return Err(FileFault::TooMany { what: "bytes of a token", count, limit });
        }
        let bytes = cursor.take(length.into(), "a token")?.to_vec();
        let score = if has_scores { Some(cursor.f32("the score of a token")?) } else { None };
        if let Some(score) = score
            && !score.is_finite()
        {
            let reason = format!("has the score {score}, which is no usable number");
            return Err(FileFault::Value { key: format!("token {}", tokens.len()), reason });
        }
        tokens.push(Token { bytes, score });
    }
    Ok(tokens)
}

fn tensor(path: &str, cursor: &mut Cursor<'_>, container: Container, version: u32) -> Result<Entry, Error> {
    let fault = |fault| Error::ModelFile { file: path.to_owned(), format: FORMAT, fault };
    let mut word = |what| cursor.u32(what).map_err(fault);
    let (axes, length, id) =
        (word("a tensor's number of axes")?, word("the length of a name")?, word("a tensor's type")?);
    let mut shape = Vec::new();
    for _ in 0..axes.min(2) {
        shape.push(u64::from(word("a tensor's shape")?));
    }
    shape.reverse();
    let bytes = if length <= MAX_NAME {
        cursor.take(length.into(), "the name of a tensor").map_err(fault)?
    } else {
        &[]
    };
    let Some(name) = std::str::from_utf8(bytes).ok().filter(|name| !name.is_empty()) else {
        let what = format!("the name of a tensor before byte {}, or too short or too long,", cursor.at());
        return Err(fault(FileFault::NotText { what }));
    };
    let tensor_fault = |fault: TensorFault| Error::Tensor {
        file: path.to_owned(),
        tensor: name.to_owned(),
        fault: fault.into(),
    };
    if !(1..=2).contains(&axes) {
        return Err(tensor_fault(TensorFault::Axes { found: axes, limit: 2 }));
    }
    // The blocks of some types had other layouts in older versions.
    let newest = match id {
        0 | 1 => true,
        2 | 3 | 8 => version == 3,
        _ => version >= 2,
    };
    let what = || format!("the tensor {name}");
    let Some(kind) = GgmlType::of(id).filter(|_| newest) else {
        if newest {
            return Err(fault(FileFault::UnknownType { what: what(), id }));
        }
        let reason = format!(
            "{} has type {id} in the layout of version {version}; quantize the model again with a newer tool",
            what()
        );
        return Err(fault(FileFault::Kind(reason)));
    };
    let (shape, size) = kind.size(&shape).map_err(tensor_fault)?;
    if container == Container::Ggjt {
        cursor.align(ALIGNMENT, "padding").map_err(fault)?;
    }
    let start = cursor.at();
    cursor.take(size, "the data of a tensor").map_err(fault)?;
    Ok(Entry { name: translate(name), dtype: kind.dtype(), shape, range: start..cursor.at() })
}

/// Returns the name of a tensor in Hugging Face layout. Names that are not known stay.
fn translate(name: &str) -> String {
    const OUTER: [(&str, &str); 3] = [
        ("tok_embeddings.weight", "model.embed_tokens.weight"),
        ("norm.weight", "model.norm.weight"),
        ("output.weight", "lm_head.weight"),
    ];
    const INNER: [(&str, &str); 9] = [
        ("attention_norm", "input_layernorm"),
        ("attention.wq", "self_attn.q_proj"),
        ("attention.wk", "self_attn.k_proj"),
        ("attention.wv", "self_attn.v_proj"),
        ("attention.wo", "self_attn.o_proj"),
        ("ffn_norm", "post_attention_layernorm"),
        ("feed_forward.w1", "mlp.gate_proj"),
        ("feed_forward.w2", "mlp.down_proj"),
        ("feed_forward.w3", "mlp.up_proj"),
    ];
    if let Some((_, translated)) = OUTER.iter().find(|(from, _)| *from == name) {
        return (*translated).to_owned();
    }
    match name.strip_prefix("layers.").and_then(|rest| rest.split_once('.')) {
        Some((layer, rest)) => {
            let module = rest.strip_suffix(".weight");
            let module = INNER.iter().find(|(from, _)| Some(*from) == module);
            let rest = module.map_or_else(|| rest.to_owned(), |(_, to)| format!("{to}.weight"));
            format!("model.layers.{layer}.{rest}")
        }
        None => name.to_owned(),
    }
}

fn config(path: &str, contents: &Contents) -> Result<Map<String, Value>, Error> {
    let [vocab, width, _, heads, layers, rotated, _] = contents.sizes;
    let rows = |name: &str| {
        let tensor = contents.tensors.iter().find(|tensor| tensor.name == name);
        tensor.and_then(|tensor| tensor.shape.first().copied()).ok_or_else(|| {
            let (place, tensor) = (path.to_owned(), name.to_owned());
            Error::MissingTensor { place, tensor, expected: Vec::new() }
        })
    };
    let head_dim = width.checked_div(heads).unwrap_or_default() as usize;
    let kv_heads = rows("model.layers.0.self_attn.k_proj.weight")?.checked_div(head_dim).unwrap_or_default();
    if head_dim != rotated as usize {
        let reason = format!("is {rotated}, but heads have {head_dim} features; all must be rotated");
        let fault = FileFault::Value { key: "n_rot".to_owned(), reason };
        return Err(Error::ModelFile { file: path.to_owned(), format: FORMAT, fault });
    }
    let has_blocks = contents.tensors.iter().any(|tensor| matches!(tensor.dtype, DType::Blocks(_)));
    let has_halves = contents.tensors.iter().any(|tensor| tensor.dtype == DType::F16);
    let config = json!({
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "torch_dtype": if has_blocks { "bfloat16" } else if has_halves { "float16" } else { "float32" },
        "hidden_size": width,
        "intermediate_size": rows("model.layers.0.mlp.gate_proj.weight")?,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocab,
        "max_position_embeddings": POSITIONS,
        "rms_norm_eps": EPSILON,
        "rope_theta": 10_000.0,
        "tie_word_embeddings": !contents.tensors.iter().any(|tensor| tensor.name == "lm_head.weight"),
        "bos_token_id": 1,
        "eos_token_id": 2,
        "millrace": {"rope_interleaved": true},
    });
    Ok(config.as_object().cloned().unwrap_or_default())
}

/// Returns the vocabulary in the form of GGUF. The converters wrote spaces for `▁`, bytes for the
/// tokens of bytes, and nothing for control tokens.
fn tokenizer_data(tokens: Vec<Token>) -> TokenizerData {
    let mut data = TokenizerData {
        model: "llama".to_owned(),
        special: SpecialTokenIds {
            bos: Some(1),
            eos: Some(2),
            unknown: Some(0),
            ..SpecialTokenIds::default()
        },
        ..TokenizerData::default()
    };
    if tokens.len() < 3 {
        data.special = SpecialTokenIds::default();
    }
    for (id, token) in tokens.into_iter().enumerate() {
        let (text, kind) = match (id, &token.bytes[..]) {
            (0, _) => ("<unk>".to_owned(), PieceKind::Unknown),
            (1, _) => ("<s>".to_owned(), PieceKind::Control),
            (2, _) => ("</s>".to_owned(), PieceKind::Control),
            (3..=258, &[byte]) if usize::from(byte) == id - 3 => (format!("<0x{byte:02X}>"), PieceKind::Byte),
            (_, bytes) => match std::str::from_utf8(bytes) {
                Ok("") => (format!("<unused{id}>"), PieceKind::Control),
                Ok(text) => (text.replace(' ', "\u{2581}"), PieceKind::Normal),
                Err(_) => (format!("<unused{id}>"), PieceKind::Unused),
            },
        };
        data.tokens.push(text);
        data.kinds.push(kind);
        data.scores.extend(token.score);
    }
    data
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use millrace_numbers::BlockType;

    /// Returns a file with one layer of width 32.
    fn file(magic: &[u8; 4], version: u32, kind: (u32, usize)) -> Vec<u8> {
        let word = |number: u32| number.to_le_bytes();
        let mut bytes = magic.to_vec();
        if magic != b"lmgg" {
            bytes.extend(word(version));
        }
        for size in [4, 32, 256, 4, 1, 8, 0] {
            bytes.extend(word(size));
        }
        for text in [&b"?"[..], b"", b"", b"\0"] {
            bytes.extend(word(text.len() as u32));
            bytes.extend(text);
            if magic != b"lmgg" {
                bytes.extend((-1.5f32).to_le_bytes());
            }
        }
        let mut tensor = |name: &str, axes: &[u32], (id, size): (u32, usize)| {
            bytes.extend(word(axes.len() as u32));
            bytes.extend(word(name.len() as u32));
            bytes.extend(word(id));
            axes.iter().for_each(|&axis| bytes.extend(word(axis)));
            bytes.extend(name.as_bytes());
            if magic == b"tjgg" {
                bytes.resize(bytes.len().next_multiple_of(32), 0);
            }
            bytes.resize(bytes.len() + size, 1);
        };
        tensor("tok_embeddings.weight", &[32, 4], kind);
        tensor("norm.weight", &[32], (0, 128));
        tensor("layers.0.attention.wk.weight", &[32, 16], (0, 2048));
        tensor("layers.0.feed_forward.w1.weight", &[32, 24], (0, 3072));
        bytes
    }

    fn read_all(bytes: &[u8]) -> Result<(Map<String, Value>, Contents), Error> {
        let contents = read("x.bin", bytes, true)?;
        Ok((config("x.bin", &contents)?, contents))
    }

    #[test]
    fn all_containers_are_read() {
        for (magic, version, kind, dtype) in [
            (b"lmgg", 0, (0, 512), DType::F32),
            (b"fmgg", 1, (1, 256), DType::F16),
            (b"tjgg", 1, (1, 256), DType::F16),
            (b"tjgg", 2, (6, 88), DType::Blocks(BlockType::Q5_0)),
            (b"tjgg", 3, (2, 72), DType::Blocks(BlockType::Q4_0)),
        ] {
            let bytes = file(magic, version, kind);
            let (config, contents) = read_all(&bytes).unwrap();
            assert_eq!(
                (&config["num_key_value_heads"], &config["intermediate_size"]),
                (&json!(2), &json!(24))
            );
            assert_eq!(config["tie_word_embeddings"], true);
            let embedding = &contents.tensors[0];
            assert_eq!((&embedding.name[..], &embedding.dtype), ("model.embed_tokens.weight", &dtype));
            assert_eq!((&embedding.shape[..], embedding.range.len()), (&[4, 32][..], kind.1));
            assert_eq!(contents.tensors[2].name, "model.layers.0.self_attn.k_proj.weight");
            assert_eq!(contents.tensors[3].range.end, bytes.len());
            let data = tokenizer_data(contents.tokens);
            assert_eq!(data.tokens, ["<unk>", "<s>", "</s>", "<0x00>"]);
            assert_eq!(data.scores.len(), if magic == b"lmgg" { 0 } else { 4 });
        }
    }

    #[test]
    fn other_files_are_refused_by_name() {
        let refused = |bytes: &[u8]| read_all(bytes).map(|_| ()).unwrap_err().to_string();
        assert!(refused(b"algg").ends_with("it is a LoRA adapter of llama.cpp, not a model"));
        assert!(refused(b"ggml").contains("it is a file of chatglm.cpp"));
        let old = refused(&file(b"tjgg", 2, (2, 80)));
        assert!(old.contains("tok_embeddings.weight has type 2 in the layout of version 2"), "{old}");
        assert!(
            refused(&file(b"tjgg", 4, (0, 512))).contains("it has version 4, and this program knows 1 to 3")
        );
        let mut many = file(b"lmgg", 0, (0, 512));
        many[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(refused(&many).contains("it announces 4294967295 tokens, more than the limit of"));
        let cut = file(b"tjgg", 3, (0, 512));
        assert!(refused(&cut[..cut.len() - 1]).contains("the data of a tensor at byte"));
    }

    proptest! {
        #[test]
        fn damaged_files_never_panic(
            ggjt: bool, changes in prop::collection::vec((0usize..900, any::<u8>()), 1..6), cut in 0usize..7000,
        ) {
            let mut bytes = if ggjt { file(b"tjgg", 3, (2, 72)) } else { file(b"fmgg", 1, (1, 256)) };
            changes.into_iter().for_each(|(at, byte)| bytes[at] = byte);
            bytes.truncate(cut.max(4));
            if let Ok((_, contents)) = read_all(&bytes) {
                prop_assert!(contents.tensors.iter().all(|tensor| tensor.range.end <= bytes.len()));
                tokenizer_data(contents.tokens);
            }
        }
    }
}
