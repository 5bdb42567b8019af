//! The errors of the memory plan.

use crate::Bytes;

/// The reason why no memory plan is possible, with the flag to change.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// A size is zero.
    #[error("{0} must be at least 1")]
    Zero(&'static str),
    /// The model would choose among the keys of sequences of this length.
    #[error(
        "--max-total-tokens {asked}: this model chooses {keys} keys for each token of a longer sequence (sparse \
         attention), which is not built; sequences have at most {keys} tokens, up to which it uses all keys"
    )]
    ChosenKeys {
        /// Number of tokens that was asked for.
        asked: usize,
        /// Number of keys that the model chooses.
        keys: usize,
    },
    /// The pool is smaller than the longest sequence.
    #[error(
        "a sequence may have {longest} tokens (--max-total-tokens), but the KV cache holds only {pool} (--max-batch-total-tokens); \
         lower the first or raise the second"
    )]
    PoolTooSmall {
        /// Number of tokens of the longest sequence.
        longest: usize,
        /// Number of tokens in the pool.
        pool: usize,
    },
    /// There is not enough memory for weights, workspace and the KV pool.
    #[error(
        "not enough memory: weights {} + workspace {} {}, which needs {} for {kv_for}; lower \
         --max-batch-total-tokens, --max-total-tokens, --max-batch-prefill-tokens or --max-batch-size, choose a smaller --dtype or --kv-cache-dtype, \
         or free memory",
        Bytes(*.weights), Bytes(*.workspace), left(*.weights, *.workspace, *.budget), Bytes(*.kv)
    )]
    NoRoom {
        /// Bytes of weights.
        weights: usize,
        /// Bytes of activations and tables.
        workspace: usize,
        /// Bytes that may be used.
        budget: usize,
        /// Bytes that the KV pool needs at least.
        kv: usize,
        /// The purpose of these bytes.
        kv_for: String,
    },
    /// The device does not hold all layers, and they cannot be divided between it and the host.
    #[error(
        "--gpu-memory is too small for all layers, and the CPU cannot compute some of them, because this model has \
         {0}; raise --gpu-memory or give --device cpu"
    )]
    IndivisibleLayers(&'static str),
    /// The bytes that may be taken of a device do not hold one layer beside embedding and head.
    #[error(
        "--gpu-memory is too small for one layer: embedding, head and one layer need weights {} + workspace {} + KV \
         cache {} for {kv_for}, and {} of the GPU may be used; raise --gpu-memory, lower --max-batch-total-tokens, \
         --max-total-tokens or --max-batch-prefill-tokens, or give --device cpu",
        Bytes(*.weights), Bytes(*.workspace), Bytes(*.kv), Bytes(*.budget)
    )]
    NoLayer {
        /// Bytes of weights.
        weights: usize,
        /// Bytes of activations and tables.
        workspace: usize,
        /// Bytes of the device that may be used.
        budget: usize,
        /// Bytes of the KV pool.
        kv: usize,
        /// The purpose of the KV pool.
        kv_for: String,
    },
    /// The host has not enough memory for the layers that the device does not hold.
    #[error(
        "{layers} layers do not fit the GPU (--gpu-memory), and the CPU's memory does not hold them: weights {} + \
         workspace {} {}, which needs {} for {kv_for}; raise --gpu-memory, lower --max-batch-total-tokens or \
         --max-total-tokens, choose a smaller --dtype, or free memory",
        Bytes(*.weights), Bytes(*.workspace), left(*.weights, *.workspace, *.budget), Bytes(*.kv)
    )]
    NoHostRoom {
        /// Number of layers.
        layers: usize,
        /// Bytes of weights.
        weights: usize,
        /// Bytes of activations and tables.
        workspace: usize,
        /// Bytes of the host that may be used.
        budget: usize,
        /// Bytes that the KV pool of these layers needs.
        kv: usize,
        /// The purpose of these bytes.
        kv_for: String,
    },
}

impl PlanError {
    /// Tells whether more free memory could make the plan possible.
    pub fn is_lack_of_memory(&self) -> bool {
        match self {
            PlanError::Zero(_) | PlanError::ChosenKeys { .. } | PlanError::PoolTooSmall { .. } => false,
            PlanError::IndivisibleLayers(_)
            | PlanError::NoRoom { .. }
            | PlanError::NoLayer { .. }
            | PlanError::NoHostRoom { .. } => true,
        }
    }
}

fn left(weights: usize, workspace: usize, budget: usize) -> String {
    match budget.checked_sub(weights.saturating_add(workspace)) {
        Some(left) => format!("leave {} of {} for the KV cache", Bytes(left), Bytes(budget)),
        None => format!("are more than {} and leave nothing for the KV cache", Bytes(budget)),
    }
}
