//! The choice of keys of models with sparse attention.

/// A model's choice of the keys that each query attends to (sparse attention).
///
/// The decoder attends to all keys. This is the same as long as the model would choose all of them,
/// so that `max_positions` of such a model is `keys`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyChoice {
    /// Number of keys that the model chooses.
    pub keys: usize,
    /// Number of positions that the model supports with its choice.
    pub positions: usize,
}

impl KeyChoice {
    /// Returns the warning that the context of a model is shorter than its own.
    pub fn warning(&self, model_type: &str) -> String {
        let KeyChoice { keys, positions } = self;
        format!(
            "config.json: {model_type} chooses {keys} keys for each token (sparse attention), which is not built: \
             all keys are used, which is the same up to {keys} tokens, and the context ends there instead of at \
             {positions}"
        )
    }
}
