//! The time before the first step, beside the loading of weights: choosing algorithms and
//! allocating.

use crate::adapters::{AdapterSpec, AdapterWeights};
use crate::experts::RoutingSpec;
use crate::format::KvSpec;
use crate::recurrent::StateSpec;
use crate::sizing::{ProductShape, StepSize};
use crate::weights::WeightLoading;
use crate::{Error, Result};

/// Allocation and loading, in this order: [`tune`](ModelLoading::tune),
/// [`reserve`](ModelLoading::reserve), the allocations, [`seal`](ModelLoading::seal). After `seal`,
/// steps allocate nothing on the device.
pub trait ModelLoading: WeightLoading {
    /// Chooses the fastest algorithm for each of these products where there is a choice. Returns
    /// warnings for the operator.
    ///
    /// # Errors
    /// [`Error::Device`] if the device fails, [`Error::OutOfMemory`] if it lacks memory.
    fn tune(&self, _products: &[ProductShape]) -> Result<Vec<String>> {
        Ok(Vec::new())
    }

    /// Allocates `bytes` bytes of device memory in one piece, from which up to `pieces` later
    /// allocations are served. Devices that gain nothing from this do nothing.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if the device lacks memory.
    fn reserve(&self, _bytes: usize, _pieces: usize) -> Result<()> {
        Ok(())
    }

    /// Ends the allocations. Returns how many bytes did not fit the reserved piece.
    fn seal(&self) -> usize {
        0
    }

    /// Returns the free bytes of the device's memory, if the device tells them.
    fn free_bytes(&self) -> Option<usize> {
        None
    }

    /// Allocates zeroed activations `[rows, cols]`.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if the device lacks memory.
    fn buf(&self, rows: usize, cols: usize) -> Result<Self::Buf>;

    /// Allocates zeroed logits `[rows, cols]`: an output of [`ForwardOps::linear`] that can be
    /// sampled from.
    ///
    /// [`ForwardOps::linear`]: super::ForwardOps::linear
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if the device lacks memory.
    fn logits(&self, rows: usize, cols: usize) -> Result<Self::Buf> {
        self.buf(rows, cols)
    }

    /// Tells whether the device has the operation of adapters.
    fn computes_adapters(&self) -> bool {
        false
    }

    /// Allocates the pool of adapters of one matrix. No place of it changes the matrix yet.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device has no adapters, [`Error::OutOfMemory`] if it lacks
    /// memory.
    fn adapters(&self, _spec: &AdapterSpec) -> Result<Self::Adapters> {
        Err(Error::Unsupported("LoRA adapters".to_owned()))
    }

    /// Replaces an adapter by `weights`, rounded to the type that the pool keeps. This is also
    /// allowed after [`ModelLoading::seal`], between steps.
    ///
    /// # Errors
    /// The errors of [`AdapterWeights::check`], and [`Error::Unsupported`] if the device has no
    /// adapters.
    fn load_adapter(
        &self,
        _adapters: &mut Self::Adapters,
        _place: usize,
        _weights: &AdapterWeights,
    ) -> Result<()> {
        Err(Error::Unsupported("LoRA adapters".to_owned()))
    }

    /// Allocates the working memory of experts.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if the device lacks memory.
    fn routing(&self, spec: &RoutingSpec) -> Result<Self::Routing>;

    /// Allocates a zeroed KV cache for one layer.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a shape that the device has no kernels for,
    /// [`Error::OutOfMemory`] if it lacks memory.
    fn kv(&self, spec: KvSpec) -> Result<Self::Kv>;

    /// Allocates the recurrent states of one layer. A sequence whose row starts at position 0
    /// begins with a state of zeros, whatever its slot holds.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if the device lacks memory.
    fn states(&self, spec: StateSpec) -> Result<Self::States>;

    /// Allocates a queue for steps up to this size.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if the device lacks memory.
    fn queue(&self, size: &StepSize<'_>) -> Result<Self::Queue>;
}
