//! The arithmetic of Millrace: the operations of a decoder, fused where a device gains from it.
//!
//! [`Backend`] is the trait that a device implements; [`cpu::Cpu`] is the embedded default. The operations know
//! tensors and the geometry of one step; they know nothing of models, requests or processes.

pub mod backend;
pub mod cpu;
#[cfg(any(feature = "cuda", feature = "cpu-sim"))]
pub mod cuda;
mod error;
pub mod fp8;
mod pool;
pub mod reference;
mod sample;
pub mod sampling;
pub mod staging;
pub mod tensor;

pub use backend::{
    Activation, AttentionSpec, Backend, HeadNorm, HostMemory, KvSpec, MatrixFormat, Norm, Overheads,
    ProductShape, Prologue, QkvLayout, RopeSpec, RopeStyle, SeqRow, StepInput, StepSize,
};
pub use error::{Error, Result};
pub use sample::watermark;
pub use sampling::{SampleRow, Sampled, SamplingParams, ScoreRow, Scored, Watermark};
pub use tensor::{DType, HostTensor, Part};
