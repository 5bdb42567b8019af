//! The description of models, before any device computes them.
//!
//! [`families`] turns a checkpoint into a [`Model`]: a [`DecoderSpec`], which says what the decoder
//! computes, and a [`WeightSource`], which has a weight for each [`WeightSlot`]. [`split`] cuts out
//! the share of one rank. [`adapters`] matches files of LoRA to the weights. [`step_sizes`] has the
//! sizes of a step, [`memory_plan`] decides the sizes of everything that a device holds, and
//! [`estimate`] predicts memory and speed without a device. [`inspect`] describes a checkpoint for
//! people.
//!
//! Nothing here opens a device, computes a step or knows a process or a message: devices are only
//! their [`Sizing`](millrace_backend::Sizing).

pub mod adapters;
mod description;
pub mod estimate;
pub mod families;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
pub mod inspect;
pub mod memory_plan;
mod readable;
mod shard_limits;
pub mod split;
pub mod step_sizes;

pub use description::{
    AlibiHeads, Attention, AttentionHeads, ClassifierKind, ClassifierPlan, DecoderSpec, DenseMlp,
    DistanceHeads, EmbeddingPlan, ExpertsSpec, FeatureBlock, GateClamp, HeadNormPlan, HeadPlan, KeyChoice,
    LatentPlan, LayerSlot, LayerSpec, LearnedPositions, Mlp, Model, ModelWarnings, NormKind, NormPlace,
    NormPlan, PerLayerEmbedding, Positions, PrefixRule, ProjectionFactors, Quantize, QuantizeError,
    QuantizeRequest, QueryScale, RecurrentBlock, RecurrentLayer, RecurrentRule, RecurrentSlot, Residual,
    ResultPlan, RopeScaling, RopeTable, RowsInFormat, SharedExpert, SlopeRule, StorageError, StoredTensors,
    TensorPlace, WeightError, WeightInfo, WeightKind, WeightSlot, WeightSource, WeightStorage, take_parts,
};
pub use millrace_backend::KvFormat;
pub use millrace_numbers::DType;
pub use readable::{Bytes, Count, Operations};
pub use shard_limits::{AdapterLimits, KEPT_STATES, MAX_DRAFT_READ, ShardLimits};
