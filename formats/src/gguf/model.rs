//! The metadata of a file, under the keys of its architecture.

use super::file::{Header, StoredTensor};
use super::naming;
use super::value::Value;
use crate::dtype::DType;
use crate::error::{Error, TensorFault};
use crate::fault::FileFault;

/// The key, after the name of the architecture, with the number of layers that predict further
/// tokens.
const LATER: &str = "nextn_predict_layers";

/// The metadata and tensors of a model.
pub(super) struct Model<'a> {
    /// The header of the first file, which has all keys.
    pub(super) header: &'a Header<'a>,
    /// The value of `general.architecture`, with which most keys begin.
    pub(super) architecture: &'static str,
    /// The tensors of all files.
    pub(super) tensors: &'a [&'a StoredTensor],
    /// The divisors of the rotary frequencies, if the file has them.
    pub(super) divisors: Option<Vec<f32>>,
    /// Those of LongRoPE, for long and for short texts, if the file has them.
    pub(super) long_rope: [Option<Vec<f32>>; 2],
}

/// The layers whose number of key/value heads a file has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KvHeads {
    /// All have the same.
    AllLayers,
    /// Layers without attention have none, and the others have the same.
    SomeLayers,
    /// Each layer has its own, which the keys of the architecture describe.
    EachLayer,
}

/// The rows of query, and of key and of value, in a tensor that has all three.
#[derive(Debug, Clone, Copy)]
pub(super) struct QkvRows {
    pub(super) query: usize,
    pub(super) key: usize,
}

