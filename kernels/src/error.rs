//! What a device can refuse.

/// The result of an operation on a device.
pub type Result<T> = std::result::Result<T, Error>;

/// What a device can refuse.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An allocation failed.
    #[error("out of memory: {what} needs {bytes} bytes")]
    OutOfMemory {
        /// What the memory was for.
        what: &'static str,
        /// How much was asked for.
        bytes: usize,
    },
    /// The operation exists, but not for these arguments on this device.
    #[error("unsupported on this device: {0}")]
    Unsupported(String),
    /// Parts of a matrix or vector do not fit together.
    #[error("shapes do not fit: {0}")]
    Shape(String),
    /// The device reported a fault; what it computed since is lost.
    #[error("{0}")]
    Device(String),
}
