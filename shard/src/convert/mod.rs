//! Writes a model in another file format, or in another element type.
//!
//! The source is anything that can be served. Tensors are read row by row, so that the memory that
//! is needed does not depend on the size of the model. The result appears in its place when it is
//! complete.

mod error;
mod gguf;
mod safetensors;
mod tensors;
mod tokenizer;

use std::path::Path;

use millrace_formats::{Checkpoint, Source};
use millrace_kernels::DType;
use serde_json::{Map, Value};

pub use error::ConvertError;
use tensors::HeadOrder;

use crate::families;

/// A format of new files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConvertTarget {
    /// A folder in Hugging Face layout with safetensors files.
    Safetensors {
        /// Element type of the weights. If absent, dense weights keep theirs.
        dtype: Option<DType>,
        /// The largest size of a file in bytes, unless a single tensor has more.
        max_file_bytes: usize,
    },
    /// A GGUF file.
    Gguf {
        /// Type of the matrices.
        kind: GgufKind,
    },
}

/// The type of the matrices of a GGUF file. Vectors always have single precision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GgufKind {
    /// Dense numbers of this type.
    Dense(DType),
    /// Blocks of 32 columns with 8 bits. A matrix whose rows are not whole blocks gets float16.
    Q8_0,
}

/// What was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConvertReport {
    /// The number of tensors.
    pub tensors: usize,
    /// The bytes of all tensors.
    pub bytes: usize,
    /// What the user should know about the result, in sentences.
    pub notes: Vec<String>,
}

/// A model that is being converted.
struct Model<'a> {
    source: &'a Source,
    checkpoint: Checkpoint,
    config: Map<String, Value>,
}

/// Converts the model in `source` to `target`, and writes the result to the new file or folder
/// `place`. `progress` is called with the bytes of tensors that are done, and all of them.
///
/// # Errors
/// If the model cannot be read or converted, or the result cannot be written. There is nothing at
/// `place` then.
pub fn convert(
    source: &Source,
    place: &Path,
    target: ConvertTarget,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<ConvertReport, ConvertError> {
    // This checks the configuration and the shapes of all tensors.
    families::load(source, &families::Overrides::default())?;
    let json = |source_error| ConvertError::Json { file: source.path("config.json"), source: source_error };
    let config = serde_json::from_slice(&source.config()?).map_err(json)?;
    let model = Model { source, checkpoint: Checkpoint::open(source)?, config };
    let report = match target {
        ConvertTarget::Safetensors { dtype, max_file_bytes } => {
            safetensors::write(&model, place, dtype, max_file_bytes, progress)?
        }
        ConvertTarget::Gguf { kind } => gguf::write(&model, place, kind, progress)?,
    };
    Ok(report)
}

impl Model<'_> {
    fn unsupported(&self, reason: impl Into<String>) -> ConvertError {
        ConvertError::Unsupported { place: self.source.place(), reason: reason.into() }
    }

    /// Returns the method of a quantized model.
    fn quantization(&self) -> Option<String> {
        let config = self.config.get("quantization_config")?;
        let method = config.get("quant_method").and_then(Value::as_str).unwrap_or("unknown method");
        Some(method.to_owned())
    }

    fn quantized(&self, method: String) -> ConvertError {
        ConvertError::Quantized { place: self.source.place(), method }
    }

    /// Returns a number of the configuration.
    fn count(&self, key: &str) -> Result<usize, ConvertError> {
        let count = self.config.get(key).and_then(Value::as_u64);
        count.map(|count| count as usize).ok_or_else(|| self.unsupported(format!("config.json has no {key}")))
    }

    /// Whether a converter has reordered the rows of query and key.
    fn is_interleaved(&self) -> bool {
        let changes = self.config.get("millrace").and_then(|changes| changes.get("rope_interleaved"));
        changes.and_then(Value::as_bool).unwrap_or(false)
    }

    fn head_dim(&self) -> Result<usize, ConvertError> {
        match self.config.get("head_dim").and_then(Value::as_u64) {
            Some(size) => Ok(size as usize),
            None => Ok(self.count("hidden_size")? / self.count("num_attention_heads")?.max(1)),
        }
    }

    /// Returns the order of the rows of a tensor, if it is one of query or key whose rows are
    /// reordered.
    fn order(&self, tensor: &str, rows: usize, to_pairs: bool) -> Result<Option<HeadOrder>, ConvertError> {
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
