//! Pooling: one vector from the states after the final norm, over all chunks of a prompt.

use millrace_proto::Pooling;

use crate::classifier::Classifier;

/// Pooled states, by slot.
///
/// States are added in the order of their positions, so that the result does not depend on how a
/// prompt was cut into chunks.
pub(crate) struct PooledStates {
    hidden: usize,
    /// One accumulator per slot, allocated when the slot is first pooled.
    slots: Vec<Accumulator>,
    /// The classifier of the model, if it has one.
    classifier: Option<Classifier>,
}

/// The states of one sequence so far.
#[derive(Clone, Default)]
struct Accumulator {
    /// Sums, or the largest values. `[hidden]`
    values: Vec<f64>,
    /// The sum of the weights of the states.
    weight: f64,
}

impl PooledStates {
    /// Creates empty accumulators for `slots` slots, of states with `hidden` features.
    pub(crate) fn new(hidden: usize, slots: usize, classifier: Option<Classifier>) -> Self {
        PooledStates { hidden, slots: vec![Accumulator::default(); slots], classifier }
    }

    /// Starts the pooling of a new sequence in this slot.
    pub(crate) fn begin(&mut self, slot: usize, pooling: Pooling) {
        let empty = if pooling == Pooling::Max { f64::NEG_INFINITY } else { 0.0 };
        let Accumulator { values, weight } = &mut self.slots[slot];
        values.clear();
        values.resize(self.hidden, empty);
        *weight = 0.0;
    }

    /// Adds the state at `position` of the prompt, `[hidden]`.
    pub(crate) fn add(&mut self, slot: usize, pooling: Pooling, position: usize, state: &[f32]) {
        let Accumulator { values, weight } = &mut self.slots[slot];
        let states = values.iter_mut().zip(state);
        if pooling == Pooling::Max {
            // `f64::max` would drop a NaN, which must reach the check of the result.
            states.for_each(|(most, &value)| {
                let value = f64::from(value);
                if value > *most || value.is_nan() {
                    *most = value;
                }
            });
            *weight = 1.0;
            return;
        }
        let factor = if pooling == Pooling::WeightedMean { (position + 1) as f64 } else { 1.0 };
        states.for_each(|(sum, &value)| *sum += factor * f64::from(value));
        *weight += factor;
    }

    /// Returns the vector of a prompt whose states have all been added: `[hidden]`, or `[classes]`
    /// where the classifier is asked for.
    pub(crate) fn vector(&self, slot: usize, pooling: Pooling) -> Vec<f32> {
        let Accumulator { values, weight } = &self.slots[slot];
        let vector: Vec<f32> = values.iter().map(|value| (value / weight) as f32).collect();
        match self.classifier.as_ref().filter(|_| pooling == Pooling::Classes) {
            Some(classifier) => classifier.outputs(&vector),
            None => vector,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pooled(pooling: Pooling, first: usize, states: &[[f32; 2]]) -> Vec<f32> {
        let mut pooled = PooledStates::new(2, 1, None);
        // Values of an earlier sequence do not stay.
        for states in [&[[9.0, -9.0]][..], states] {
            pooled.begin(0, pooling);
            for (index, state) in states.iter().enumerate() {
                pooled.add(0, pooling, first + index, state);
            }
        }
        pooled.vector(0, pooling)
    }

    #[test]
    fn each_kind_of_pooling_follows_its_definition() {
        let states = [[1.0, -4.0], [3.0, -2.0]];
        assert_eq!(pooled(Pooling::Mean, 0, &states), [2.0, -3.0]);
        assert_eq!(pooled(Pooling::Max, 0, &states), [3.0, -2.0]);
        assert_eq!(pooled(Pooling::WeightedMean, 1, &states), [2.2, -2.8]);
        assert_eq!(pooled(Pooling::Last, 1, &states[1..]), [3.0, -2.0]);
    }

    #[test]
    fn a_state_that_is_not_a_number_is_seen() {
        for pooling in [Pooling::Mean, Pooling::Max, Pooling::WeightedMean] {
            let vector = pooled(pooling, 0, &[[1.0, f32::NAN], [2.0, 3.0]]);
            assert!(vector[1].is_nan(), "{pooling:?}: {vector:?}");
        }
    }
}