impl Model<'_> {
    pub(super) fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    pub(super) fn fault(&self, name: &str, reason: String) -> Error {
        self.header.fault(FileFault::Value { key: self.key(name), reason })
    }

    pub(super) fn count(&self, name: &str) -> Result<u64, Error> {
        self.header.count(&self.key(name))?.ok_or_else(|| self.missing(name))
    }

    pub(super) fn number(&self, name: &str) -> Result<Option<f64>, Error> {
        self.header.number(&self.key(name))
    }

    pub(super) fn missing(&self, name: &str) -> Error {
        self.header.fault(FileFault::MissingKey(self.key(name)))
    }

    /// Returns whether the file has a tensor of this name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.tensor(name).is_some()
    }

    /// Returns whether a module of any layer has a bias. That of the query may be a part of one for
    /// query, key and value.
    pub(super) fn has_bias(&self, module: &str) -> bool {
        let fused = module == "attn_q" && self.is_in_a_layer("attn_qkv.bias");
        fused || self.is_in_a_layer(&format!("{module}.bias"))
    }

    /// Returns whether any layer has a tensor of this name.
    pub(super) fn is_in_a_layer(&self, name: &str) -> bool {
        self.tensors.iter().any(|tensor| naming::in_layer(&tensor.name) == Some(name))
    }

    /// Returns whether the model is a mixture of experts.
    pub(super) fn has_experts(&self) -> Result<bool, Error> {
        Ok(self.number("expert_count")?.is_some_and(|count| count != 0.0))
    }

    /// Returns the rows of query and key in a tensor that has both, and value.
    pub(super) fn qkv_rows(&self, kv_heads: KvHeads) -> Result<QkvRows, Error> {
        let heads = self.layer_count("attention.head_count")?;
        let heads = heads.ok_or_else(|| self.missing("attention.head_count"))?;
        let kv_heads = self.kv_heads(kv_heads)?.unwrap_or(heads);
        let head_dim = self.head_dim(heads)?;
        let rows = |heads: u64| usize::try_from(heads.saturating_mul(head_dim)).unwrap_or(usize::MAX);
        Ok(QkvRows { query: rows(heads), key: rows(kv_heads) })
    }

    /// Returns the number of key/value heads of a layer, if the file has it.
    pub(super) fn kv_heads(&self, meaning: KvHeads) -> Result<Option<u64>, Error> {
        match meaning {
            KvHeads::AllLayers => self.layer_count("attention.head_count_kv"),
            KvHeads::SomeLayers => self.count_of_some_layers("attention.head_count_kv"),
            KvHeads::EachLayer => Ok(None),
        }
    }

    /// Returns the features of a head. If the file does not have this number, the heads share the
    /// features of the embedding evenly.
    pub(super) fn head_dim(&self, heads: u64) -> Result<u64, Error> {
        match self.header.count(&self.key("attention.key_length"))? {
            Some(length) => Ok(length),
            None => Ok(self.count("embedding_length")?.checked_div(heads).unwrap_or_default()),
        }
    }

    /// Returns the number of layers without those that predict further tokens.
    pub(super) fn layers(&self) -> Result<u64, Error> {
        let (all, later) = (self.count("block_count")?, self.later_layers()?);
        let layers = all.checked_sub(later);
        layers.ok_or_else(|| self.fault(LATER, format!("is {later}, but there are only {all} layers")))
    }

    /// Returns the number of layers that predict further tokens. They come last.
    pub(super) fn later_layers(&self) -> Result<u64, Error> {
        Ok(self.header.count(&self.key(LATER))?.unwrap_or(0))
    }

    /// Returns the features of a dense MLP. Files may have none if all layers have experts.
    pub(super) fn mlp_width(&self, kv_heads: KvHeads) -> Result<u64, Error> {
        const WIDTH: &str = "feed_forward_length";
        let width = match kv_heads {
            KvHeads::AllLayers => self.layer_count(WIDTH)?,
            KvHeads::EachLayer => self.layer_counts(WIDTH)?.first().copied(),
            KvHeads::SomeLayers => self.count_of_some_layers(WIDTH)?,
        };
        let width = match width {
            None | Some(0) if self.has_experts()? => self.layer_count("expert_feed_forward_length")?,
            width => width,
        };
        width.ok_or_else(|| self.missing(WIDTH))
    }

    /// Reads a count that a file may give for each layer. All layers must have the same.
    pub(super) fn layer_count(&self, name: &str) -> Result<Option<u64>, Error> {
        self.equal_counts(name, |_| true)
    }

    /// Reads a count that a file may give for each layer. All layers that have any must have the
    /// same.
    fn count_of_some_layers(&self, name: &str) -> Result<Option<u64>, Error> {
        self.equal_counts(name, |count| count > 0)
    }

    /// Reads a count that a file may give for each layer: one for each, or one for all.
    pub(super) fn layer_counts(&self, name: &str) -> Result<Vec<u64>, Error> {
        let key = self.key(name);
        match self.header.value(&key) {
            Some(Value::Array(_)) => {
                Ok(self.header.array(&key, |array, key| array.counts(key))?.unwrap_or_default())
            }
            _ => Ok(self.header.count(&key)?.into_iter().collect()),
        }
    }

    fn equal_counts(&self, name: &str, counts_too: impl Fn(u64) -> bool) -> Result<Option<u64>, Error> {
        let key = self.key(name);
        let Some(Value::Array(_)) = self.header.value(&key) else {
            return self.header.count(&key);
        };
        let mut counts = self.layer_counts(name)?;
        counts.retain(|count| counts_too(*count));
        match counts.split_first() {
            None => Ok(Some(0)),
            Some((first, rest)) if rest.iter().all(|count| count == first) => Ok(Some(*first)),
            _ => Err(self.fault(name, "differs between layers, which is not supported".to_owned())),
        }
    }

    pub(super) fn tensor(&self, name: &str) -> Option<&StoredTensor> {
        self.tensors.iter().find(|tensor| tensor.name == name).copied()
    }

    /// Returns the rows of the embedding. The key for the size of the vocabulary is often missing.
    pub(super) fn vocabulary(&self) -> Result<usize, Error> {
        const EMBEDDING: &str = "token_embd.weight";
        match self.tensor(EMBEDDING).map(|tensor| &tensor.shape[..]) {
            Some(&[rows, _]) => Ok(rows),
            Some(found) => {
                let fault = TensorFault::Shape { found: found.to_vec(), expected: Vec::new() };
                Err(self.header.tensor_fault(EMBEDDING, fault))
            }
            None => Err(self.header.fault(FileFault::SpecialTensor {
                tensor: EMBEDDING.to_owned(),
                reason: "is missing; the file holds no complete model".to_owned(),
            })),
        }
    }

    /// Returns the number of outputs of the classifier of texts, if the file has one.
    pub(super) fn classes(&self) -> Option<usize> {
        self.tensor("cls.output.weight")?.shape.first().copied()
    }

    /// Returns the element type of weights that are not kept as they are: that of most matrices, or
    /// bfloat16, whose range no weight and no activation exceeds.
    pub(super) fn dtype(&self) -> &'static str {
        let elements = |dtype: &DType| -> u128 {
            let matrices = self.tensors.iter().filter(|tensor| tensor.shape.len() > 1);
            matrices
                .filter(|tensor| tensor.dtype == *dtype)
                .map(|tensor| tensor.shape.iter().map(|&size| size as u128).product::<u128>())
                .sum()
        };
        let has_blocks = self.tensors.iter().any(|tensor| matches!(tensor.dtype, DType::Blocks(_)));
        match [DType::F32, DType::F16, DType::BF16].map(|dtype| elements(&dtype)) {
            _ if has_blocks => "bfloat16",
            [f32, f16, bf16] if f32 >= f16.max(bf16) => "float32",
            [_, f16, bf16] if f16 >= bf16 => "float16",
            _ => "bfloat16",
        }
    }
}
