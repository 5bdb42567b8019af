//! Multi-head latent attention: its buffers, and the order of its operations.

use millrace_backend::{Backend, LatentPrologue, LatentSpec, Result, RopeSpec, RowParts};
use millrace_model::step_sizes::LayerBuffer;
use millrace_model::{AttentionHeads, LatentPlan, Positions};

use super::step_context::{ByWidth, StepContext};
use super::weights::LatentWeights;
use crate::Error;

/// The buffers of latent attention, for up to `t` tokens.
pub(super) struct LatentBuffers<B: Backend> {
    /// The features that queries are computed from, `[t, query_rank]`.
    query_down: ByWidth<B::Buf>,
    /// The normalized features, `[t, query_rank]`.
    query_normed: ByWidth<B::Buf>,
    /// The queries before the projection to the latent's features, `[t, heads * query_dim]`.
    queries: ByWidth<B::Buf>,
    /// The queries as attention reads them, `[t, heads * row_dim]`.
    absorbed: ByWidth<B::Buf>,
    /// The rows that are cached, `[t, row_dim]`.
    rows: ByWidth<B::Buf>,
    /// The weighted latents, `[t, heads * rank]`.
    latents: ByWidth<B::Buf>,
    /// The values, `[t, heads * value_dim]`.
    values: ByWidth<B::Buf>,
}

impl<B: Backend> LatentBuffers<B> {
    /// Allocates the buffers with `buffers`.
    pub(super) fn new(buffers: impl Fn(LayerBuffer) -> Result<ByWidth<B::Buf>>) -> Result<Self> {
        Ok(LatentBuffers {
            query_down: buffers(LayerBuffer::QueryDown)?,
            query_normed: buffers(LayerBuffer::QueryNormed)?,
            queries: buffers(LayerBuffer::Queries)?,
            absorbed: buffers(LayerBuffer::Absorbed)?,
            rows: buffers(LayerBuffer::LatentRows)?,
            latents: buffers(LayerBuffer::Latents)?,
            values: buffers(LayerBuffer::LatentValues)?,
        })
    }

    /// Computes attention, and returns the values of all heads, `[tokens, heads * value_dim]`.
    /// Stores the latents of the step's tokens in `kv`.
    pub(super) fn compute(
        &mut self,
        step: &StepContext<'_, B>,
        (heads, w): (&AttentionHeads, &LatentWeights<B>),
        (ropes, query_scale): (&[RopeSpec<B::Vector>], Option<&B::Vector>),
        x: &B::Buf,
        kv: &mut B::Kv,
        features: &mut ByWidth<B::Buf>,
    ) -> std::result::Result<&B::Buf, Error> {
        let (context, &StepContext { backend, step, tokens: n, .. }) = (step, step);
        let (Some(plan), Positions::Rotary { table }) = (&heads.latent, heads.positions) else {
            unreachable!("latent attention has latents and is rotated; this is a bug")
        };
        let count = heads.layout.heads;
        let queries = self.queries.of(count * plan.query_dim());
        match (&w.query_down, plan.query_rank) {
            (Some((down, norm)), Some(rank)) => {
                let (low, normed) = (self.query_down.of(rank), self.query_normed.of(rank));
                down.compute(context, x, features, low)?; // [n, query_rank]
                backend.norm(n, low, norm, normed)?;
                w.query.compute(context, normed, features, queries)?;
            }
            _ => w.query.compute(context, x, features, queries)?, // [n, heads * query_dim]
        }
        let rows = self.rows.of(plan.row_dim());
        w.down.compute(context, x, features, rows)?; // [n, row_dim]
        let latent = RowParts { first: plan.rotary_dim, count: 1, cols: plan.rank };
        backend.norm_parts(n, rows, latent, &w.norm)?;
        // The products of keys and queries are those of latents and absorbed queries.
        let absorbed = self.absorbed.of(count * plan.row_dim());
        backend.linear_heads(n, queries, &w.keys, absorbed)?; // [n, heads * row_dim]
        let prologue = LatentPrologue { rope: &ropes[table], query_scale };
        backend.latent_prologue(step, absorbed, rows, &prologue, kv)?;
        let spec = latent_spec(heads, plan);
        let latents = self.latents.of(count * plan.rank);
        backend.latent_attention(step, absorbed, kv, &spec, latents)?; // [n, heads * rank]
        let values = self.values.of(count * plan.value_dim);
        backend.linear_heads(n, latents, &w.values, values)?; // [n, heads * value_dim]
        Ok(values)
    }
}

/// Returns the attention of a layer in the terms of the backend.
fn latent_spec(heads: &AttentionHeads, plan: &LatentPlan) -> LatentSpec {
    LatentSpec {
        heads: heads.layout.heads,
        key_dim: plan.row_dim(),
        value_dim: plan.rank,
        scale: heads.score_scale,
    }
}
