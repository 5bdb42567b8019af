//! The modules that change the vector of a text after the pooling: Dense, LayerNorm and Normalize.
//!
//! They run in the router, because they are small beside the model: one vector of each text, not a
//! state of each token, passes through them.

use std::fmt;
use std::path::Path;

use millrace_formats::{Checkpoint, DType, Source, Tensor};
use serde_json::{Map, Value};

use super::activation::Activation;
use super::configuration::{EmbeddingError, size};

/// Sums that are computed side by side, so that the compiler can use vectors.
const LANES: usize = 16;

/// The epsilon of LayerNorm, as in torch.
const NORM_EPSILON: f64 = 1e-5;

/// A module that turns a vector into another one.
#[derive(Debug, Clone)]
pub(super) enum VectorModule {
    /// A matrix, a bias and an activation.
    Dense(Dense),
    /// Subtracts the mean of the features, and divides by their standard deviation.
    LayerNorm(LayerNorm),
    /// Scales the vector to the length 1.
    Normalize,
}

/// The weights of a Dense module.
#[derive(Debug, Clone)]
pub(super) struct Dense {
    inputs: usize,
    weights: Vec<f32>, // [outputs, inputs]
    bias: Vec<f32>,    // [outputs]
    activation: Activation,
    residual: Residual,
}

/// The vector that a Dense module adds to its output.
#[derive(Debug, Clone)]
enum Residual {
    None,
    Input,
    Projected(Vec<f32>), // [outputs, inputs]
}

/// The weights of a LayerNorm module.
#[derive(Debug, Clone)]
pub(super) struct LayerNorm {
    weights: Vec<f32>, // [features]
    bias: Vec<f32>,    // [features]
}

impl VectorModule {
    /// Returns the number of features that the module takes; `None` if it takes any.
    pub(super) fn inputs(&self) -> Option<usize> {
        match self {
            VectorModule::Dense(dense) => Some(dense.inputs),
            VectorModule::LayerNorm(norm) => Some(norm.weights.len()),
            VectorModule::Normalize => None,
        }
    }

    /// Returns the number of features that the module makes of `inputs` features.
    pub(super) fn outputs(&self, inputs: usize) -> usize {
        match self {
            VectorModule::Dense(dense) => dense.bias.len(),
            VectorModule::LayerNorm(_) | VectorModule::Normalize => inputs,
        }
    }

    /// Computes the module's vector.
    pub(super) fn apply(&self, vector: Vec<f32>) -> Vec<f32> {
        match self {
            VectorModule::Dense(dense) => dense.apply(&vector),
            VectorModule::LayerNorm(norm) => norm.apply(&vector),
            VectorModule::Normalize => normalized(vector),
        }
    }
}

impl fmt::Display for VectorModule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            VectorModule::Dense(dense) => {
                write!(f, "Dense {} to {} ({})", dense.inputs, dense.bias.len(), dense.activation)
            }
            VectorModule::LayerNorm(_) => f.write_str("LayerNorm"),
            VectorModule::Normalize => f.write_str("Normalize"),
        }
    }
}

impl Dense {
    /// Reads the module in `folder`. `file` is the name of its configuration, for messages. The
    /// sizes of the configuration are compared with the tensors before memory is taken.
    ///
    /// # Errors
    /// If the configuration asks for something that is not supported, or contradicts the tensors.
    pub(super) fn read(
        file: &str,
        folder: &Path,
        config: &Map<String, Value>,
    ) -> Result<Self, EmbeddingError> {
        let inputs = size_of(file, config, "in_features")?;
        let outputs = size_of(file, config, "out_features")?;
        let has_bias = switch(file, config, "bias", true)?;
        let is_residual = switch(file, config, "use_residual", false)?;
        let activation = match config.get("activation_function") {
            // The default of the class.
            None => Activation::Tanh,
            Some(name) => Activation::named(name.as_str().unwrap_or_default()).ok_or_else(|| {
                let reason = format!("the activation {name} is not supported; {} are", Activation::names());
                EmbeddingError::new(file, reason)
            })?,
        };
        for key in config.keys() {
            const KNOWN: [&str; 7] = [
                "in_features",
                "out_features",
                "bias",
                "activation_function",
                "use_residual",
                "module_input_name",
                "module_output_name",
            ];
            if !KNOWN.contains(&key.as_str()) {
                tracing::warn!("{file}: the key `{key}` is not known and has no effect");
            }
        }
        let weights = ModuleWeights::open(folder)?;
        let matrix = weights.numbers("linear.weight", &[outputs, inputs])?;
        let bias = if has_bias { weights.numbers("linear.bias", &[outputs])? } else { vec![0.0; outputs] };
        let residual = match is_residual {
            false => Residual::None,
            true if inputs == outputs => Residual::Input,
            true => Residual::Projected(weights.numbers("residual.weight", &[outputs, inputs])?),
        };
        if !has_bias && weights.0.contains("linear.bias") {
            tracing::warn!("{file}: `bias` is false, so the stored linear.bias is not used");
        }
        Ok(Dense { inputs, weights: matrix, bias, activation, residual })
    }

