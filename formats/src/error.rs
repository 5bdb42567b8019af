//! The errors of reading a checkpoint, in words for the person who has its files.

use std::fmt::{self, Display, Formatter};

use crate::fault::FileFault;

/// The reason why a checkpoint cannot be used. Every text names the file, and the tensor where
/// there is one.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The folder is missing.
    #[error("{place} is not a folder; give the folder that holds config.json and the safetensors files")]
    NoFolder {
        /// The path that was given.
        place: String,
    },
    /// The operating system could not read a file.
    #[error("cannot read {file}: {source}")]
    Read {
        /// Path of the file.
        file: String,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// A file has been changed since it was first read.
    #[error(
        "{file} has been changed since this server read it first ({how}): the server cannot continue with another model. \
         Restart it to serve the files that are there now"
    )]
    Changed {
        /// Path of the file.
        file: String,
        /// The difference.
        how: String,
    },
    /// A part of a file that existed when the file was opened could not be read.
    #[error(
        "{file} could not be read to its end: it was truncated while it was being loaded, or its disk or network failed; \
         leave the files of a model alone while they are loaded"
    )]
    Cut {
        /// Path of the file.
        file: String,
    },
    /// A file that every checkpoint has is missing.
    #[error("{file} does not exist; is {place} a model in Hugging Face layout, and completely downloaded?")]
    MissingFile {
        /// Path of the file.
        file: String,
        /// Path of the folder.
        place: String,
    },
    /// A text file is too large for its purpose.
    #[error("{file} has {bytes} bytes, more than the {limit} that are reasonable for such a file")]
    TooLarge {
        /// Path of the file.
        file: String,
        /// Size of the file.
        bytes: u64,
        /// The largest size accepted.
        limit: u64,
    },
    /// There are no weights to load.
    #[error("{place} has no model.safetensors and no model.safetensors.index.json; {advice}")]
    NoWeights {
        /// Path of the folder.
        place: String,
        /// Advice for the user.
        advice: String,
    },
    /// The header of a safetensors file is invalid.
    #[error("{file} is not a usable safetensors file: {fault}")]
    Header {
        /// Path of the file.
        file: String,
        /// The fault.
        fault: HeaderFault,
    },
    /// One tensor of a file cannot be used.
    #[error("tensor {tensor} in {file} {fault}")]
    Tensor {
        /// Path of the file.
        file: String,
        /// Name of the tensor.
        tensor: String,
        /// The fault. Its text continues the sentence after the names.
        fault: Box<TensorFault>,
    },
    /// A tensor that the model needs is in no file.
    #[error(
        "tensor {tensor} (shape {expected:?}) is needed for this config.json, but no file of {place} has it; \
         the download is incomplete, or config.json belongs to another model"
    )]
    MissingTensor {
        /// Path of the folder.
        place: String,
        /// Name of the tensor.
        tensor: String,
        /// The shape it must have.
        expected: Vec<usize>,
    },
    /// A file that holds a whole model is invalid.
    #[error("{file} is not a usable {format} file: {fault}")]
    ModelFile {
        /// Path of the file.
        file: String,
        /// Name of the format.
        format: &'static str,
        /// The fault.
        fault: FileFault,
    },
    /// The index contradicts itself or the files.
    #[error("{file}: {fault}")]
    Index {
        /// Path of the index.
        file: String,
        /// The fault.
        fault: IndexFault,
    },
}

