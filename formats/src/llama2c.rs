//! Checkpoints of llama2.c (Andrej Karpathy): a header of sizes, then the tensors of a Llama
//! without names, in a fixed order. There are three versions: two of single precision, and one of 8
//! bits.
//!
//! The rows of query and key have the order of the original program of Llama, in which features `2
//! * i` and `2 * i + 1` are rotated together.

use std::ops::Range;
use std::sync::Arc;

use serde_json::json;

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

/// The length of the header of versions 1 and 2.
const HEADER: u64 = 256;

/// The largest values of the sizes: width of the model and of its MLP, layers, heads, vocabulary,
/// positions.
const MAX_SIZES: [u64; 7] = [1 << 20, 1 << 20, 1 << 10, 1 << 14, 1 << 14, 1 << 24, 1 << 24];
const NAMES: [&str; 7] = ["dim", "hidden_dim", "n_layers", "n_heads", "n_kv_heads", "vocab_size", "seq_len"];

/// The sizes of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sizes {
    dim: usize,
    hidden: usize,
    layers: usize,
    heads: usize,
    kv_heads: usize,
    vocab: usize,
    positions: usize,
    /// Whether the head is the embedding.
    shared: bool,
    /// Elements that share a scale, in version 2.
    group: Option<usize>,
}

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
    let mut layout = Layout { cursor, sizes, entries: Vec::new() };
    layout.embedding()?;
    layout.layers(&["input_layernorm"])?;
    layout.layers(&ATTENTION)?;
    layout.layers(&["post_attention_layernorm"])?;
    layout.layers(&MLP)?;
    layout.vector("model.norm.weight")?;
    // Cosines and sines of the rotation.
    let rotation = sizes.positions as u64 * (sizes.dim / sizes.heads / 2) as u64 * 2 * 4;
    layout.cursor.take(rotation, "the table of the rotation")?;
    layout.head()?;
    layout.finished()
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
    let mut layout = Layout { cursor, sizes, entries: Vec::new() };
    layout.layers(&["input_layernorm"])?;
    layout.layers(&["post_attention_layernorm"])?;
    layout.vector("model.norm.weight")?;
    layout.embedding()?;
    layout.layers(&ATTENTION)?;
    layout.layers(&MLP)?;
    layout.head()?;
    layout.finished()
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

/// The modules of a layer in the order of the file. All layers of a module follow each other.
const ATTENTION: [&str; 4] = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"];
const MLP: [&str; 3] = ["mlp.gate_proj", "mlp.down_proj", "mlp.up_proj"];

/// The tensors of a file, in its order.
struct Layout<'a> {
    cursor: Cursor<'a>,
    sizes: Sizes,
    entries: Vec<Entry>,
}

