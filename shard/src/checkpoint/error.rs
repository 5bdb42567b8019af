//! What can be wrong with the files of a checkpoint, in words for the person who has them.

use std::fmt::{self, Display, Formatter};

/// Why a checkpoint cannot be used. Every text names the file, and the tensor where there is one.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The folder itself is missing.
    #[error("{place} is not a folder; give the folder that holds config.json and the safetensors files")]
    NoFolder {
        /// What was given.
        place: String,
    },
    /// The operating system refused.
    #[error("cannot read {file}: {source}")]
    Read {
        /// The file.
        file: String,
        /// Why.
        source: std::io::Error,
    },
    /// A file has other contents than when it was read first.
    #[error(
        "{file} has been changed since this server read it first ({how}): the server cannot go on with another model than \
         it began with. Restart it to serve the files that are there now"
    )]
    Changed {
        /// The file.
        file: String,
        /// What differs.
        how: String,
    },
    /// The operating system could not bring a part of a file that was there when the file was opened.
    #[error(
        "{file} could not be read to its end: it was truncated while it was being loaded, or its disk or network failed; \
         leave the files of a model alone while they are loaded"
    )]
    Cut {
        /// The file.
        file: String,
    },
    /// A file that every checkpoint has is missing.
    #[error("{file} does not exist; is {place} a model in Hugging Face layout, and completely downloaded?")]
    MissingFile {
        /// The file.
        file: String,
        /// The folder.
        place: String,
    },
    /// A text file is too large to be what its name says.
    #[error("{file} has {bytes} bytes, more than the {limit} that are reasonable for such a file")]
    TooLarge {
        /// The file.
        file: String,
        /// Its size.
        bytes: u64,
        /// The largest size accepted.
        limit: u64,
    },
    /// There is nothing to load weights from.
    #[error("{place} has no model.safetensors and no model.safetensors.index.json; {advice}")]
    NoWeights {
        /// The folder.
        place: String,
        /// What to do.
        advice: String,
    },
    /// The head of a safetensors file cannot be believed.
    #[error("{file} is not a usable safetensors file: {fault}")]
    Header {
        /// The file.
        file: String,
        /// What is wrong.
        fault: HeaderFault,
    },
    /// One tensor of a file cannot be used.
    #[error("tensor {tensor} in {file} {fault}")]
    Tensor {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// What is wrong; reads on after the names.
        fault: Box<TensorFault>,
    },
    /// A tensor that the model needs is nowhere.
    #[error(
        "tensor {tensor} (shape {expected:?}) is needed for this config.json, but no file of {place} has it; \
         the download is incomplete, or config.json belongs to another model"
    )]
    MissingTensor {
        /// The folder.
        place: String,
        /// The tensor.
        tensor: String,
        /// The shape it must have.
        expected: Vec<usize>,
    },
    /// The table of files contradicts itself or the files.
    #[error("{file}: {fault}")]
    Index {
        /// The index file.
        file: String,
        /// What is wrong.
        fault: IndexFault,
    },
}

/// What is wrong with the head of a safetensors file.
#[derive(Debug, thiserror::Error)]
pub enum HeaderFault {
    /// Git stored a stand-in.
    #[error("it is a Git LFS pointer, not the file itself; run `git lfs pull` in its folder")]
    LfsPointer,
    /// Not even the length of the header is there.
    #[error("it has only {0} bytes; download it again")]
    TooShort(usize),
    /// The header's length is absurd.
    #[error(
        "its first bytes announce a header of {0} bytes, where at most {1} are allowed; it is of another format or damaged"
    )]
    TooLong(u64, usize),
    /// The file ends within the header.
    #[error("it announces a header of {header} bytes but has only {file} bytes in all; download it again")]
    Truncated {
        /// Length announced.
        header: u64,
        /// Length of the file.
        file: usize,
    },
    /// The header does not parse.
    #[error("its header cannot be parsed: {0}")]
    Json(serde_json::Error),
    /// Bytes belong to no tensor.
    #[error(
        "bytes {from} to {to} of its data belong to no tensor, which the format forbids; the file is damaged"
    )]
    Hole {
        /// First byte of the hole.
        from: usize,
        /// End of the hole.
        to: usize,
    },
}

