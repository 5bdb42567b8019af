//! What can go wrong in a shard, in words for the operator.

/// Why a shard could not start or go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A device refused.
    #[error(transparent)]
    Device(#[from] millrace_kernels::Error),
    /// A file of the checkpoint is damaged, incomplete or of another kind.
    #[error(transparent)]
    Checkpoint(#[from] crate::checkpoint::Error),
    /// `config.json` describes a model that cannot be computed.
    #[error(transparent)]
    Config(#[from] crate::families::ConfigError),
}
