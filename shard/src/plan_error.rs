//! The errors of the memory plan.

use crate::Bytes;

/// The reason why no memory plan is possible, with the flag to change.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// A size is zero.
    #[error("{0} must be at least 1")]
    Zero(&'static str),
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
         --max-batch-total-tokens, --max-total-tokens or --max-batch-prefill-tokens, choose a smaller --dtype or --kv-cache-dtype, \
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
}

fn left(weights: usize, workspace: usize, budget: usize) -> String {
    match budget.checked_sub(weights.saturating_add(workspace)) {
        Some(left) => format!("leave {} of {} for the KV cache", Bytes(left), Bytes(budget)),
        None => format!("are more than {} and leave nothing for the KV cache", Bytes(budget)),
    }
}
