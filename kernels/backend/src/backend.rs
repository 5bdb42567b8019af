//! The interface between a decoder and a device, as one trait.

use crate::queue::StepQueue;
use crate::sampling::Sampled;
use crate::{ForwardOps, ModelLoading, OpenStep, Sizing};

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
