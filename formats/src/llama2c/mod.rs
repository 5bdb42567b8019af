//! Checkpoints of llama2.c (Andrej Karpathy): a header of sizes, then the tensors of a Llama
//! without names, in a fixed order. There are three versions: two of single precision, and one of 8
//! bits.
//!
//! The rows of query and key have the order of the original program of Llama, in which features `2
//! * i` and `2 * i + 1` are rotated together.

mod layout;
#[cfg(test)]
mod tests;
mod writer;

use std::ops::Range;
use std::sync::Arc;

use layout::{HEADER, Item, MAX_SIZES, NAMES, Sizes, Version};
use serde_json::json;
pub use writer::{Llama2cItem, Llama2cModel};

use crate::cursor::Cursor;
use crate::dtype::DType;
use crate::error::Error;
use crate::fault::FileFault;
use crate::header::Entry;
use crate::mapped_file::MappedFile;
use crate::translated::ModelFile;

/// The first bytes of versions 1 and 2. The first version has none.
pub(crate) const MAGIC: &[u8; 4] = b"24ka";

const FORMAT: &str = "llama2.c";

/// Returns whether a file without the first bytes of a format can be one of the first version.
pub(crate) fn is_legacy(file: &[u8]) -> bool {
    legacy(file).is_ok()
}

/// Opens a model.
pub(crate) fn open(file: MappedFile) -> Result<ModelFile, Error> {
    let read = if file.starts_with(MAGIC) { versioned(&file) } else { legacy(&file) };
    file.check_readable()?;
    let (sizes, entries) =
        read.map_err(|fault| Error::ModelFile { file: file.path.clone(), format: FORMAT, fault })?;
    let config = json!({
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        // The scales of 8 bits are f32, but the weights of such a model need no more than 16 bits.
        "torch_dtype": if sizes.group.is_some() { "bfloat16" } else { "float32" },
        "hidden_size": sizes.dim,
        "intermediate_size": sizes.hidden,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads,
        "vocab_size": sizes.vocab,
        "max_position_embeddings": sizes.positions,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "tie_word_embeddings": sizes.shared,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "millrace": {"rope_interleaved": true},
    });
    let mut config = config.as_object().cloned().unwrap_or_default();
    if let Some(group) = sizes.group {
        // The same numbers in the same order are a checkpoint of compressed-tensors.
        let weights = json!({
            "num_bits": 8, "type": "int", "symmetric": true, "strategy": "group", "group_size": group,
        });
        let quantization = json!({
            "quant_method": "compressed-tensors", "format": "int-quantized",
            "config_groups": {"group_0": {"weights": weights, "targets": ["Linear"]}},
        });
        config.insert("quantization_config".into(), quantization);
    }
    let tensors = entries.into_iter().map(|entry| (0, entry)).collect();
    Ok(ModelFile { tensors, ..ModelFile::new(config, vec![Arc::new(file)]) })
}

/// Reads the sizes from seven words. A negative vocabulary says that the head is a matrix of its
/// own, in the first version.
fn sizes(words: [i32; 7], is_legacy: bool) -> Result<Sizes, FileFault> {
    let value = |name: &str, reason: String| FileFault::Value { key: name.to_owned(), reason };
    let mut sizes = [0; 7];
    for (index, word) in words.into_iter().enumerate() {
        let size = if is_legacy && index == 5 { i64::from(word).abs() } else { i64::from(word) };
        match usize::try_from(size) {
            Ok(size @ 1..) if size as u64 <= MAX_SIZES[index] => sizes[index] = size,
            _ => {
                return Err(value(
                    NAMES[index],
                    format!("is {word}, but must be from 1 to {}", MAX_SIZES[index]),
                ));
            }
        }
    }
    let [dim, hidden, layers, heads, kv_heads, vocab, positions] = sizes;
    if !dim.is_multiple_of(heads) || !heads.is_multiple_of(kv_heads) {
        let reason =
            format!("is {heads}, which does not divide dim = {dim}, or is no multiple of {kv_heads}");
        return Err(value("n_heads", reason));
    }
    let shared = !is_legacy || words[5] > 0;
    Ok(Sizes { dim, hidden, layers, heads, kv_heads, vocab, positions, shared, group: None })
}

