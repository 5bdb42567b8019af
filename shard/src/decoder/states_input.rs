//! The input of a head that predicts the token after the next one: the embedding of a token, and
//! the state of a model at the position before it.

use millrace_backend::{Backend, Norm, Result};
use millrace_model::{DecoderSpec, ShardLimits};

/// The weights between embeddings, states and the residual stream.
pub(super) struct StatesInputWeights<B: Backend> {
    pub(super) token_norm: Norm<B::Vector>, // [hidden]
    pub(super) token_projection: B::Matrix, // [hidden, hidden]
    pub(super) state_norm: Norm<B::Vector>, // [hidden]
    pub(super) state_projection: B::Matrix, // [hidden, hidden]
}

/// The input of a head, for up to `t` tokens.
pub(super) struct StatesInput<B: Backend> {
    weights: StatesInputWeights<B>,
    /// The states that the next step reads, one for each of its tokens, `[t, hidden]`.
    pub(super) states: B::Buf,
    /// Their projections, `[t, hidden]`.
    projected: B::Buf,
}

impl<B: Backend> StatesInput<B> {
    /// Allocates the buffers.
    pub(super) fn new(
        backend: &B,
        spec: &DecoderSpec,
        weights: StatesInputWeights<B>,
        limits: &ShardLimits,
    ) -> Result<Self> {
        let rows = || backend.buf(limits.max_step_tokens, spec.hidden);
        Ok(StatesInput { weights, states: rows()?, projected: rows()? })
    }

    /// Replaces the embeddings of `n` tokens, `[n, hidden]`, by what the first layer reads.
    /// `normed` is scratch of the same shape.
    pub(super) fn add(
        &mut self,
        backend: &B,
        n: usize,
        residual: &mut B::Buf,
        normed: &mut B::Buf,
    ) -> Result<()> {
        let StatesInput { weights, states, projected } = self;
        backend.norm(n, residual, &weights.token_norm, normed)?;
        backend.linear(n, normed, &weights.token_projection, None, residual)?;
        backend.norm(n, states, &weights.state_norm, normed)?;
        backend.linear(n, normed, &weights.state_projection, None, projected)?;
        backend.add(n, projected, residual)
    }
}
