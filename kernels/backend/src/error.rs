//! Errors of operations on a device.

/// The result of an operation on a device.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of an operation on a device.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An allocation failed.
    #[error("out of memory: {what} needs {bytes} bytes")]
    OutOfMemory {
        /// The purpose of the memory.
        what: &'static str,
        /// The size of the allocation in bytes.
        bytes: usize,
    },
    /// The device does not support the operation with these arguments.
    #[error("unsupported on this device: {0}")]
    Unsupported(String),
    /// The shapes of tensors do not match.
    #[error("shapes do not match: {0}")]
    Shape(String),
    /// Weights cannot be read, or not be kept in a format.
    #[error(transparent)]
    Numbers(#[from] millrace_numbers::Error),
    /// The device reported a fault. Results since then are lost.
    #[error("{0}")]
    Device(String),
}
