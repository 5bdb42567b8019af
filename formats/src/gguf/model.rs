//! The metadata of a file, under the keys of its architecture.

use super::file::{Header, StoredTensor};
use super::value::Value;
use crate::dtype::DType;
use crate::error::{Error, TensorFault};
use crate::fault::FileFault;

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

    /// Returns whether the model is a mixture of experts.
    pub(super) fn has_experts(&self) -> Result<bool, Error> {
        Ok(self.number("expert_count")?.is_some_and(|count| count != 0.0))
    }

    /// Reads a count that a file may give for each layer. All layers must have the same.
    pub(super) fn layer_count(&self, name: &str) -> Result<Option<u64>, Error> {
        let key = self.key(name);
        let Some(Value::Array(_)) = self.header.value(&key) else {
            return self.header.count(&key);
        };
        let counts = self.header.array(&key, |array, key| array.counts(key))?.unwrap_or_default();
        match counts.split_first() {
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
