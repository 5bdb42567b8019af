//! One rank's share of a model, cut as in Megatron-LM (Shoeybi et al.).
//!
//! The ranks share query, key and value heads, and the features of gate and up: their projections
//! are cut by output features. The output projection of attention and the down projection are cut
//! by input features to match, so each rank has a summand of their result, and one all-reduce after
//! each of them computes the sum. Embedding and head are cut by vocabulary. If there are fewer
//! key/value heads than ranks, neighboring ranks hold the same head.

mod layers;
mod share;
#[cfg(test)]
mod tests;
mod weights;

use crate::description::Model;
pub use layers::{LayerShare, NoPipeline};
pub use share::{Indivisible, Split, sizes};
use weights::SplitWeights;

impl Split {
    /// Returns this rank's share of a model.
    ///
    /// # Errors
    /// If heads or features cannot be shared evenly.
    pub fn apply(self, model: Model) -> Result<Model, Indivisible> {
        if self == Split::WHOLE {
            return Ok(model);
        }
        let Model { spec: whole, dtype, quantized, weights, warnings } = model;
        let spec = self.spec(&whole)?;
        let weights = Box::new(SplitWeights::new(weights, whole, self));
        Ok(Model { spec, dtype, quantized, weights, warnings })
    }
}