    fn apply(&self, x: &[f32]) -> Vec<f32> {
        let product = |matrix: &[f32]| -> Vec<f32> {
            matrix.chunks_exact(self.inputs).map(|row| dot(row, x)).collect()
        };
        let mut out = product(&self.weights);
        for (value, bias) in out.iter_mut().zip(&self.bias) {
            *value = self.activation.of(*value + bias);
        }
        let add = |out: &mut Vec<f32>, more: &[f32]| {
            out.iter_mut().zip(more).for_each(|(value, more)| *value += more);
        };
        match &self.residual {
            Residual::None => {}
            Residual::Input => add(&mut out, x),
            Residual::Projected(matrix) => add(&mut out, &product(matrix)),
        }
        out
    }
}

impl LayerNorm {
    /// Reads the module in `folder`. `file` is the name of its configuration, for messages.
    ///
    /// # Errors
    /// If the configuration contradicts the tensors.
    pub(super) fn read(
        file: &str,
        folder: &Path,
        config: &Map<String, Value>,
    ) -> Result<Self, EmbeddingError> {
        let features = size_of(file, config, "dimension")?;
        for key in config.keys().filter(|key| *key != "dimension") {
            tracing::warn!("{file}: the key `{key}` is not known and has no effect");
        }
        let weights = ModuleWeights::open(folder)?;
        let [weights, bias] =
            [weights.numbers("norm.weight", &[features])?, weights.numbers("norm.bias", &[features])?];
        Ok(LayerNorm { weights, bias })
    }

    fn apply(&self, x: &[f32]) -> Vec<f32> {
        let count = x.len() as f64;
        let mean = x.iter().map(|&value| f64::from(value)).sum::<f64>() / count;
        let variance = x.iter().map(|&value| (f64::from(value) - mean).powi(2)).sum::<f64>() / count;
        let factor = 1.0 / (variance + NORM_EPSILON).sqrt();
        let scaled = x.iter().map(|&value| ((f64::from(value) - mean) * factor) as f32);
        let affine = self.weights.iter().zip(&self.bias);
        scaled.zip(affine).map(|(value, (weight, bias))| value * weight + bias).collect()
    }
}

/// Scales a vector to the length 1. A vector of zeros stays as it is.
pub(crate) fn normalized(mut vector: Vec<f32>) -> Vec<f32> {
    let length = vector.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
    if length > 0.0 {
        vector.iter_mut().for_each(|value| *value = (f64::from(*value) / length) as f32);
    }
    vector
}

/// The mapped weights of one module.
struct ModuleWeights(Checkpoint);

impl ModuleWeights {
    fn open(folder: &Path) -> Result<Self, EmbeddingError> {
        let opened = Checkpoint::open(&Source::Directory(folder.to_owned()));
        opened.map(ModuleWeights).map_err(|error| EmbeddingError::plain(error.to_string()))
    }

