//! What can go wrong in a shard, in words for the operator.

/// Why a shard could not start or go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A device refused.
    #[error(transparent)]
    Device(#[from] millrace_kernels::Error),
}
