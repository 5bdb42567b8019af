//! Consecutive layers of a model for each rank of a pipeline.

use std::ops::Range;

use crate::description::DecoderSpec;

/// A rank of a pipeline, which has consecutive layers of a model. Rank 0 also has the embedding and
/// the head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerShare {
    /// Number of the rank, from 0.
    pub rank: usize,
    /// Number of ranks in the pipeline.
    pub world_size: usize,
}

/// The reason why a model cannot be a pipeline of so many ranks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoPipeline {
    /// There are fewer layers than ranks.
    #[error("--pipeline-parallel {world_size}: this model has {layers} layers, and each rank needs one")]
    TooFewLayers {
        /// Number of ranks that was asked for.
        world_size: usize,
        /// Number of layers of the model.
        layers: usize,
    },
    /// Layers cannot be divided between ranks.
    #[error("--pipeline-parallel {world_size}: this model has {part}, which cannot be divided between ranks")]
    Indivisible {
        /// Number of ranks that was asked for.
        world_size: usize,
        /// The part that keeps the layers together, in words.
        part: &'static str,
    },
}

impl LayerShare {
    /// Returns the layers of this rank of the model `whole`. Rank 0 never has more than the others,
    /// because it has the embedding and the head.
    ///
    /// # Errors
    /// If there are fewer layers than ranks, or layers that cannot be divided between ranks.
    pub fn layers(self, whole: &DecoderSpec) -> Result<Range<usize>, NoPipeline> {
        let (LayerShare { rank, world_size }, layers) = (self, whole.layers.len());
        if layers < world_size {
            return Err(NoPipeline::TooFewLayers { world_size, layers });
        }
        if let Some(part) = whole.indivisible_layers().filter(|_| world_size > 1) {
            return Err(NoPipeline::Indivisible { world_size, part });
        }
        Ok(rank * layers / world_size..(rank + 1) * layers / world_size)
    }

    /// Returns the specification of the model `whole` for this rank: all layers, but only on rank 0
    /// rows of the embedding and the head.
    pub fn spec(self, whole: DecoderSpec) -> DecoderSpec {
        let vocab_rows = if self.rank == 0 { whole.vocab_rows.clone() } else { 0..0 };
        DecoderSpec { vocab_rows, ..whole }
    }
}
