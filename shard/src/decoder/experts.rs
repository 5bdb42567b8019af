//! Mixtures of experts: their buffers, and the order of their operations.

use millrace_kernels::{Backend, ExpertMlp, Result, RoutingSpec, Sizing};

use super::by_width::{ByWidth, widths};
use super::mlp::{MlpBuffers, MlpKind};
use super::step::StageStep;
use super::weights::ExpertsWeights;
use crate::Error;
use crate::model::{DecoderSpec, ExpertsSpec, LayerSpec, SharedExpert};

/// The buffers of mixtures of experts, for up to `t` tokens.
pub(super) struct ExpertBuffers<B: Backend> {
    /// The logits of the router, `[t, experts]`.
    router: ByWidth<B::Buf>,
    /// The output of the shared expert, `[t, hidden]`.
    shared: ByWidth<B::Buf>,
    /// The gate of the shared expert's output, `[t, 1]`.
    shared_gate: ByWidth<B::Buf>,
    /// The chosen experts of the current layer, for each kind of mixture among the layers.
    routings: Vec<(RoutingSpec, B::Routing)>,
    hidden: usize,
    tokens: usize,
}

impl<B: Backend> ExpertBuffers<B> {
    /// Allocates the buffers of those of `layers` that have experts.
    pub(super) fn new(backend: &B, layers: &[LayerSpec], hidden: usize, tokens: usize) -> Result<Self> {
        let buffers = |widths: Vec<usize>| ByWidth::new(widths, |cols| backend.buf(tokens, cols));
        let routings = routings(layers, hidden, tokens).into_iter();
        Ok(ExpertBuffers {
            // Logits are in single precision, so that the choice of experts is not rounded.
            router: ByWidth::new(widths(layers, ROUTER), |cols| backend.logits(tokens, cols))?,
            shared: buffers(if has_shared(layers) { vec![hidden] } else { Vec::new() })?,
            shared_gate: buffers(widths(layers, SHARED_GATE))?,
            routings: routings.map(|spec| Ok((spec, backend.routing(&spec)?))).collect::<Result<_>>()?,
            hidden,
            tokens,
        })
    }

    /// `out = Σ weight * expert(x)` over each token's experts, and the shared expert if there is
    /// one, `[tokens, hidden]`.
    pub(super) fn compute(
        &mut self,
        step: &StageStep<'_, B>,
        (spec, w): (&ExpertsSpec, &ExpertsWeights<B>),
        x: &B::Buf,
        mlp: MlpBuffers<'_, B>,
        out: &mut B::Buf,
    ) -> std::result::Result<(), Error> {
        let &StageStep { backend, step: open, tokens: n } = step;
        let wanted = routing_spec(spec, self.hidden, self.tokens);
        let at = self.routings.iter().position(|(of, _)| *of == wanted);
        let routing = &mut self.routings[at.expect("every mixture has a routing")].1;
        let logits = self.router.of(spec.count());
        backend.linear(n, x, &w.router, w.router_bias.as_ref(), logits)?; // [n, experts]
        backend.route(open, n, logits, w.choice_bias.as_ref(), routing)?;
        let experts = ExpertMlp {
            gate_up: &w.gate_up,
            gate_up_bias: w.gate_up_bias.as_ref(),
            down: &w.down,
            down_bias: w.down_bias.as_ref(),
            gating: spec.gating,
        };
        backend.expert_mlp(n, x, &experts, routing, out)?; // [n, hidden]
        if let (Some(SharedExpert { width, .. }), Some(w)) = (spec.shared, &w.shared) {
            let shared = self.shared.of(self.hidden);
            mlp.compute(step, (width, MlpKind::Gated(spec.gating)), &w.mlp, x, shared)?; // [n, hidden]
            match &w.gate {
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

/// Returns the columns of all buffers whose type is that of activations.
pub(super) fn columns(spec: &DecoderSpec) -> usize {
    let shared = if has_shared(&spec.layers) { spec.hidden } else { 0 };
    widths(&spec.layers, SHARED_GATE).into_iter().fold(shared, usize::saturating_add)
}

/// Returns the bytes of the devices' working memory of experts, and of the routers' logits.
pub(crate) fn routing_bytes(spec: &DecoderSpec, tokens: usize, device: &impl Sizing) -> usize {
    let logits: usize = widths(&spec.layers, ROUTER).into_iter().sum();
    let logits = tokens.saturating_mul(logits).saturating_mul(size_of::<f32>());
    let routings = routings(&spec.layers, spec.hidden, tokens);
    routings.iter().map(|spec| device.routing_bytes(spec)).fold(logits, usize::saturating_add)
}

/// Returns the routing of a mixture in the terms of the backend, for steps of `tokens` tokens.
fn routing_spec(experts: &ExpertsSpec, hidden: usize, tokens: usize) -> RoutingSpec {
    RoutingSpec { tokens, hidden, width: experts.width, router: experts.router }
}

/// Returns the different routings among the layers.
fn routings(layers: &[LayerSpec], hidden: usize, tokens: usize) -> Vec<RoutingSpec> {
    let mut all: Vec<RoutingSpec> = Vec::new();
    for experts in layers.iter().filter_map(|layer| layer.mlp.experts()) {
        let spec = routing_spec(experts, hidden, tokens);
        if !all.contains(&spec) {
            all.push(spec);
        }
    }
    all
}

fn shared(layer: &LayerSpec) -> Option<SharedExpert> {
    layer.mlp.experts().and_then(|experts| experts.shared)
}

fn has_shared(layers: &[LayerSpec]) -> bool {
    layers.iter().any(|layer| shared(layer).is_some())
}

const ROUTER: fn(&LayerSpec) -> usize = |layer| layer.mlp.experts().map_or(0, ExpertsSpec::count);
const SHARED_GATE: fn(&LayerSpec) -> usize =
    |layer| usize::from(shared(layer).is_some_and(|shared| shared.gated));