/// What is wrong with one stored tensor.
#[derive(Debug)]
pub enum TensorFault {
    /// Two entries have this name.
    Duplicate,
    /// The number of elements cannot be counted.
    Overflow {
        /// The shape.
        shape: Vec<u64>,
    },
    /// The end lies before the begin.
    Reversed {
        /// The offsets.
        offsets: (u64, u64),
    },
    /// The data lies behind the end of the file.
    Truncated {
        /// End of the tensor's data.
        end: u64,
        /// Bytes of data that the file has.
        data: usize,
    },
    /// The data's length does not follow from type and shape.
    Bytes {
        /// Element type.
        dtype: String,
        /// Shape.
        shape: Vec<usize>,
        /// Bytes that these need, if it is a whole number.
        needed: Option<u128>,
        /// Bytes announced.
        found: usize,
    },
    /// Two tensors share bytes.
    Overlap {
        /// The other tensor.
        other: String,
    },
    /// Its element type is not one that weights may have.
    DType {
        /// The type.
        dtype: String,
    },
    /// It is not the tensor that the configuration describes.
    Shape {
        /// Shape stored.
        found: Vec<usize>,
        /// Shape needed.
        expected: Vec<usize>,
    },
    /// It would change results, but nothing would use it.
    Unused,
}

impl Display for TensorFault {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            TensorFault::Duplicate => write!(f, "is listed twice; the file is damaged"),
            TensorFault::Overflow { shape } => write!(f, "has the impossible shape {shape:?}"),
            TensorFault::Reversed { offsets: (begin, end) } => {
                write!(f, "ends at byte {end}, before its begin at {begin}; the file is damaged")
            }
            TensorFault::Truncated { end, data } => write!(
                f,
                "reaches to byte {end} of the data, but the file has only {data} bytes of data; download it again"
            ),
            TensorFault::Bytes { dtype, shape, needed, found } => {
                write!(f, "has {found} bytes, but {dtype} of shape {shape:?} ")?;
                match needed {
                    Some(needed) => write!(f, "takes {needed}; the file is damaged"),
                    None => write!(f, "does not fill whole bytes; the file is damaged"),
                }
            }
            TensorFault::Overlap { other } => write!(f, "shares bytes with {other}; the file is damaged"),
            TensorFault::DType { dtype } => write!(
                f,
                "has element type {dtype}, but weights must be F32, F16 or BF16; use the unquantised original"
            ),
            TensorFault::Shape { found, expected } => {
                write!(f, "has shape {found:?}, expected {expected:?} by config.json")
            }
            TensorFault::Unused => write!(
                f,
                "would be ignored, and results would be wrong: by config.json the model has no such weight"
            ),
        }
    }
}

/// What is wrong with `model.safetensors.index.json`.
#[derive(Debug, thiserror::Error)]
pub enum IndexFault {
    /// It does not parse.
    #[error("the index cannot be parsed: {0}")]
    Json(serde_json::Error),
    /// It lists nothing.
    #[error("weight_map is empty")]
    Empty,
    /// A tensor is listed twice.
    #[error("tensor {0} is listed twice")]
    Duplicate(String),
    /// A name would lead out of the folder or is no safetensors file.
    #[error("tensor {tensor} is said to be in {name:?}, which is not the plain name of a safetensors file")]
    FileName {
        /// The tensor.
        tensor: String,
        /// The name given.
        name: String,
    },
    /// A file is missing.
    #[error("it names {name} for tensor {tensor}, but that file does not exist; download it")]
    MissingFile {
        /// The file.
        name: String,
        /// A tensor in it.
        tensor: String,
    },
    /// A tensor is not where it should be.
    #[error("tensor {tensor} should be in {name}, but that file does not have it; download both again")]
    MissingTensor {
        /// The file.
        name: String,
        /// The tensor.
        tensor: String,
    },
}
