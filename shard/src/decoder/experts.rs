//! Mixtures of experts: their buffers, and the order of their operations.

use millrace_backend::{Backend, ExpertMlp, Result, RouterTerms, RoutingSpec, RowParts};
use millrace_model::step_sizes::{LayerBuffer, routings};
use millrace_model::{ExpertsSpec, LayerSpec, SharedExpert};

use super::group::RankGroup;
use super::mlp::{MlpBuffers, MlpPlan};
use super::step_context::{ByWidth, StepContext};
use super::weights::ExpertsWeights;
use crate::Error;

/// The buffers of mixtures of experts, for up to `t` tokens.
pub(super) struct ExpertBuffers<B: Backend> {
    /// The logits of the router, `[t, experts]`.
    router: ByWidth<B::Buf>,
    /// The output of the shared expert, and before it the normalized inputs of the others, `[t,
    /// hidden]`.
    shared: ByWidth<B::Buf>,
    /// The gate of the shared expert's output, `[t, 1]`.
    shared_gate: ByWidth<B::Buf>,
    /// The chosen experts of the current layer, for each kind of mixture among the layers.
    routings: Vec<(RoutingSpec, B::Routing)>,
    hidden: usize,
    tokens: usize,
}

impl<B: Backend> ExpertBuffers<B> {
    /// Allocates the buffers of those of `layers` that have experts. `buffers` allocates buffers of
    /// activations.
    pub(super) fn new(
        backend: &B,
        layers: &[LayerSpec],
        hidden: usize,
        tokens: usize,
        buffers: impl Fn(LayerBuffer) -> Result<ByWidth<B::Buf>>,
    ) -> Result<Self> {
        let routings = routings(layers, hidden, tokens).into_iter();
        let router = LayerBuffer::RouterLogits.widths(layers, hidden);
        Ok(ExpertBuffers {
            // Logits are in single precision, so that the choice of experts is not rounded.
            router: ByWidth::new(router, |cols| backend.logits(tokens, cols))?,
            shared: buffers(LayerBuffer::SharedExpert)?,
            shared_gate: buffers(LayerBuffer::SharedGate)?,
            routings: routings.map(|spec| Ok((spec, backend.routing(&spec)?))).collect::<Result<_>>()?,
            hidden,
            tokens,
        })
    }

    /// `out = Σ weight * expert(x)` over each token's experts, and the shared expert if there is
    /// one, `[tokens, hidden]`. Experts with norms of their own read `residual` in place of `x`,
    /// and `out` is the sum over all ranks then.
    pub(super) fn compute(
        &mut self,
        step: &StepContext<'_, B>,
        (spec, w): (&ExpertsSpec, &ExpertsWeights<B>),
        io: ExpertsIo<'_, B>,
    ) -> std::result::Result<(), Error> {
        let &StepContext { backend, step: open, tokens: n, .. } = step;
        let ExpertsIo { x, residual, mlp, group, out } = io;
        let wanted = spec.routing_spec(self.hidden, self.tokens);
        let at = self.routings.iter().position(|(of, _)| *of == wanted);
        let routing = &mut self.routings[at.expect("every mixture has a routing")].1;
        let logits = self.router.of(spec.count());
        let whole_row = RowParts { first: 0, count: 1, cols: self.hidden };
        // The buffer of the shared expert's output is free until that is computed.
        if let Some(norms) = &w.norms {
            let input = self.shared.of(self.hidden);
            backend.norm(n, residual, &norms.router, input)?;
            backend.linear(n, input, &w.router, w.router_bias.as_ref(), logits)?; // [n, experts]
            backend.norm(n, residual, &norms.input, input)?;
        } else {
            backend.linear(n, x, &w.router, w.router_bias.as_ref(), logits)?; // [n, experts]
        }
        let terms = RouterTerms { bias: w.choice_bias.as_ref(), scales: w.scales.as_ref() };
        backend.route(open, n, logits, terms, routing)?;
        let experts = ExpertMlp {
            gate_up: &w.gate_up,
            gate_up_bias: w.gate_up_bias.as_ref(),
            down: &w.down,
            down_bias: w.down_bias.as_ref(),
            kind: spec.kind,
        };
        if let Some(norms) = &w.norms {
            backend.expert_mlp(n, self.shared.of(self.hidden), &experts, routing, out)?; // [n, hidden]
            group.all_reduce(backend, n, out)?;
            backend.norm_parts(n, out, whole_row, &norms.out)?;
        } else {
            backend.expert_mlp(n, x, &experts, routing, out)?; // [n, hidden]
        }
        if let (Some(SharedExpert { width, .. }), Some(of_shared)) = (spec.shared, &w.shared) {
            let shared = self.shared.of(self.hidden);
            mlp.compute(step, MlpPlan::new(width, spec.kind), &of_shared.mlp, x, shared)?; // [n, hidden]
            if let Some(norm) = w.norms.as_ref().and_then(|norms| norms.shared_out.as_ref()) {
                group.all_reduce(backend, n, shared)?;
                backend.norm_parts(n, shared, whole_row, norm)?;
            }
            match &of_shared.gate {
                Some(matrix) => {
                    let gate = self.shared_gate.of(1);
                    backend.linear(n, x, matrix, None, gate)?; // [n, 1]
                    backend.add_gated(n, shared, gate, routing, out)?;
                }
                None => backend.add(n, shared, out)?,
            }
        }
        Ok(())
    }
}

/// The operands of a mixture of experts.
pub(super) struct ExpertsIo<'a, B: Backend> {
    /// The input of an MLP, `[tokens, hidden]`.
    pub(super) x: &'a B::Buf,
    /// The residual stream, `[tokens, hidden]`.
    pub(super) residual: &'a B::Buf,
    /// The buffers of the shared expert.
    pub(super) mlp: MlpBuffers<'a, B>,
    /// The ranks that share the experts.
    pub(super) group: &'a mut RankGroup<B>,
    /// The result, `[tokens, hidden]`.
    pub(super) out: &'a mut B::Buf,
}
