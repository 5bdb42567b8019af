//! The interface between a decoder and a device, and the meaning of each operation.
//!
//! [`Backend`] is the sum of these traits, one for each use that a shard makes of its device:
//!
//! | trait | use |
//! |---|---|
//! | [`Sizing`] | bytes of everything that is allocated, for the memory plan |
//! | [`ModelLoading`] | allocation, before the first step |
//! | [`WeightLoading`] | weights |
//! | [`StepQueue`] | the order of a step's calls, sampling, and the tokens that come back |
//! | [`StepGraphs`] | steps that are recorded once and replayed |
//! | [`ForwardOps`] | the operations of a forward pass, fused where a device gains from it |
//! | [`AttentionOps`], [`RecurrentOps`], [`ExpertOps`] | its operations in layers of one kind |
//! | [`AdapterOps`] | what the adapters of sequences add to products |
//! | [`TransferOps`] | copies of activations between device and host |
//!
//! [`reference::Reference`] is the slow and obvious implementation that every device is tested
//! against. [`sampling`], [`staging`], [`kv_int8`] and [`ThreadPool`] are host code that several
//! devices share.
//!
//! **Determinism.** The value of an output row depends only on that row's inputs: not on the other
//! rows of the step, not on how many there are, not on how a prompt was cut into chunks, and not on
//! the number of threads.
//!
//! The operations know tensors and the geometry of one step. Nothing here knows a kind of device, a
//! model, a request or a process.

mod activation;
mod adapters;
mod backend;
mod error;
mod experts;
mod format;
pub mod kv_int8;
mod loading;
mod ops;
mod queue;
mod recurrent;
pub mod reference;
pub mod sampling;
mod sizing;
pub mod staging;
mod step;
mod thread_pool;
mod types;
mod weights;

pub use activation::{Activation, Gating, MlpKind, Xielu};
pub use adapters::{AdapterOps, AdapterSpec, AdapterWeights, LowRankProduct};
pub use backend::{Backend, HostMemory};
pub use error::{Error, Result};
pub use experts::{ExpertGroups, GroupScore, RouterScores, RouterSpec, RoutingSpec};
pub use format::{KvFormat, KvSpec};
pub use loading::ModelLoading;
pub use ops::{
    AttentionOps, AttentionSpec, DistanceBias, ExpertMlp, ExpertOps, ForwardOps, HeadNorm, KeyWindow,
    LatentPrologue, LatentSpec, Norm, NormKind, Prologue, QkvLayout, RecurrentOps, RopeSpec, RopeStyle,
    RouterTerms, RowParts, ScoreTerms, TransferOps,
};
pub use queue::{StepGraphs, StepQueue};
pub use recurrent::{
    ChannelRecurrence, Convolution, GateFunction, KeySharing, Recurrence, RecurrenceRule, RecurrentHeads,
    StateCopy, StateSpec,
};
pub use sampling::{SampleRow, Sampled, SamplingParams, ScoreRow, Scored, Watermark};
pub use sizing::{Overheads, ProductShape, Sizing, StepSize};
pub use step::{
    BegunStep, ComputedStep, OpenStep, PaddedStep, RowKind, SampledRows, SeqRow, SequencePrefix, StepInput,
    SynchronousStep, UnmaskedStep,
};
pub use thread_pool::ThreadPool;
pub use types::DeviceTypes;
pub use weights::{HeadRows, Segment, WeightLoading};
