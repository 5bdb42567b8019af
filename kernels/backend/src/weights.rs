//! The weights of a model, as a device loads them.

use millrace_numbers::tensor::{flatten, stacked_shape};
use millrace_numbers::{DType, Part, WeightFormat};

use crate::types::DeviceTypes;
use crate::{Error, Result};

/// Rows of a weight matrix that a device keeps in one format.
///
/// A fused matrix (query, key and value; gate and up) is a list of segments, stacked along the
/// output axis, whose formats may differ.
#[derive(Debug, Clone, Copy)]
pub struct Segment<'a> {
    /// The rows of the segment, stacked. All have the same number of columns.
    pub parts: &'a [Part],
    /// The format in which the device keeps them.
    pub format: WeightFormat,
}

impl<'a> Segment<'a> {
    /// Creates a segment of `parts`, to be kept in `format`.
    pub fn new(parts: &'a [Part], format: impl Into<WeightFormat>) -> Self {
        Segment { parts, format: format.into() }
    }

    /// Returns the error of a segment that comes after `before` parts of others. Parts are counted
    /// through all segments.
    pub fn error_after(before: usize, error: Error) -> Error {
        match error {
            Error::Numbers(millrace_numbers::Error::StoredNumber { part, row, col }) => {
                millrace_numbers::Error::StoredNumber { part: before + part, row, col }.into()
            }
            other => other,
        }
    }
}

/// The rows of the stored matrix of a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadRows {
    /// A row holds the weights of one input, by output.
    Inputs,
    /// A row holds the weights of one output, by input, as in [`WeightLoading::matrix`].
    Outputs,
}

impl HeadRows {
    /// Returns the numbers of all heads as `[heads, inputs, outputs]`, and the numbers of inputs
    /// and of outputs.
    ///
    /// # Errors
    /// [`Error::Shape`] if the heads' parts do not have the same shape, or reach outside their
    /// tensors.
    pub fn arrange(self, heads: &[Vec<Part>]) -> Result<(Vec<f32>, usize, usize)> {
        let mut all = Vec::new();
        let mut shape = None;
        for parts in heads {
            let (rows, cols) = stacked_shape(parts)?;
            if *shape.get_or_insert((rows, cols)) != (rows, cols) {
                return Err(Error::Shape("matrices of heads of different shapes".to_owned()));
            }
            let values = flatten(parts)?;
            match self {
                HeadRows::Inputs => all.extend_from_slice(&values),
                HeadRows::Outputs => {
                    all.extend((0..cols).flat_map(|col| values.iter().skip(col).step_by(cols)));
                }
            }
        }
        let (rows, cols) = shape.unwrap_or_default();
        Ok(match self {
            HeadRows::Inputs => (all, rows, cols),
            HeadRows::Outputs => (all, cols, rows),
        })
    }
}

/// The loading of weights. All of it comes before
/// [`ModelLoading::seal`](crate::ModelLoading::seal).
pub trait WeightLoading: DeviceTypes {
    /// Begins the loading of weights, for a device that keeps packed weights for the next start.
    /// Weights of one `subject` replace each other; `version` is different for different weights.
    fn begin_weights(&self, _subject: &str, _version: &str) {}

    /// Tells whether the device reads the parts of the next matrix. Otherwise it has kept the
    /// matrix.
    fn reads_parts(&self) -> bool {
        true
    }

    /// Ends the loading of weights. Returns a warning for the operator if kept weights could not be
    /// used, or not be kept.
    fn end_weights(&self) -> Option<String> {
        None
    }

    /// Loads a vector of all parts' elements, one part after the other in row-major order.
    ///
    /// # Errors
    /// [`Error::Shape`] if a part reaches outside its tensor, [`Error::OutOfMemory`] if the device
    /// lacks memory.
    fn vector(&self, parts: &[Part]) -> Result<Self::Vector>;

    /// Loads a matrix `[out, cols]`: the rows of all segments, one segment after the other.
    ///
    /// A matrix that is not dense can only be used in [`ForwardOps::linear`], in a product that
    /// [`ModelLoading::tune`](crate::ModelLoading::tune) was given.
    ///
    /// [`ForwardOps::linear`]: super::ForwardOps::linear
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a format that the device cannot multiply by, for a mix
    /// of formats that it does not support, and for numbers that the format cannot hold;
    /// [`Error::Shape`] if the parts do not fit together; [`Error::OutOfMemory`] if the device
    /// lacks memory.
    fn matrix(&self, segments: &[Segment<'_>]) -> Result<Self::Matrix>;

    /// Loads a matrix of each expert: the rows of the expert's parts, one part after the other. All
    /// matrices have the same shape.
    ///
    /// # Errors
    /// As [`WeightLoading::matrix`].
    fn experts(&self, experts: &[Vec<Part>], format: WeightFormat) -> Result<Self::Experts>;

    /// Loads a matrix of each query head in numbers of type `dtype`. All have the same shape.
    /// `rows` says what the rows of a head's parts are.
    ///
    /// # Errors
    /// As [`WeightLoading::matrix`].
    fn head_matrices(&self, heads: &[Vec<Part>], rows: HeadRows, dtype: DType) -> Result<Self::HeadMatrices>;

    /// Loads an embedding `[rows, cols]` that is used only in [`ForwardOps::embed`].
    ///
    /// [`ForwardOps::embed`]: super::ForwardOps::embed
    ///
    /// # Errors
    /// As [`WeightLoading::matrix`].
    fn embedding(&self, parts: &[Part], dtype: DType) -> Result<Self::Matrix> {
        self.matrix(&[Segment::new(parts, dtype)])
    }

    /// Tells whether the device copies an embedding. Otherwise it reads rows from the parts when a
    /// step needs them.
    fn copies_embedding(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_count_the_parts_of_all_segments() {
        let stored = |part| Error::Numbers(millrace_numbers::Error::StoredNumber { part, row: 3, col: 5 });
        let found = Segment::error_after(4, stored(1)).to_string();
        assert_eq!(found, stored(5).to_string());
        let other = Error::Shape("of another kind".to_owned());
        assert_eq!(
            Segment::error_after(4, other).to_string(),
            Error::Shape("of another kind".to_owned()).to_string()
        );
    }
}
