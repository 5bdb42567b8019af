//! Mean pooling: the sum of the states after the final norm, over all chunks of a prompt.

/// Sums of states, by slot.
///
/// States are added in the order of their positions, so that the sum does not depend on how a
/// prompt was cut into chunks.
pub(crate) struct Sums {
    hidden: usize,
    /// One sum per slot, `[hidden]`, allocated when the slot is first pooled.
    of_slots: Vec<Vec<f64>>,
}

impl Sums {
    /// Creates empty sums for `slots` slots, of states with `hidden` features.
    pub(crate) fn new(hidden: usize, slots: usize) -> Self {
        Sums { hidden, of_slots: vec![Vec::new(); slots] }
    }

    /// Starts the sum of a new sequence in this slot.
    pub(crate) fn begin(&mut self, slot: usize) {
        self.of_slots[slot].clear();
        self.of_slots[slot].resize(self.hidden, 0.0);
    }

    /// Adds the next state, `[hidden]`.
    pub(crate) fn add(&mut self, slot: usize, state: &[f32]) {
        for (sum, value) in self.of_slots[slot].iter_mut().zip(state) {
            *sum += f64::from(*value);
        }
    }

    /// Returns the mean of `count` states, `[hidden]`.
    pub(crate) fn mean(&self, slot: usize, count: usize) -> Vec<f32> {
        self.of_slots[slot].iter().map(|sum| (sum / count as f64) as f32).collect()
    }
}