fn words(cursor: &mut Cursor<'_>) -> Result<[i32; 7], FileFault> {
    let mut words = [0; 7];
    for word in &mut words {
        *word = cursor.i32("the header")?;
    }
    Ok(words)
}

fn legacy(file: &[u8]) -> Result<(Sizes, Vec<Entry>), FileFault> {
    let mut cursor = Cursor::new(file);
    let sizes = sizes(words(&mut cursor)?, true)?;
    place(cursor, sizes, Version::Legacy)
}

fn versioned(file: &[u8]) -> Result<(Sizes, Vec<Entry>), FileFault> {
    let mut cursor = Cursor::new(file);
    cursor.take(4, "the first word")?;
    let version = cursor.i32("the version")?;
    let mut sizes = sizes(words(&mut cursor)?, false)?;
    sizes.shared = cursor.u8("the header")? != 0;
    match version {
        1 => {}
        2 => sizes.group = Some(group(cursor.i32("the header")?, &sizes)?),
        _ => {
            let found = version.cast_unsigned().into();
            return Err(FileFault::Version { found, known: "0, 1 and 2" });
        }
    }
    cursor.take(HEADER - cursor.at() as u64, "the header")?;
    place(cursor, sizes, Version::Versioned)
}

/// Checks the number of elements that share a scale. Rows must be whole groups.
fn group(word: i32, sizes: &Sizes) -> Result<usize, FileFault> {
    let group = usize::try_from(word).unwrap_or_default();
    let fits = |size: usize| group > 0 && size.is_multiple_of(group);
    if fits(sizes.dim) && fits(sizes.hidden) {
        return Ok(group);
    }
    let reason = format!(
        "is {word}, but must divide dim = {} and hidden_dim = {}; groups that span rows cannot be read",
        sizes.dim, sizes.hidden
    );
    Err(FileFault::Value { key: "group_size".to_owned(), reason })
}

/// Finds the tensors in the rest of a file, which they must fill.
fn place(mut cursor: Cursor<'_>, sizes: Sizes, version: Version) -> Result<(Sizes, Vec<Entry>), FileFault> {
    let mut entries = Vec::new();
    let mut take = |elements: usize, size: u64, what| -> Result<Range<usize>, FileFault> {
        let start = cursor.at();
        cursor.take(elements as u64 * size, what)?;
        Ok(start..cursor.at())
    };
    for item in sizes.items(version) {
        let (name, rows, cols) = match item {
            Item::Rotation { positions, pairs } => {
                take(positions * pairs * 2, 4, "the table of the rotation")?;
                continue;
            }
            Item::Vector { name, len } => {
                let range = take(len, 4, "the data of a tensor")?;
                entries.push(Entry { name, dtype: DType::F32, shape: vec![len], range });
                continue;
            }
            Item::Matrix { name, rows, cols } => (name, rows, cols),
        };
        let Some(group) = sizes.group else {
            let range = take(rows * cols, 4, "the data of a tensor")?;
            entries.push(Entry { name, dtype: DType::F32, shape: vec![rows, cols], range });
            continue;
        };
        let scale = format!("{name}_scale");
        let range = take(rows * cols, 1, "the data of a tensor")?;
        entries.push(Entry { name, dtype: DType::I8, shape: vec![rows, cols], range });
        let range = take(rows * (cols / group), 4, "the data of a tensor")?;
        entries.push(Entry { name: scale, dtype: DType::F32, shape: vec![rows, cols / group], range });
    }
    match cursor.left() {
        0 => Ok((sizes, entries)),
        left => Err(FileFault::Kind(format!(
            "{left} bytes follow its last tensor; the file is damaged, or its header is that of another model"
        ))),
    }
}
