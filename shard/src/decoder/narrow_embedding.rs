//! Embeddings that are narrower or wider than the residual stream (OPT-350M).

use millrace_backend::{Backend, OpenStep, Result};
use millrace_model::DecoderSpec;

/// A projection between embeddings and the residual stream, with the buffer for the rows on the
/// side of the embeddings.
pub(super) struct NarrowEmbedding<B: Backend> {
    /// `[hidden, width]` after the embedding, and `[width, hidden]` before the head.
    matrix: B::Matrix,
    /// `[rows, width]`
    rows: B::Buf,
}

impl<B: Backend> NarrowEmbedding<B> {
    /// Allocates the buffer for up to `rows` rows.
    pub(super) fn new(backend: &B, spec: &DecoderSpec, matrix: B::Matrix, rows: usize) -> Result<Self> {
        let width = spec.embedding.width.unwrap_or(spec.hidden);
        Ok(NarrowEmbedding { matrix, rows: backend.buf(rows, width)? })
    }

    /// Looks up the step's tokens in `embedding`, whose first row is that of token `first`, and
    /// projects their rows: `out = matrix · (factor * embedding[token])`, `[tokens, hidden]`. A
    /// token whose row is not in the embedding gets zeros.
    pub(super) fn embed(
        &mut self,
        backend: &B,
        step: &OpenStep<'_, B::Queue>,
        (embedding, first): (&B::Matrix, usize),
        factor: f32,
        out: &mut B::Buf,
    ) -> Result<()> {
        backend.embed(step, embedding, first, factor, &mut self.rows)?; // [n, width]
        backend.linear(step.tokens(), &self.rows, &self.matrix, None, out)
    }

    /// Projects the first `m` rows of `states`, `[m, hidden]`, to what the head reads, `[m,
    /// width]`.
    pub(super) fn project(&mut self, backend: &B, m: usize, states: &B::Buf) -> Result<&B::Buf> {
        backend.linear(m, states, &self.matrix, None, &mut self.rows)?;
        Ok(&self.rows)
    }
}
