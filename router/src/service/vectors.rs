//! How the loaded model makes vectors of texts.

use std::fmt;
use std::sync::Arc;

use millrace_proto::Ready;

use super::setup::Service;
use crate::embedding::{ChosenPooling, EmbeddingError, EmbeddingModel, PoolingMode};

/// How the loaded model makes vectors of texts.
#[derive(Debug, Clone)]
pub struct VectorPlan {
    /// The description in the folder.
    pub model: Arc<EmbeddingModel>,
    /// The pooling, and what has chosen it.
    pub pooling: ChosenPooling,
    /// The number of features of a vector.
    pub features: usize,
    /// Maximum number of tokens of a text, including the special tokens around it.
    pub max_input: usize,
    /// The file or the limit of the server that `max_input` comes from.
    pub max_input_source: String,
}

impl Service {
    /// Returns how the loaded model, which has announced `ready`, makes vectors of texts.
    ///
    /// # Errors
    /// If the files of the model describe vectors that cannot be computed.
    pub fn vectors(&self, ready: &Ready) -> Result<VectorPlan, EmbeddingError> {
        let model = self.0.embedding.clone()?;
        let pooling = model.pooling(self.0.limits.pooling, || PoolingMode::usual(ready))?;
        let features = model.output_features(ready.hidden_size as usize, pooling.modes.len())?;
        let limit = self.0.limits.tokens(ready).max_input;
        let (max_input, max_input_source) = match model.max_tokens() {
            Some(bound) if bound.tokens <= limit => (bound.tokens, bound.source.clone()),
            _ => (limit, "max_input_tokens".to_owned()),
        };
        Ok(VectorPlan { model, pooling, features, max_input, max_input_source })
    }
}

impl fmt::Display for VectorPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let modes: Vec<String> = self.pooling.modes.iter().map(ToString::to_string).collect();
        write!(f, "pooling {} ({})", modes.join(" + "), self.pooling.source)?;
        for module in self.model.modules() {
            write!(f, ", {module}")?;
        }
        write!(
            f,
            "; {} features; at most {} tokens ({})",
            self.features, self.max_input, self.max_input_source
        )
    }
}