/// A fault of the header of a safetensors file.
#[derive(Debug, thiserror::Error)]
pub enum HeaderFault {
    /// The file is a pointer of Git LFS.
    #[error("it is a Git LFS pointer, not the file itself; run `git lfs pull` in its folder")]
    LfsPointer,
    /// The file is too short for the length of the header.
    #[error("it has only {0} bytes; download it again")]
    TooShort(usize),
    /// The length of the header is beyond the limit.
    #[error(
        "its first bytes announce a header of {0} bytes, where at most {1} are allowed; it is of another format or damaged"
    )]
    TooLong(u64, usize),
    /// There are too many tensors.
    #[error("its header has up to {0} tensors, where at most {1} are allowed")]
    TooManyTensors(usize, usize),
    /// The file ends within the header.
    #[error("it announces a header of {header} bytes but has only {file} bytes in all; download it again")]
    Truncated {
        /// The length that the file announces.
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

/// A fault of one stored tensor.
#[derive(Debug)]
pub enum TensorFault {
    /// Two entries have the same name.
    Duplicate,
    /// The number of elements overflows.
    Overflow {
        /// The shape.
        shape: Vec<u64>,
    },
    /// The data ends before its begin.
    Reversed {
        /// The offsets.
        offsets: (u64, u64),
    },
    /// The data reaches beyond the end of the file.
    Truncated {
        /// End of the tensor's data.
        end: u64,
        /// Number of bytes of data in the file.
        data: usize,
    },
    /// The length of the data does not match type and shape.
    Bytes {
        /// Element type.
        dtype: String,
        /// Shape.
        shape: Vec<usize>,
        /// Number of bytes that type and shape need, if it is a whole number.
        needed: Option<u128>,
        /// Number of bytes that the header announces.
        found: usize,
    },
    /// Two tensors share bytes.
    Overlap {
        /// Name of the other tensor.
        other: String,
    },
    /// The tensor has too many axes.
    Axes {
        /// Number of axes.
        found: u32,
        /// The largest number that is accepted.
        limit: u32,
    },
    /// The data does not begin where the format wants it.
    Unaligned {
        /// Offset of the data.
        offset: u64,
        /// The alignment.
        alignment: u64,
    },
    /// Rows do not consist of whole blocks.
    PartialBlock {
        /// Element type.
        dtype: String,
        /// Columns of a row.
        cols: usize,
        /// Elements of a block.
        block: usize,
    },
    /// The shape is not the one that the configuration describes.
    Shape {
        /// The stored shape.
        found: Vec<usize>,
        /// The shape that is needed.
        expected: Vec<usize>,
    },
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
            TensorFault::Axes { found, limit } => {
                write!(f, "has {found} axes, more than the limit of {limit}; the file is damaged")
            }
            TensorFault::Unaligned { offset, alignment } => {
                write!(f, "begins at {offset}, which is not a multiple of {alignment}; the file is damaged")
            }
            TensorFault::PartialBlock { dtype, cols, block } => write!(
                f,
                "has rows of {cols} elements, but {dtype} needs a multiple of {block}; the file is damaged"
            ),
            TensorFault::Shape { found, expected } => {
                write!(f, "has shape {found:?}, expected {expected:?} by config.json")
            }
        }
    }
}

/// A fault of `model.safetensors.index.json` or `pytorch_model.bin.index.json`.
#[derive(Debug, thiserror::Error)]
pub enum IndexFault {
    /// The index is not valid JSON.
    #[error("the index cannot be parsed: {0}")]
    Json(serde_json::Error),
    /// The index lists no tensor.
    #[error("weight_map is empty")]
    Empty,
    /// A tensor is listed twice.
    #[error("tensor {0} is listed twice")]
    Duplicate(String),
    /// A file name leads out of the folder, or is not that of a safetensors file.
    #[error(
        "tensor {tensor} is listed in {name:?}, which is not the plain name of a file that ends with {ending}"
    )]
    FileName {
        /// Name of the tensor.
        tensor: String,
        /// The file name.
        name: String,
        /// The ending that it must have.
        ending: &'static str,
    },
    /// A listed file is missing.
    #[error("it names {name} for tensor {tensor}, but that file does not exist; download it")]
    MissingFile {
        /// Path of the file.
        name: String,
        /// A tensor that the index lists in the file.
        tensor: String,
    },
    /// A file lacks a tensor that the index lists in it.
    #[error("tensor {tensor} should be in {name}, but that file does not have it; download both again")]
    MissingTensor {
        /// Path of the file.
        name: String,
        /// Name of the tensor.
        tensor: String,
    },
}
