//! The ways in which the output of a branch, attention or MLP, is added to the residual stream.

use millrace_backend::{Backend, Norm};

use super::group::RankGroup;
use super::workspace::HiddenStates;
use crate::Error;

/// A branch that has been computed and is to be added to the residual stream.
///
/// Each function adds the branch, whose contents are lost, and leaves what the next branch reads in
/// `states.normed`, if that is normalized. `next` is the norm before the next branch, or after the
/// last layer; there is none where the next branch reads the residual stream as it is.
pub(super) struct BranchOutput<'a, B: Backend> {
    pub(super) backend: &'a B,
    /// Number of tokens.
    pub(super) tokens: usize,
    /// This rank's summand of the branch, `[tokens, hidden]`.
    pub(super) branch: &'a mut B::Buf,
    pub(super) states: &'a mut HiddenStates<B>,
    /// The ranks that compute the branch together.
    pub(super) group: &'a mut RankGroup<B>,
}

impl<B: Backend> BranchOutput<'_, B> {
    /// Pre-norm (Xiong et al., "On Layer Normalization in the Transformer Architecture", 2020): the
    /// branch has read a normalized residual stream.
    ///
    /// `residual += branch; normed = next(residual)`.
    pub(super) fn add_pre_norm(self, next: Option<&Norm<B::Vector>>) -> Result<(), Error> {
        let BranchOutput { backend, tokens: n, branch, states, group } = self;
        let HiddenStates { residual, normed, .. } = states;
        match next {
            Some(norm) => group.all_reduce_norm(backend, n, residual, branch, norm, normed),
            None => {
                group.all_reduce(backend, n, branch)?;
                Ok(backend.add(n, branch, residual)?)
            }
        }
    }

    /// Post-norm (Vaswani et al., "Attention Is All You Need", 2017): the sum is normalized.
    ///
    /// `residual = norm(residual + branch)`. The next branch reads the residual stream.
    pub(super) fn add_post_norm(self, norm: &Norm<B::Vector>) -> Result<(), Error> {
        let BranchOutput { backend, tokens: n, branch, states, group } = self;
        let HiddenStates { residual, normed, .. } = states;
        group.all_reduce_norm(backend, n, residual, branch, norm, normed)?;
        Ok(backend.copy_rows(normed, 0, n, residual, 0)?)
    }

    /// Sandwich norm (Ding et al., "CogView: Mastering Text-to-Image Generation via Transformers",
    /// 2021): the output of the branch has a norm of its own. OLMo 2 has only this norm, and no
    /// `next` between its layers.
    ///
    /// `residual += own(branch); normed = next(residual)`.
    pub(super) fn add_sandwich_norm(
        self,
        own: &Norm<B::Vector>,
        next: Option<&Norm<B::Vector>>,
    ) -> Result<(), Error> {
        let BranchOutput { backend, tokens: n, branch, states, group } = self;
        let HiddenStates { residual, normed, .. } = states;
        group.all_reduce(backend, n, branch)?;
        backend.norm(n, branch, own, normed)?;
        backend.add(n, normed, residual)?;
        next.map_or(Ok(()), |norm| Ok(backend.norm(n, residual, norm, normed)?))
    }

    /// Adds attention of a parallel residual (Wang and Komatsuzaki, "GPT-J-6B", 2021): the MLP
    /// reads the residual stream from before attention.
    ///
    /// `normed = next(residual); residual += branch`.
    pub(super) fn add_parallel_attention(self, next: Option<&Norm<B::Vector>>) -> Result<(), Error> {
        let BranchOutput { backend, tokens: n, branch, states, group } = self;
        let HiddenStates { residual, normed, .. } = states;
        if let Some(norm) = next {
            backend.norm(n, residual, norm, normed)?;
        }
        group.all_reduce(backend, n, branch)?;
        Ok(backend.add(n, branch, residual)?)
    }

    /// Adds the branch to what it has read instead of to the residual stream (Du et al., "GLM:
    /// General Language Model Pretraining", 2022, as ChatGLM-6B scales it).
    ///
    /// `residual = factor * normed + branch; normed = next(residual)`.
    pub(super) fn add_to_normed(self, factor: f32, next: Option<&Norm<B::Vector>>) -> Result<(), Error> {
        let HiddenStates { residual, normed, .. } = &mut *self.states;
        self.backend.copy_rows(normed, 0, self.tokens, residual, 0)?;
        self.backend.scale(self.tokens, factor, residual)?;
        self.add_pre_norm(next)
    }
}
