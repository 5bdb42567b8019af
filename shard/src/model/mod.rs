//! What a model is: the switches of one decoder, and where its weights come from.

mod spec;

pub use spec::{DecoderSpec, LayerSlot, LayerSpec, MlpSpec, RopeScaling, RopeTable, Slot, WeightSource};
