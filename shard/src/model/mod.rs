//! What a model is: the switches of one decoder, and where its weights come from.

pub mod rope;
mod shape;
mod spec;
mod storage;

use millrace_kernels::DType;

pub use spec::{DecoderSpec, LayerSlot, LayerSpec, MlpSpec, RopeScaling, RopeTable, Slot, WeightSource};
pub use storage::{Quantize, Storage};

use crate::split::{Indivisible, Split, SplitWeights};

/// A model that can be loaded: what it computes and where its numbers are.
pub struct Model {
    /// What the decoder computes.
    pub spec: DecoderSpec,
    /// The element type its weights are stored as, and kept as unless the operator asks for another.
    pub dtype: DType,
    /// The stored weights.
    pub weights: Box<dyn WeightSource>,
}

impl Model {
    /// This rank's share of the model.
    ///
    /// # Errors
    /// If it cannot be cut into so many.
    pub fn share(self, split: Split) -> Result<Model, Indivisible> {
        if split == Split::WHOLE {
            return Ok(self);
        }
        let Model { spec: whole, dtype, weights } = self;
        let spec = split.spec(&whole)?;
        Ok(Model { spec, dtype, weights: Box::new(SplitWeights::new(weights, whole, split)) })
    }
}
