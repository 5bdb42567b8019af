//! Softmax attention: the order of its operations.

use millrace_backend::{
    Backend, DistanceBias, GateFunction, HeadNorm, KeyWindow, NormKind, Prologue, QkvLayout, RopeSpec,
    RowParts, ScoreTerms,
};
use millrace_model::{AttentionHeads, DistanceHeads, HeadNormPlan, Positions};

use super::step_context::StepContext;
use super::weights::SoftmaxWeights;
use super::workspace::LayerBuffers;
use crate::Error;

/// Softmax attention of one layer.
pub(super) struct Softmax<'a, B: Backend> {
    pub(super) spec: &'a AttentionHeads,
    pub(super) window: Option<KeyWindow>,
    pub(super) ropes: &'a [RopeSpec<B::Vector>],
    /// Factors on queries by position, `[positions]`.
    pub(super) query_scale: Option<&'a B::Vector>,
    pub(super) w: &'a SoftmaxWeights<B>,
}

impl<B: Backend> Softmax<'_, B> {
    /// `branch = attention(x)`: softmax(scores) v over the sequence's cache, projected to `[tokens,
    /// hidden]`. `kv` is the layer's own cache, or the one of the layer that it reads.
    pub(super) fn compute(
        &self,
        step: &StepContext<'_, B>,
        x: &B::Buf,
        kv: &mut B::Kv,
        buffers: &mut LayerBuffers<B>,
    ) -> Result<(), Error> {
        let (context, &StepContext { backend, step, tokens: n, .. }) = (step, step);
        let features = &mut buffers.adapter_features;
        let Softmax { spec, w, .. } = *self;
        let layout = spec.projected();
        let qkv = buffers.qkv.of(layout.cols());
        let heads = buffers.heads.of(layout.heads * layout.head_dim);
        w.qkv.compute(context, x, features, qkv)?; // [n, layout.cols()]
        // The prologue computes the usual norm of heads itself, unless something comes after it.
        let in_prologue = |norms: &&HeadNorm<B::Vector>| {
            let is_shared = matches!(spec.head_norm, HeadNormPlan::Shared | HeadNormPlan::Unscaled);
            is_shared && norms.q.kind == NormKind::Rms && spec.clip.is_none()
        };
        let own_norms = w.head_norm.as_ref().filter(|norms| !in_prologue(norms));
        let is_after_rotation = spec.head_norm == HeadNormPlan::SharedAfterRotation;
        let (queries, keys) = head_parts(spec);
        if let Some(norms) = own_norms {
            if !is_after_rotation {
                backend.norm_parts(n, qkv, queries, &norms.q)?;
            }
            backend.norm_parts(n, qkv, keys, &norms.k)?;
        }
        if let Some(norm) = &w.query_norm {
            backend.norm_parts(n, qkv, head_parts(spec).0, norm)?;
        }
        if let Some(norm) = &w.value_norm {
            let QkvLayout { heads, kv_heads: count, head_dim: cols } = layout;
            backend.norm_parts(n, qkv, RowParts { first: (heads + count) * cols, count, cols }, norm)?;
        }
        if let Some(bound) = spec.clip {
            backend.clamp(n, bound, qkv)?;
        }
        let prologue = Prologue {
            layout,
            head_norm: w.head_norm.as_ref().filter(in_prologue),
            rope: match spec.positions {
                Positions::None | Positions::Linear(_) | Positions::Distance(_) => None,
                Positions::Rotary { table } => Some(&self.ropes[table]),
            },
            query_scale: self.query_scale,
        };
        backend.prologue(step, qkv, &prologue, kv)?;
        if let Some(norms) = own_norms.filter(|_| is_after_rotation) {
            // The keys are in the cache. The scales of queries contain those of keys.
            backend.norm_parts(n, qkv, queries, &norms.q)?;
        }
        let distance = w.distance.as_ref().map(|table| DistanceBias { table, reach: DistanceHeads::REACH });
        let terms = ScoreTerms { alibi: w.alibi.as_ref(), distance, sinks: w.sinks.as_ref() };
        backend.attention(step, qkv, kv, &spec.softmax_spec(self.window), terms, heads)?; // [n, heads * head_dim]
        if let Some(gate) = &w.out_gate {
            let gates = buffers.out_gates.of(layout.heads * layout.head_dim);
            gate.compute(context, x, features, gates)?; // [n, heads * head_dim]
            backend.multiply_gates(n, (gates, 0), GateFunction::Sigmoid, heads)?;
        }
        w.out.compute(context, heads, features, &mut buffers.branch) // [n, hidden]
    }
}

/// Returns the parts of a row of the fused projection that are normalized: queries and keys.
fn head_parts(heads: &AttentionHeads) -> (RowParts, RowParts) {
    let QkvLayout { heads: query_heads, kv_heads, head_dim } = heads.layout;
    let parts = |first: usize, count: usize| match heads.head_norm {
        HeadNormPlan::AllHeads => RowParts { first, count: 1, cols: count * head_dim },
        _ => RowParts { first, count, cols: head_dim },
    };
    (parts(0, query_heads), parts(query_heads * head_dim, kv_heads))
}
