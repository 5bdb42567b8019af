//! The interface between a decoder and a device.
//!
//! [`Backend`] is the sum of four traits, one for each use that a shard makes of its device:
//!
//! | trait | use |
//! |---|---|
//! | [`Sizing`] | bytes of everything that is allocated, for the memory plan |
//! | [`ModelLoading`] | allocation and weights, before the first step |
//! | [`StepQueue`] | the order of a step's calls, sampling, and the tokens that come back |
//! | [`ForwardOps`] | the operations of a forward pass |
//!
//! **Determinism.** The value of an output row depends only on that row's inputs: not on the other
//! rows of the step, not on how many there are, not on how a prompt was cut into chunks, and not on
//! the number of threads.

mod activation;
mod experts;
mod format;
mod loading;
mod ops;
mod queue;
mod recurrent;
mod sizing;
mod step;
mod types;

pub use activation::{Activation, Gating, MlpKind};
pub use experts::{ExpertGroups, GroupScore, RouterScores, RouterSpec, RoutingSpec};
pub use format::{KvFormat, KvSpec};
pub use loading::{HeadRows, ModelLoading, Segment};
pub use ops::{
    AttentionSpec, ExpertMlp, ForwardOps, HeadNorm, KeyWindow, LatentSpec, Norm, NormKind, Prologue,
    QkvLayout, RopeSpec, RopeStyle, RouterTerms, RowParts, ScoreTerms,
};
pub use queue::StepQueue;
pub use recurrent::{Convolution, GateFunction, Recurrence, RecurrenceRule, RecurrentHeads, StateSpec};
pub use sizing::{Overheads, ProductShape, Sizing, StepSize};
pub use step::{
    BegunStep, ComputedStep, OpenStep, PaddedStep, PausedStep, RowKind, SampledRows, SeqRow, SequencePrefix,
    StepInput, SynchronousStep,
};
pub use types::DeviceTypes;

use crate::sampling::Sampled;

/// A device that a decoder can run on: all four traits, and a name.
pub trait Backend: Sizing + ModelLoading + ForwardOps + StepQueue {
    /// Returns a name for people, such as `cpu (avx512, 2 threads)`.
    fn name(&self) -> String;
}

/// A device whose activations lie in host memory, where the processes of a group can exchange them.
pub trait HostMemory: Backend {
    /// Returns the first `n` rows.
    fn host<'a>(&self, buf: &'a Self::Buf, n: usize) -> &'a [f32];

    /// Returns the first `n` rows for writing.
    fn host_mut<'a>(&self, buf: &'a mut Self::Buf, n: usize) -> &'a mut [f32];

    /// Returns the tokens that the step has sampled so far, one for each of its outputs. A rank
    /// that does not sample writes here the tokens that another rank has sent.
    fn sampled<'a>(&self, step: &'a mut OpenStep<'_, Self::Queue>) -> &'a mut Vec<Sampled>;
}
