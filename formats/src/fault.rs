//! The faults of files that hold a whole model: GGUF and its like.

/// A fault of a model file.
#[derive(Debug, thiserror::Error)]
pub enum FileFault {
    /// The file ends too early.
    #[error(
        "{what} at byte {at} needs {needed} bytes, but only {left} are left; the file is incomplete or damaged, download it again"
    )]
    Ends {
        /// Name of the part of the file.
        what: &'static str,
        /// Place of the part in the file, in bytes.
        at: usize,
        /// Bytes of the part.
        needed: u64,
        /// Bytes between the begin of the part and the end of the file.
        left: usize,
    },
    /// The version of the format is unknown.
    #[error("it has version {found}, and this program knows {known}")]
    Version {
        /// The version of the file.
        found: u64,
        /// The known versions, in words.
        known: &'static str,
    },
    /// The numbers of the file are big-endian.
    #[error("its numbers are big-endian; convert the model again on a little-endian machine")]
    BigEndian,
    /// The file announces more items than can be right.
    #[error("it announces {count} {what}, more than the limit of {limit}; the file is damaged")]
    TooMany {
        /// The kind of the items, in the plural.
        what: &'static str,
        /// The number in the file.
        count: u64,
        /// The largest number that is accepted.
        limit: u64,
    },
    /// Text is not valid UTF-8.
    #[error("{what} is not valid UTF-8")]
    NotText {
        /// Name of the text.
        what: String,
    },
    /// A key or a tensor is there twice.
    #[error("{what} is there twice; the file is damaged")]
    Duplicate {
        /// The item.
        what: String,
    },
    /// The type of a value or of a tensor has an unknown number.
    #[error("{what} has the unknown type {id}; the file is damaged, or a newer program is needed")]
    UnknownType {
        /// The item.
        what: String,
        /// The number of the type.
        id: u32,
    },
    /// An array is in too many other arrays.
    #[error("{key} has arrays in arrays that are nested more than {limit} times")]
    Nested {
        /// The key.
        key: String,
        /// The largest depth that is accepted.
        limit: usize,
    },
    /// The alignment of the data is impossible.
    #[error("general.alignment is {0}, but must be a power of two of at least 8 and at most 65536")]
    Alignment(u64),
    /// A key that the model needs is missing.
    #[error("the key {0} is missing; convert the model again with a newer tool")]
    MissingKey(String),
    /// The value of a key cannot be used.
    #[error("the key {key} {reason}")]
    Value {
        /// The key.
        key: String,
        /// The fault. Its text continues the sentence after the key.
        reason: String,
    },
    /// A tensor whose values are part of the configuration cannot be used.
    #[error("the tensor {tensor} {reason}")]
    SpecialTensor {
        /// Name of the tensor in the file.
        tensor: String,
        /// The fault. Its text continues the sentence after the name.
        reason: String,
    },
    /// The file is one of several that do not belong together.
    #[error("it is one part of a split model, and {0}")]
    Split(String),
    /// The file is of a kind that holds no complete model.
    #[error("{0}")]
    Kind(String),
}
