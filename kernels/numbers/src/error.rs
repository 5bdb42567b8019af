//! Errors of reading and writing numbers.

/// The result of reading or writing numbers.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of reading or writing numbers.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A format has no such numbers or sizes.
    #[error("unsupported: {0}")]
    Unsupported(String),
    /// The shape of a tensor does not match its bytes, its scales or another tensor.
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
}