    /// Reads a tensor, which must have this shape.
    fn numbers(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, EmbeddingError> {
        let tensor = self.0.tensor(name, shape).map_err(|error| EmbeddingError::plain(error.to_string()))?;
        let numbers = converted(&tensor).ok_or_else(|| {
            let file = self.0.path_of(name).unwrap_or_default();
            let reason = format!(
                "the tensor {name} has the element type {}; F32, F16 and BF16 are supported",
                tensor.dtype
            );
            EmbeddingError::new(file, reason)
        })?;
        self.0.check_readable().map_err(|error| EmbeddingError::plain(error.to_string()))?;
        Ok(numbers)
    }
}

/// Converts a tensor to single precision; `None` if its element type is not supported.
fn converted(tensor: &Tensor<'_>) -> Option<Vec<f32>> {
    let halves = || tensor.bytes.chunks_exact(2).map(|bytes| u16::from_le_bytes([bytes[0], bytes[1]]));
    let numbers = match *tensor.dtype {
        DType::F32 => {
            let words = tensor.bytes.chunks_exact(4);
            words.map(|bytes| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])).collect()
        }
        DType::BF16 => halves().map(|half| f32::from_bits(u32::from(half) << 16)).collect(),
        DType::F16 => halves().map(from_half).collect(),
        _ => return None,
    };
    Some(numbers)
}

/// Converts a number of half precision.
fn from_half(bits: u16) -> f32 {
    let sign = if bits & 0x8000 == 0 { 1.0 } else { -1.0 };
    let (exponent, fraction) = (i32::from(bits >> 10 & 0x1f), f32::from(bits & 0x3ff));
    let magnitude = match exponent {
        0 => fraction * 2f32.powi(-24),
        0x1f if fraction == 0.0 => f32::INFINITY,
        0x1f => f32::NAN,
        _ => (1024.0 + fraction) * 2f32.powi(exponent - 25),
    };
    sign * magnitude
}

/// Returns the product of two vectors. The order of the sums is fixed.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0f32; LANES];
    for (a, b) in a.chunks(LANES).zip(b.chunks(LANES)) {
        sums.iter_mut().zip(a.iter().zip(b)).for_each(|(sum, (a, b))| *sum += a * b);
    }
    sums.iter().sum()
}

fn size_of(file: &str, config: &Map<String, Value>, key: &str) -> Result<usize, EmbeddingError> {
    let found = config.get(key).and_then(size);
    found.ok_or_else(|| EmbeddingError::new(file, format!("`{key}` must be a number of features")))
}

fn switch(file: &str, config: &Map<String, Value>, key: &str, default: bool) -> Result<bool, EmbeddingError> {
    match config.get(key) {
        None => Ok(default),
        Some(value) => {
            value.as_bool().ok_or_else(|| EmbeddingError::new(file, format!("`{key}` must be true or false")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dense_module_adds_its_bias_before_and_its_residual_after_the_activation() {
        let dense = |residual| Dense {
            inputs: 2,
            weights: vec![1.0, 2.0, 0.0, -1.0],
            bias: vec![0.5, 0.25],
            activation: Activation::Relu,
            residual,
        };
        assert_eq!(dense(Residual::None).apply(&[1.0, 3.0]), [7.5, 0.0]);
        assert_eq!(dense(Residual::Input).apply(&[1.0, 3.0]), [8.5, 3.0]);
        let projected = Residual::Projected(vec![0.0, 1.0, 1.0, 0.0]);
        assert_eq!(dense(projected).apply(&[1.0, 3.0]), [10.5, 1.0]);
    }

    #[test]
    fn a_normalized_vector_has_the_length_1() {
        assert_eq!(normalized(vec![3.0, -4.0]), [0.6, -0.8]);
        assert_eq!(normalized(vec![0.0, 0.0]), [0.0, 0.0]);
    }

    #[test]
    fn layer_norm_follows_its_definition() {
        let norm = LayerNorm { weights: vec![1.0, 2.0], bias: vec![0.0, 1.0] };
        let found = norm.apply(&[1.0, 3.0]);
        assert!((found[0] + 1.0).abs() < 1e-4 && (found[1] - 3.0).abs() < 1e-4, "{found:?}");
    }

    #[test]
    fn half_precision_is_converted() {
        for (bits, value) in [(0x3c00, 1.0), (0xc000, -2.0), (0x3555, 0.333_251_95), (1, 2f32.powi(-24))] {
            assert_eq!(from_half(bits), value);
        }
        assert!(from_half(0x7c00).is_infinite() && from_half(0x7e00).is_nan());
    }
}
