//! A model of which a device computes some layers.

use std::ops::Range;
use std::vec::IntoIter;

use millrace_model::{DecoderSpec, WeightSlot};

/// A model of which a device computes some layers.
#[derive(Debug, Clone)]
pub struct ModelPart<'a> {
    /// The model, or this rank's share of it.
    pub spec: &'a DecoderSpec,
    /// The layers that the device computes.
    pub layers: Range<usize>,
}

impl<'a> From<&'a DecoderSpec> for ModelPart<'a> {
    fn from(spec: &'a DecoderSpec) -> Self {
        ModelPart { spec, layers: 0..spec.layers.len() }
    }
}

impl ModelPart<'_> {
    /// Returns the weights of the layers of the part, and with `ends` also those that belong to no
    /// layer, in the order in which they are loaded.
    pub(super) fn slots(&self, ends: bool) -> IntoIter<WeightSlot> {
        let is_held = |slot: &WeightSlot| slot.layer().map_or(ends, |index| self.layers.contains(&index));
        let slots: Vec<WeightSlot> = self.spec.slots().into_iter().filter(is_held).collect();
        slots.into_iter()
    }
}
