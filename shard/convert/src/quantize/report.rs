//! The effect of quantization on a checkpoint.

/// The effect of quantization on one matrix.
#[derive(Debug, Clone, PartialEq)]
pub struct QuantizedMatrix {
    /// Name of the tensor in the dense checkpoint.
    pub tensor: String,
    /// Output features.
    pub rows: usize,
    /// Input features.
    pub cols: usize,
    /// The root of the mean square of the errors, divided by that of the weights.
    pub relative_error: f64,
    /// Bytes in the new checkpoint.
    pub bytes: usize,
}

/// A matrix of a layer that is left dense.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DenseMatrix {
    /// Name of the tensor.
    pub tensor: String,
    /// Output features.
    pub rows: usize,
    /// Input features.
    pub cols: usize,
    /// The reason.
    pub reason: String,
}

/// The effect of quantization on a checkpoint.
#[derive(Debug, Clone, PartialEq)]
pub struct QuantizeReport {
    /// The quantized matrices, in the order of their names.
    pub matrices: Vec<QuantizedMatrix>,
    /// Matrices of layers that are left dense.
    pub dense: Vec<DenseMatrix>,
    /// Bytes of all tensors of the dense checkpoint.
    pub bytes_before: usize,
    /// Bytes of all tensors of the new checkpoint.
    pub bytes_after: usize,
}
