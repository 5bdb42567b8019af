//! The classifier of texts: a dense layer with an activation and a projection, for one state of
//! each text.
//!
//! It runs on the host, because it is small beside the layers: one state of a text, not one of each
//! token, passes through it.

use std::f64::consts::FRAC_1_SQRT_2;

use millrace_model::{
    ClassifierKind, ClassifierPlan, DecoderSpec, NormKind, WeightError, WeightSlot, WeightSource,
};

/// Sums that are computed side by side, so that the compiler can use vectors.
const LANES: usize = 16;

/// The weights of a classifier, in single precision.
pub(crate) struct Classifier {
    dense: Layer,
    /// The norm after GELU. Without one the activation is the hyperbolic tangent.
    norm: Option<LayerNorm>,
    out: Layer,
}

struct Layer {
    weights: Vec<f32>, // [outputs, hidden]
    bias: Vec<f32>,    // [outputs], or empty
}

struct LayerNorm {
    eps: f64,
    scale: Vec<f32>, // [hidden]
    bias: Vec<f32>,  // [hidden], or empty
}

impl Classifier {
    /// Reads the classifier of a model, if it has one.
    ///
    /// # Errors
    /// If the source fails.
    pub(crate) fn load(spec: &DecoderSpec, source: &dyn WeightSource) -> Result<Option<Self>, WeightError> {
        let Some(ClassifierPlan { kind, .. }) = spec.head.classifier else { return Ok(None) };
        let vector = |slot, is_present| match is_present {
            true => numbers(source, slot),
            false => Ok(Vec::new()),
        };
        let layer = |weights, bias, has_bias| -> Result<Layer, WeightError> {
            Ok(Layer { weights: numbers(source, weights)?, bias: vector(bias, has_bias)? })
        };
        let has_bias = kind.has_dense_bias();
        let dense = layer(WeightSlot::ClassifierDense, WeightSlot::ClassifierDenseBias, has_bias)?;
        let norm = match (kind, spec.norm.kind) {
            (ClassifierKind::NormedGelu { .. }, NormKind::Layer { eps, bias }) => Some(LayerNorm {
                eps: eps.into(),
                scale: numbers(source, WeightSlot::ClassifierNorm)?,
                bias: vector(WeightSlot::ClassifierNormBias, bias)?,
            }),
            (ClassifierKind::NormedGelu { .. }, NormKind::Rms { .. }) => {
                unreachable!("no family has a classifier with this norm")
            }
            (ClassifierKind::Tanh, _) => None,
        };
        let out = layer(WeightSlot::ClassifierOut, WeightSlot::ClassifierOutBias, true)?;
        Ok(Some(Classifier { dense, norm, out }))
    }

    /// Returns the outputs for a state, `[classes]`.
    pub(crate) fn outputs(&self, state: &[f32]) -> Vec<f32> {
        let mut hidden = self.dense.product(state);
        match &self.norm {
            None => hidden.iter_mut().for_each(|value| *value = value.tanh()),
            Some(norm) => {
                hidden.iter_mut().for_each(|value| *value = gelu(*value));
                norm.apply(&mut hidden);
            }
        }
        self.out.product(&hidden)
    }
}

/// The Gaussian error linear unit, by the error function.
fn gelu(x: f32) -> f32 {
    let x = f64::from(x);
    (0.5 * x * (1.0 + libm::erf(x * FRAC_1_SQRT_2))) as f32
}

impl LayerNorm {
    /// Normalizes `x` in place.
    fn apply(&self, x: &mut [f32]) {
        let count = x.len() as f64;
        let mean = x.iter().map(|value| f64::from(*value)).sum::<f64>() / count;
        let variance = x.iter().map(|value| (f64::from(*value) - mean).powi(2)).sum::<f64>() / count;
        let factor = (variance + self.eps).sqrt().recip();
        for (value, scale) in x.iter_mut().zip(&self.scale) {
            *value = ((f64::from(*value) - mean) * factor * f64::from(*scale)) as f32;
        }
        x.iter_mut().zip(&self.bias).for_each(|(value, bias)| *value += bias);
    }
}

impl Layer {
    fn product(&self, x: &[f32]) -> Vec<f32> {
        let mut outputs: Vec<f32> = self.weights.chunks_exact(x.len()).map(|row| dot(row, x)).collect();
        outputs.iter_mut().zip(&self.bias).for_each(|(output, bias)| *output += bias);
        outputs
    }
}

/// Returns the product of two vectors. The order of the sums is fixed.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0f32; LANES];
    for (a, b) in a.chunks(LANES).zip(b.chunks(LANES)) {
        sums.iter_mut().zip(a.iter().zip(b)).for_each(|(sum, (a, b))| *sum += a * b);
    }
    sums.iter().sum()
}

/// Reads all numbers of a weight, row by row.
fn numbers(source: &dyn WeightSource, slot: WeightSlot) -> Result<Vec<f32>, WeightError> {
    let mut numbers = Vec::new();
    for part in source.parts(slot)? {
        let mut row = vec![0.0; part.cols.len()];
        for index in 0..part.rows.len() {
            part.read_row(index, &mut row);
            numbers.extend_from_slice(&row);
        }
    }
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_sums_does_not_lose_numbers() {
        for length in [1, 15, 16, 17, 100] {
            let a: Vec<f32> = (0..length).map(|i| i as f32).collect();
            let ones = vec![1.0; length];
            assert_eq!(dot(&a, &ones), (0..length).sum::<usize>() as f32);
        }
    }

    #[test]
    fn outputs_follow_the_hyperbolic_tangent() {
        let dense = Layer { weights: vec![1.0, 0.0, 0.0, 2.0], bias: vec![0.5, 0.0] };
        let out = Layer { weights: vec![1.0, -1.0], bias: vec![3.0] };
        let found = Classifier { dense, norm: None, out }.outputs(&[0.25, -1.0]);
        assert_eq!(found, [0.75f32.tanh() - (-2.0f32).tanh() + 3.0]);
    }

    #[test]
    fn outputs_follow_gelu_and_the_norm() {
        let dense = Layer { weights: vec![1.0, 0.0, 0.0, 2.0], bias: Vec::new() };
        let norm = LayerNorm { eps: 0.0, scale: vec![2.0, 3.0], bias: vec![0.5, 0.0] };
        let out = Layer { weights: vec![1.0, 10.0], bias: vec![4.0] };
        // Two numbers are one standard deviation away from their mean.
        let found = Classifier { dense, norm: Some(norm), out }.outputs(&[3.0, -1.0]);
        assert!((found[0] - (2.5 - 30.0 + 4.0)).abs() < 1e-5, "{found:?}");
        assert!((gelu(1.0) - 0.841_344_7).abs() < 1e-6 && (gelu(-1.0) + 0.158_655_3).abs() < 1e-6);
    }
}
