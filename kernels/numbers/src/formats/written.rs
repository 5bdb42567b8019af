//! The tensors of a quantized module in a new checkpoint, and their bytes.

use super::module::Element;

/// Rows that are encoded together: whole words of zero points, whole FP8 blocks, and, in the
/// sequence of all weights, whole NF4 groups.
pub const STACK: usize = 128;

/// A tensor of a quantized module in a new checkpoint.
#[derive(Debug)]
pub struct WrittenTensor {
    /// The end of its name, after the name of the module.
    pub name: &'static str,
    /// Element type.
    pub element: Element,
    /// Length of each axis.
    pub shape: Vec<usize>,
    /// The bytes of a tensor that does not depend on the weights. The others are made of rows.
    pub constant: Option<Vec<u8>>,
}

impl WrittenTensor {
    /// Creates a tensor that is made of rows.
    pub(super) fn of_rows(name: &'static str, element: Element, shape: &[usize]) -> Self {
        WrittenTensor { name, element, shape: shape.to_vec(), constant: None }
    }

    /// Creates a tensor of one axis that does not depend on the weights.
    pub(super) fn constant(name: &'static str, element: Element, len: usize, bytes: Vec<u8>) -> Self {
        WrittenTensor { name, element, shape: vec![len], constant: Some(bytes) }
    }
}

/// A stack of rows of a matrix, encoded.
#[derive(Debug, Default)]
pub struct EncodedRows {
    /// Bytes of the weights.
    pub(super) weights: Vec<u8>,
    /// Bytes of the scales.
    pub(super) scales: Vec<u8>,
    /// Bytes of the zero points, if the format has any.
    pub(super) zero_points: Vec<u8>,
    /// The sum of the squares of the weights.
    pub squares: f64,
    /// The sum of the squares of the errors.
    pub squared_errors: f64,
}

impl EncodedRows {
    /// Returns the bytes of the tensors that are made of rows, in the order of
    /// [`Target::tensors`](super::Target::tensors).
    pub fn tensors(&self) -> [&[u8]; 3] {
        [&self.weights, &self.scales, &self.zero_points]
    }

    /// Adds the squares of `weights`, and of their distances from `values`.
    pub(super) fn compare(&mut self, weights: &[f32], values: impl Iterator<Item = f32>) {
        let square = |x: f32| f64::from(x) * f64::from(x);
        let (squares, errors) =
            weights.iter().zip(values).fold((0.0, 0.0), |(squares, errors), (&weight, value)| {
                (squares + square(weight), errors + square(weight - value))
            });
        self.squares += squares;
        self.squared_errors += errors;
    }
}