impl Layout<'_> {
    fn place(&mut self, elements: usize, size: u64) -> Result<Range<usize>, FileFault> {
        let start = self.cursor.at();
        self.cursor.take(elements as u64 * size, "the data of a tensor")?;
        Ok(start..self.cursor.at())
    }

    fn vector(&mut self, name: &str) -> Result<(), FileFault> {
        let range = self.place(self.sizes.dim, 4)?;
        let (name, shape) = (name.to_owned(), vec![self.sizes.dim]);
        self.entries.push(Entry { name, dtype: DType::F32, shape, range });
        Ok(())
    }

    fn matrix(&mut self, module: &str, rows: usize, cols: usize) -> Result<(), FileFault> {
        let (name, shape) = (format!("{module}.weight"), vec![rows, cols]);
        let Some(group) = self.sizes.group else {
            let range = self.place(rows * cols, 4)?;
            self.entries.push(Entry { name, dtype: DType::F32, shape, range });
            return Ok(());
        };
        let range = self.place(rows * cols, 1)?;
        self.entries.push(Entry { name, dtype: DType::I8, shape, range });
        let (name, shape) = (format!("{module}.weight_scale"), vec![rows, cols / group]);
        let range = self.place(rows * (cols / group), 4)?;
        self.entries.push(Entry { name, dtype: DType::F32, shape, range });
        Ok(())
    }

    fn embedding(&mut self) -> Result<(), FileFault> {
        self.matrix("model.embed_tokens", self.sizes.vocab, self.sizes.dim)
    }

    fn head(&mut self) -> Result<(), FileFault> {
        if self.sizes.shared { Ok(()) } else { self.matrix("lm_head", self.sizes.vocab, self.sizes.dim) }
    }

    /// Adds the tensors of all layers for each of these modules.
    fn layers(&mut self, modules: &[&str]) -> Result<(), FileFault> {
        let Sizes { dim, hidden, heads, kv_heads, layers, .. } = self.sizes;
        let keys = dim / heads * kv_heads;
        for module in modules {
            for layer in 0..layers {
                let name = format!("model.layers.{layer}.{module}");
                match *module {
                    "self_attn.q_proj" | "self_attn.o_proj" => self.matrix(&name, dim, dim)?,
                    "self_attn.k_proj" | "self_attn.v_proj" => self.matrix(&name, keys, dim)?,
                    "mlp.gate_proj" | "mlp.up_proj" => self.matrix(&name, hidden, dim)?,
                    "mlp.down_proj" => self.matrix(&name, dim, hidden)?,
                    _ => self.vector(&format!("{name}.weight"))?,
                }
            }
        }
        Ok(())
    }

    /// Returns the tensors, which must fill the file.
    fn finished(self) -> Result<(Sizes, Vec<Entry>), FileFault> {
        match self.cursor.left() {
            0 => Ok((self.sizes, self.entries)),
            left => Err(FileFault::Kind(format!(
                "{left} bytes follow its last tensor; the file is damaged, or its header is that of another model"
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const WORDS: [i32; 7] = [8, 12, 2, 4, 2, 10, 6];

    /// Returns a file whose words are their own indices, for the sizes of [`WORDS`].
    fn file(version: i32, shared: bool) -> Vec<u8> {
        let words = |vocab: i32| {
            WORDS
                .iter()
                .enumerate()
                .map(move |(i, &word)| if i == 5 { vocab } else { word })
                .flat_map(i32::to_le_bytes)
        };
        let (norms, others) = (2 * 8 * 2 + 8, 2 * (8 * 8 * 2 + 4 * 8 * 2 + 12 * 8 * 3) + 10 * 8);
        let others = others + if shared { 0 } else { 10 * 8 };
        let floats = |count: usize| (0..count).flat_map(|i| (i as f32).to_le_bytes());
        match version {
            0 => {
                let vocab = if shared { 10 } else { -10 };
                words(vocab).chain(floats(norms + others + 6 * 2)).collect()
            }
            _ => {
                let mut bytes: Vec<u8> = b"24ka".iter().copied().chain(version.to_le_bytes()).collect();
                bytes.extend(words(10));
                bytes.push(shared.into());
                if version == 2 {
                    bytes.extend(4i32.to_le_bytes());
                }
                bytes.resize(256, 0);
                bytes.extend(floats(norms));
                match version {
                    2 => bytes.extend(vec![1; others + others / 4 * 4]),
                    _ => bytes.extend(floats(others)),
                }
                bytes
            }
        }
    }

    fn read(bytes: &[u8]) -> Result<(Sizes, Vec<Entry>), FileFault> {
        if bytes.starts_with(MAGIC) { versioned(bytes) } else { legacy(bytes) }
    }

    fn entry<'a>(entries: &'a [Entry], name: &str) -> &'a Entry {
        entries.iter().find(|entry| entry.name == name).unwrap()
    }

    #[test]
    fn tensors_are_where_the_exporter_puts_them() {
        for shared in [true, false] {
            let (sizes, legacy) = read(&file(0, shared)).unwrap();
            assert_eq!((sizes.shared, sizes.vocab, sizes.group), (shared, 10, None));
            let start = |name: &str| (entry(&legacy, name).range.start - 28) / 4;
            assert_eq!(start("model.embed_tokens.weight"), 0);
            assert_eq!(start("model.layers.1.input_layernorm.weight"), 80 + 8);
            assert_eq!(start("model.layers.1.self_attn.k_proj.weight"), 80 + 16 + 128 + 32);
            assert_eq!(entry(&legacy, "model.layers.1.self_attn.k_proj.weight").shape, [4, 8]);
            // The table of the rotation lies between the last norm and the head.
            let norm = start("model.norm.weight");
            assert_eq!(legacy.iter().any(|entry| entry.name == "lm_head.weight"), !shared);
            if !shared {
                assert_eq!(start("lm_head.weight"), norm + 8 + 12);
            }

            let (_, first) = read(&file(1, shared)).unwrap();
            let start = |name: &str| (entry(&first, name).range.start - 256) / 4;
            assert_eq!(start("model.layers.0.post_attention_layernorm.weight"), 16);
            assert_eq!(start("model.norm.weight"), 32);
            assert_eq!(start("model.embed_tokens.weight"), 40);
            assert_eq!(start("model.layers.0.mlp.down_proj.weight"), 40 + 80 + 384 + 2 * 96);

            let (sizes, second) = read(&file(2, shared)).unwrap();
            assert_eq!(sizes.group, Some(4));
            let embedding = entry(&second, "model.embed_tokens.weight");
            assert_eq!((embedding.dtype.clone(), embedding.range.clone()), (DType::I8, 416..496));
            let scales = entry(&second, "model.embed_tokens.weight_scale");
            assert_eq!((&scales.shape[..], scales.range.clone()), (&[10, 2][..], 496..576));
        }
    }

    #[test]
    fn damaged_files_are_named() {
        let refused = |bytes: &[u8]| read(bytes).unwrap_err().to_string();
        let mut bytes = file(1, true);
        bytes.push(0);
        assert!(refused(&bytes).starts_with("1 bytes follow its last tensor"), "{}", refused(&bytes));
        bytes.truncate(1000);
        assert!(refused(&bytes).starts_with("the data of a tensor at byte"), "{}", refused(&bytes));
        let mut huge = file(1, true);
        huge[8..12].copy_from_slice(&i32::MAX.to_le_bytes());
        assert_eq!(refused(&huge), "the key dim is 2147483647, but must be from 1 to 1048576");
        let mut version = file(1, true);
        version[4] = 9;
        assert_eq!(refused(&version), "it has version 9, and this program knows 0, 1 and 2");
        let mut group = file(2, true);
        group[37] = 3;
        assert!(refused(&group).contains("group_size is 3, but must divide dim = 8 and hidden_dim = 12"));
        assert!(!is_legacy(b"") && !is_legacy(&[0; 28]) && !is_legacy(&file(0, true)[..500]));
    }

    proptest! {
        #[test]
        fn damaged_files_never_panic(
            version in 0i32..3, changes in prop::collection::vec((0usize..300, any::<u8>()), 1..6), cut in 0usize..5000,
        ) {
            let mut bytes = file(version, false);
            changes.into_iter().for_each(|(at, byte)| bytes[at] = byte);
            bytes.truncate(cut.max(300));
            if let Ok((_, entries)) = read(&bytes) {
                prop_assert!(entries.iter().all(|entry| entry.range.end <= bytes.len()));
            }
        }
    }
}
