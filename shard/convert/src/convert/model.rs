//! The model that is being converted, and what is known about the result.

use millrace_formats::{Checkpoint, Source};
use millrace_model::families::are_equal_tensors;
use millrace_numbers::DType;
use serde_json::{Map, Value};

use super::error::ConvertError;
use super::tensors::HeadOrder;

/// The type of the matrices of a GGUF file. Vectors always have single precision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GgufKind {
    /// Dense numbers of this type.
    Dense(DType),
    /// Blocks of 32 columns with 8 bits. A matrix whose rows are not whole blocks gets float16.
    Q8_0,
}

/// The facts about what was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConvertReport {
    /// The number of tensors.
    pub tensors: usize,
    /// The bytes of all tensors.
    pub bytes: usize,
    /// Sentences that the user should know about the result.
    pub notes: Vec<String>,
}

/// Returns the sentence of a run that continues another one.
pub(super) fn continued(done: usize, all: usize) -> Option<String> {
    (done > 0)
        .then(|| format!("an interrupted run had written {done} of the {all} tensors, and was continued"))
}

/// A model that is being converted.
pub(super) struct Model<'a> {
    pub(super) source: &'a Source,
    pub(super) checkpoint: Checkpoint,
    pub(super) config: Map<String, Value>,
}

impl Model<'_> {
    pub(super) fn unsupported(&self, reason: impl Into<String>) -> ConvertError {
        ConvertError::Unsupported { place: self.source.place(), reason: reason.into() }
    }

    /// Returns whether the head of a model with Llama's names is its embedding: it is not stored,
    /// or it is the same. The configuration does not matter.
    pub(super) fn is_head_tied(&self) -> bool {
        let head = self.checkpoint.find("lm_head.weight");
        head.is_none() || are_equal_tensors(head, self.checkpoint.find("model.embed_tokens.weight"))
    }

    /// Returns the method of a quantized model.
    pub(super) fn quantization(&self) -> Option<String> {
        let config = self.config.get("quantization_config")?;
        let method = config.get("quant_method").and_then(Value::as_str).unwrap_or("unknown method");
        Some(method.to_owned())
    }

    pub(super) fn quantized(&self, method: String) -> ConvertError {
        ConvertError::Quantized { place: self.source.place(), method }
    }

    /// Returns a value of the configuration, or of the one of the text part that it has.
    pub(super) fn value(&self, key: &str) -> Option<&Value> {
        self.config.get(key).or_else(|| self.config.get("text_config")?.get(key))
    }

    /// Returns a number of the configuration.
    pub(super) fn count(&self, key: &str) -> Result<usize, ConvertError> {
        let count = self.value(key).and_then(Value::as_u64);
        count.map(|count| count as usize).ok_or_else(|| self.unsupported(format!("config.json has no {key}")))
    }

    /// Whether a converter has reordered the rows of query and key.
    pub(super) fn is_interleaved(&self) -> bool {
        let changes = self.config.get("millrace").and_then(|changes| changes.get("rope_interleaved"));
        changes.and_then(Value::as_bool).unwrap_or(false)
    }

    /// Refuses a model file whose converter has reordered weights in a way that is not undone here.
    pub(super) fn check_order(&self) -> Result<(), ConvertError> {
        const KEPT: [&str; 3] = ["strided_value_heads", "stacked_qkv", "by_output"];
        let changes = self.config.get("millrace");
        if changes.and_then(|changes| changes.get("rope_interleaved")) == Some(&Value::Bool(false)) {
            return Err(self.unsupported(
                "its converter has reordered query and key, which the family has as pairs; convert the model in \
                 Hugging Face layout instead",
            ));
        }
        match KEPT.iter().find(|key| changes.and_then(|changes| changes.get(**key)).is_some()) {
            None => Ok(()),
            Some(key) => Err(self.unsupported(format!(
                "its converter has reordered the weights ({key}), and the order of other formats cannot be restored; \
                 convert the model in Hugging Face layout instead"
            ))),
        }
    }

    /// Returns the number of the pooling of vectors that a GGUF file has.
    pub(super) fn stored_pooling(&self) -> Option<u64> {
        self.config.get("millrace")?.get("pooling")?.get("type")?.as_u64()
    }

    pub(super) fn head_dim(&self) -> Result<usize, ConvertError> {
        match self.config.get("head_dim").and_then(Value::as_u64) {
            Some(size) => Ok(size as usize),
            None => Ok(self.count("hidden_size")? / self.count("num_attention_heads")?.max(1)),
        }
    }

    /// Returns the order of the rows of a tensor, if it is one of query or key whose rows are
    /// reordered.
    pub(super) fn order(
        &self,
        tensor: &str,
        rows: usize,
        to_pairs: bool,
    ) -> Result<Option<HeadOrder>, ConvertError> {
        let is = |name: &str| tensor.contains(&format!(".self_attn.{name}."));
        if !is("q_proj") && !is("k_proj") {
            return Ok(None);
        }
        let head_dim = self.head_dim()?;
        if head_dim == 0 || !head_dim.is_multiple_of(2) || !rows.is_multiple_of(head_dim) {
            return Err(self.unsupported(format!(
                "tensor {tensor} has {rows} rows, which are not whole heads of {head_dim}"
            )));
        }
        if self.config.get("partial_rotary_factor").and_then(Value::as_f64).is_some_and(|share| share != 1.0)
        {
            return Err(self.unsupported("only a part of each head is rotated"));
        }
        Ok(Some(HeadOrder { head_dim, to_pairs }))
    }
}
