//! Sequences that become one vector: the states after the final norm, added up over the chunks of their prompts.

/// Sums of states, by slot.
///
/// They are added up one after the other in the order of their positions, so that the sum does not depend on how a prompt was
/// cut into chunks.
pub(crate) struct Sums {
    hidden: usize,
    /// Allocated when a slot is first used for this.
    of_slots: Vec<Vec<f64>>,
}

impl Sums {
    /// No sums yet, of states with `hidden` features for so many slots.
    pub(crate) fn new(hidden: usize, slots: usize) -> Self {
        Sums { hidden, of_slots: vec![Vec::new(); slots] }
    }

    /// Another sequence begins in this slot.
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

    /// The mean of `count` states, `[hidden]`.
    pub(crate) fn mean(&self, slot: usize, count: usize) -> Vec<f32> {
        self.of_slots[slot].iter().map(|sum| (sum / count as f64) as f32).collect()
    }
}
