//! The classifier of texts: a dense layer with the hyperbolic tangent and a projection, for one
//! state of each text.
//!
//! It runs on the host, because it is small beside the layers: one state of a text, not one of each
//! token, passes through it.

use millrace_model::{DecoderSpec, WeightError, WeightSlot, WeightSource};

/// Sums that are computed side by side, so that the compiler can use vectors.
const LANES: usize = 16;

/// The weights of a classifier, in single precision.
pub(crate) struct Classifier {
    dense: Layer,
    out: Layer,
}

struct Layer {
    weights: Vec<f32>, // [outputs, hidden]
    bias: Vec<f32>,    // [outputs]
}

impl Classifier {
    /// Reads the classifier of a model, if it has one.
    ///
    /// # Errors
    /// If the source fails.
    pub(crate) fn load(spec: &DecoderSpec, source: &dyn WeightSource) -> Result<Option<Self>, WeightError> {
        if spec.head.classes.is_none() {
            return Ok(None);
        }
        let layer = |weights, bias| -> Result<Layer, WeightError> {
            Ok(Layer { weights: numbers(source, weights)?, bias: numbers(source, bias)? })
        };
        Ok(Some(Classifier {
            dense: layer(WeightSlot::ClassifierDense, WeightSlot::ClassifierDenseBias)?,
            out: layer(WeightSlot::ClassifierOut, WeightSlot::ClassifierOutBias)?,
        }))
    }

    /// Returns the outputs for a state, `[classes]`.
    pub(crate) fn outputs(&self, state: &[f32]) -> Vec<f32> {
        let mut hidden = self.dense.product(state);
        hidden.iter_mut().for_each(|value| *value = value.tanh());
        self.out.product(&hidden)
    }
}

impl Layer {
    fn product(&self, x: &[f32]) -> Vec<f32> {
        self.weights.chunks_exact(x.len()).zip(&self.bias).map(|(row, bias)| dot(row, x) + bias).collect()
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
        let found = Classifier { dense, out }.outputs(&[0.25, -1.0]);
        assert_eq!(found, [0.75f32.tanh() - (-2.0f32).tanh() + 3.0]);
    }
}
