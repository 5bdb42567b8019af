//! What a model is: the switches of one decoder, and where its weights come from.

pub mod rope;
mod shape;
mod spec;

use millrace_kernels::DType;

pub use spec::{DecoderSpec, LayerSlot, LayerSpec, MlpSpec, RopeScaling, RopeTable, Slot, WeightSource};

/// A model that can be loaded: what it computes and where its numbers are.
pub struct Model {
    /// What the decoder computes.
    pub spec: DecoderSpec,
    /// The element type its weights are stored as, and kept as unless the operator asks for another.
    pub dtype: DType,
    /// The stored weights.
    pub weights: Box<dyn WeightSource>,
}
