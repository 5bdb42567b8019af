//! The description of a model: the specification of its decoder, the table of its weights, and the
//! source of them.

mod alibi;
mod blocks;
mod distance;
mod key_choice;
mod mlp;
mod plain;
mod prefix;
mod recurrent;
mod recurrent_slots;
mod rope;
mod shapes;
#[cfg(test)]
mod slot_tests;
mod slots;
mod source;
mod spec;
mod storage;
#[cfg(test)]
pub(crate) mod test_spec;

use millrace_numbers::DType;

pub use alibi::{AlibiHeads, SlopeRule};
pub use blocks::FeatureBlock;
pub use distance::DistanceHeads;
pub use key_choice::KeyChoice;
pub use mlp::{DenseMlp, ExpertsSpec, GateClamp, Mlp, SharedExpert};
pub use prefix::PrefixRule;
pub use recurrent::{
    ProjectionFactors, RecurrentBlock, RecurrentLayer, RecurrentRule, RecurrentSlot, ResultPlan,
};
pub use rope::{QueryScale, RopeScaling, RopeTable};
pub use slots::{LayerSlot, StoredTensors, WeightInfo, WeightKind, WeightSlot};
pub use source::{TensorPlace, WeightError, WeightSource, take_parts};
pub use spec::{
    Attention, AttentionHeads, ClassifierKind, ClassifierPlan, DecoderSpec, EmbeddingPlan, HeadNormPlan,
    HeadPlan, LatentPlan, LayerSpec, LearnedPositions, NormKind, NormPlace, NormPlan, PerLayerEmbedding,
    Positions, Residual,
};
pub use storage::{Quantize, QuantizeError, QuantizeRequest, RowsInFormat, StorageError, WeightStorage};

/// A model that can be loaded.
pub struct Model {
    /// The specification of the decoder.
    pub spec: DecoderSpec,
    /// Element type of the stored weights. They keep it in memory unless the operator asks for
    /// another.
    pub dtype: DType,
    /// The name of the format of the checkpoint's quantized matrices, if it has any.
    pub quantized: Option<&'static str>,
    /// The source of the weights.
    pub weights: Box<dyn WeightSource>,
    /// Warnings about contradictions in the files of the model.
    pub warnings: ModelWarnings,
}

/// Warnings about contradictions in the files of a model, each of which names what is used.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModelWarnings {
    /// Warnings about keys of the configuration.
    pub configuration: Vec<String>,
    /// A warning about the element type of the configuration and of the tensors.
    pub dtype: Option<String>,
}

impl ModelWarnings {
    /// Returns the warnings. The element type is no contradiction if the operator asked for one.
    pub fn texts(&self, asked: Option<DType>) -> impl Iterator<Item = &str> {
        let dtype = self.dtype.iter().filter(move |_| asked.is_none());
        self.configuration.iter().chain(dtype).map(String::as_str)
    }

    /// Logs the warnings.
    pub fn log(&self, asked: Option<DType>) {
        self.texts(asked).for_each(|warning| tracing::warn!("{warning}"));
    }
}
