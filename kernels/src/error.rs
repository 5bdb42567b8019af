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
    /// A code of a stored matrix stands for a NaN or an infinity.
    #[error("the number in row {row}, column {col} is a NaN or an infinity")]
    StoredNumber {
        /// The part that has the code, counted among the parts of the matrix.
        part: usize,
        /// Row of the part's tensor.
        row: usize,
        /// Column of the part's tensor.
        col: usize,
    },
    /// The device reported a fault. Results since then are lost.
    #[error("{0}")]
    Device(String),
}
