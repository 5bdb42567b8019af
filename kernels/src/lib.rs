//! The arithmetic of Millrace: the operations of a decoder, fused where a device gains from it.
//!
//! [`Backend`] is the trait that a device implements. [`cpu::Cpu`] runs everywhere, `cuda::Cuda` on
//! NVIDIA GPUs, and [`reference::Reference`] is the slow and obvious implementation that the others
//! are tested against. The operations know tensors and the geometry of one step; they know nothing
//! of models, requests or processes.

pub mod backend;
pub mod cpu;
#[cfg(any(feature = "cuda", feature = "cpu-sim"))]
pub mod cuda;
mod error;
mod kv_int8;
pub mod reference;
mod sample;
pub mod sampling;
pub mod staging;
mod thread_pool;

pub use backend::{
    Activation, AttentionSpec, Backend, BegunStep, ComputedStep, Convolution, DeviceTypes, ExpertGroups,
    ExpertMlp, ForwardOps, GateFunction, Gating, GroupScore, HeadNorm, HeadRows, HostMemory, KeyWindow,
    KvFormat, KvSpec, LatentSpec, MlpKind, ModelLoading, Norm, NormKind, OpenStep, Overheads, PaddedStep,
    PausedStep, ProductShape, Prologue, QkvLayout, Recurrence, RecurrenceRule, RecurrentHeads, RopeSpec,
    RopeStyle, RouterScores, RouterSpec, RouterTerms, RoutingSpec, RowKind, RowParts, SampledRows,
    ScoreTerms, Segment, SeqRow, SequencePrefix, Sizing, StateSpec, StepInput, StepQueue, StepSize,
    SynchronousStep,
};
pub use error::{Error, Result};
pub use millrace_numbers::{BlockType, DType, Encoding, HostTensor, IntFormat, KFormat, Part, WeightFormat};
pub use sample::watermark;
pub use sampling::{SampleRow, Sampled, SamplingParams, ScoreRow, Scored, Watermark};
