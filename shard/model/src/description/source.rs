//! The interface of everything that weights can be loaded from.

use std::ops::Range;

use millrace_numbers::Part;

use super::slots::WeightSlot;

/// The reason why a weight cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum WeightError {
    /// A file is missing, damaged or incomplete.
    #[error(transparent)]
    Checkpoint(#[from] millrace_formats::Error),
    /// The element type of a stored tensor cannot be loaded.
    #[error(
        "tensor {tensor} in {file} has element type {dtype}, but weights must be F32, F16 or BF16, in blocks of \
         GGML, or quantized as quantization_config says"
    )]
    ElementType {
        /// Path of the file.
        file: String,
        /// Name of the tensor.
        tensor: String,
        /// Name of the element type.
        dtype: String,
    },
    /// A tensor of a quantized module contradicts the configuration or the module's other tensors.
    #[error("tensor {tensor} in {file} {reason}")]
    Quantized {
        /// Path of the file.
        file: String,
        /// Name of the tensor.
        tensor: String,
        /// The fault. Its text continues the sentence after the file.
        reason: String,
    },
    /// A stored tensor would change the results of the model, but the decoder has no use for it.
    #[error(
        "tensor {tensor} in {file} would be ignored, and results would be wrong: by config.json the model has no \
         such weight"
    )]
    Unused {
        /// Path of the file.
        file: String,
        /// Name of the tensor.
        tensor: String,
    },
}

/// The place of a stored tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorPlace {
    /// Path of the file.
    pub file: String,
    /// Name of the tensor.
    pub tensor: String,
}

/// A source of weights: a checkpoint, or a generator of dummy weights.
pub trait WeightSource {
    /// Returns the parts of the weight for `slot`, in the order in which they are stacked. Their
    /// shapes match the specification.
    ///
    /// # Errors
    /// If the weight cannot be read.
    fn parts(&self, slot: WeightSlot) -> Result<Vec<Part>, WeightError>;

    /// Returns the place of the tensor that `part` is taken from, for messages. There is none if
    /// the weights do not come from files.
    fn tensor_of(&self, _part: &Part) -> Option<TensorPlace> {
        None
    }

    /// Announces that this part will be read soon, so that a source can fetch it ahead.
    fn will_need(&self, _part: &Part) {}

    /// Returns the folder that the weights come from. The text is empty if they do not come from
    /// files.
    fn place(&self) -> String {
        String::new()
    }

    /// Returns the files that the weights come from, with their sizes and times, as one text. The
    /// text is empty if the weights do not come from files.
    fn identity(&self) -> String {
        String::new()
    }

    /// Checks that everything that has been read so far could be read. This is cheap.
    ///
    /// # Errors
    /// If a file was truncated since it was opened, or its disk failed.
    fn check_readable(&self) -> Result<(), WeightError> {
        Ok(())
    }

    /// Checks that everything that has been read so far is what the files held when they were
    /// opened.
    ///
    /// # Errors
    /// If a file has been changed since then, or could not be read.
    fn verify(&self) -> Result<(), WeightError> {
        Ok(())
    }
}

/// Appends the parts of `whole` that make up the rows `wanted` of a matrix, or the elements
/// `wanted` of a vector.
pub fn take_parts(whole: &[Part], wanted: Range<usize>, vector: bool, to: &mut Vec<Part>) {
    let mut first = 0;
    for part in whole {
        let axis = if vector { &part.cols } else { &part.rows };
        let here = first..first + axis.len();
        first = here.end;
        let (start, end) = (wanted.start.max(here.start), wanted.end.min(here.end));
        if start < end {
            let range = axis.start + start - here.start..axis.start + end - here.start;
            let mut taken = part.clone();
            *(if vector { &mut taken.cols } else { &mut taken.rows }) = range;
            to.push(taken);
        }
    }
}
