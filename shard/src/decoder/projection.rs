//! Products by matrices that adapters may change.

use millrace_backend::{AdapterSpec, Backend};
use millrace_model::WeightSlot;

use super::step_context::{ByWidth, StepContext};
use crate::Error;

/// A matrix that activations are multiplied by, its bias, and what adapters add to the product.
pub(super) struct Projection<B: Backend> {
    /// The place of the matrix in the model.
    pub(super) slot: WeightSlot,
    pub(super) matrix: B::Matrix,       // [outputs, inputs]
    pub(super) bias: Option<B::Vector>, // [outputs]
    /// The pool of adapters, if the shard has some, and its sizes.
    pub(super) adapters: Option<(B::Adapters, AdapterSpec)>,
}

impl<B: Backend> Projection<B> {
    /// `out = x · wᵀ + bias`, `[tokens, outputs]`, and what each sequence's adapter adds to it.
    /// `features` are the working memory of adapters.
    pub(super) fn compute(
        &self,
        step: &StepContext<'_, B>,
        x: &B::Buf,
        features: &mut ByWidth<B::Buf>,
        out: &mut B::Buf,
    ) -> Result<(), Error> {
        let &StepContext { backend, step, tokens } = step;
        backend.linear(tokens, x, &self.matrix, self.bias.as_ref(), out)?;
        if let Some((adapters, spec)) = &self.adapters {
            backend.adapt(step, x, adapters, features.of(spec.rank), out)?;
        }
        Ok(())
    }
}
