//! Mixture of experts: routing, the order of rows by expert, grouped products, and the weighted
//! sum.

use millrace_backend::{
    Error, ExpertMlp, MlpKind, Result, RouterScores, RouterSpec, RouterTerms, RoutingSpec,
};
use millrace_numbers::tensor::stacked_shape;
use millrace_numbers::{Part, WeightFormat};

use super::buffers::{Buf, MatrixStorage, Vector};
use super::cuda::Cuda;
use super::loading::WeightUpload;
use crate::ops::grouped::{ExpertWeights, GroupedGemm, RowOrder, grouped_gemm};
use crate::ops::moe::{self, CombineExperts, RouteTokens, RouterScoreKind, SortPairs};
use crate::{Device, Elem, Memory, View};

/// A matrix `[out, cols]` of each expert, one after the other.
#[derive(Debug)]
pub struct Experts {
    storage: MatrixStorage,
    count: usize,
    out: usize,
    cols: usize,
}

impl Experts {
    pub(super) fn new(
        device: &Device,
        upload: &mut WeightUpload,
        experts: &[Vec<Part>],
        format: WeightFormat,
    ) -> Result<Experts> {
        let (out, cols) = stacked_shape(experts.first().map_or(&[][..], Vec::as_slice))?;
        let matrices: Vec<&[Part]> = experts.iter().map(Vec::as_slice).collect();
        let storage = MatrixStorage::load(device, upload, &matrices, format)?;
        Ok(Experts { storage, count: experts.len(), out, cols })
    }

    fn weights(&self) -> ExpertWeights<'_> {
        match &self.storage {
            MatrixStorage::Dense(memory, elem) => ExpertWeights::Stored(memory.view(*elem)),
            MatrixStorage::Packed(loaded) => ExpertWeights::Packed(loaded.weight()),
        }
    }
}

/// The chosen experts of a step's tokens, and the buffers between the products.
#[derive(Debug)]
pub struct Routing {
    spec: RoutingSpec,
    /// i32 `[tokens, top_k]`.
    chosen: Memory,
    /// f32 `[tokens, top_k]`.
    weights: Memory,
    /// i32 `[experts + 1]`.
    expert_offsets: Memory,
    /// i32 `[tokens * top_k]`.
    sorted_rows: Memory,
    /// i32 `[tokens * top_k]`.
    places: Memory,
    /// The factors of a gated sum, f32 `[tokens]`.
    factors: Memory,
    /// The factor 1 for each token, f32 `[tokens]`, if weights multiply the inputs of experts.
    ones: Option<Memory>,
    /// `[tokens * top_k, 2 * width]`.
    gate_up: Buf,
    /// `[tokens * top_k, width]`.
    gated: Buf,
    /// `[tokens * top_k, hidden]`.
    y: Buf,
}

impl Routing {
    /// # Errors
    /// [`Error::Unsupported`] for a router that the kernels cannot compute.
    pub(super) fn new(device: &Device, elem: Elem, spec: &RoutingSpec) -> Result<Routing> {
        let &RoutingSpec { tokens, hidden, width, router } = spec;
        let RouterSpec { experts, top_k, groups, weighs_inputs, .. } = router;
        if weighs_inputs && top_k > 1 {
            return Err(Error::Unsupported(format!(
                "weighted inputs of {top_k} experts for each token; only the CPU has them"
            )));
        }
        if let Some(groups) = groups {
            let (chosen, count) = (groups.chosen, groups.count);
            return Err(Error::Unsupported(format!(
                "a router that chooses {chosen} of {count} groups of experts; only the CPU has them"
            )));
        }
        let pairs = tokens.saturating_mul(top_k);
        Ok(Routing {
            spec: *spec,
            chosen: device.allocate(Elem::I32, pairs)?,
            weights: device.allocate(Elem::F32, pairs)?,
            expert_offsets: device.allocate(Elem::I32, experts + 1)?,
            sorted_rows: device.allocate(Elem::I32, pairs)?,
            places: device.allocate(Elem::I32, pairs)?,
            factors: device.allocate(Elem::F32, tokens)?,
            ones: if weighs_inputs { Some(ones(device, tokens)?) } else { None },
            gate_up: Buf::new(device, elem, pairs, 2 * width)?,
            gated: Buf::new(device, elem, pairs, width)?,
            y: Buf::new(device, elem, pairs, hidden)?,
        })
    }

    /// Returns the bytes of the buffers.
    pub(super) fn bytes(elem: Elem, spec: &RoutingSpec) -> usize {
        let &RoutingSpec { tokens, hidden, width, router } = spec;
        let RouterSpec { experts, top_k, weighs_inputs, .. } = router;
        let pair = 4 * Elem::I32.size() + (3 * width + hidden) * elem.size();
        let token =
            top_k.saturating_mul(pair).saturating_add(Elem::F32.size() * (1 + usize::from(weighs_inputs)));
        tokens.saturating_mul(token).saturating_add((experts + 1) * Elem::I32.size())
    }
}

/// Allocates the factor 1 for each token.
fn ones(device: &Device, tokens: usize) -> Result<Memory> {
    let ones = device.allocate(Elem::F32, tokens)?;
    let bytes: Vec<u8> = std::iter::repeat_n(1f32.to_le_bytes(), tokens).flatten().collect();
    device.write(ones.view(Elem::F32), &bytes)?;
    Ok(ones)
}

impl Cuda {
    /// Chooses the experts of `n` tokens, of which those from `count` on are padding, and sorts the
    /// pairs of token and choice by expert.
    pub(super) fn choose_experts(
        &self,
        (n, count): (usize, View<'_>),
        logits: &Buf,
        terms: RouterTerms<'_, Vector>,
        routing: &Routing,
    ) -> Result<()> {
        let RouterSpec { experts, top_k, scores, normalize, factor, .. } = routing.spec.router;
        let pairs = n * top_k;
        let chosen = routing.chosen.view(Elem::I32).slice(0..pairs);
        let tokens = RouteTokens {
            tokens: n,
            count: Some(count),
            experts,
            top_k,
            logits: logits.rows(n),
            scores: match scores {
                RouterScores::Softmax => RouterScoreKind::Softmax,
                RouterScores::Sigmoid => RouterScoreKind::Sigmoid,
                RouterScores::SparseMixer { .. } => {
                    return Err(Error::Unsupported("SparseMixer on a GPU; use --device cpu".to_owned()));
                }
            },
            bias: terms.bias.map(Vector::view),
            scales: terms.scales.map(Vector::view),
            normalize,
            factor,
            chosen,
            weights: routing.weights.view(Elem::F32).slice(0..pairs),
        };
        moe::route(&self.device, &tokens)?;
        moe::sort(
            &self.device,
            &SortPairs {
                pairs,
                experts,
                chosen,
                expert_offsets: routing.expert_offsets.view(Elem::I32),
                sorted_rows: routing.sorted_rows.view(Elem::I32).slice(0..pairs),
                places: routing.places.view(Elem::I32).slice(0..pairs),
            },
        )
    }

    /// Computes the experts' MLPs of `n` tokens, and their weighted sums.
    pub(super) fn compute_experts(
        &self,
        n: usize,
        x: &Buf,
        mlp: &ExpertMlp<'_, Experts, Vector>,
        routing: &Routing,
        out: &Buf,
    ) -> Result<()> {
        let MlpKind::Gated(gating) = mlp.kind else {
            return Err(Error::Unsupported("experts without gates on a GPU; use --device cpu".to_owned()));
        };
        let (top_k, pairs) = (routing.spec.router.top_k, n * routing.spec.router.top_k);
        let (gate_up, gated, y) = (&routing.gate_up, &routing.gated, &routing.y);
        let (up, down) = ((mlp.gate_up, mlp.gate_up_bias), (mlp.down, mlp.down_bias));
        let mut x = x.rows(n);
        let weights = routing.weights.view(Elem::F32).slice(0..pairs);
        if routing.ones.is_some() {
            // The results of experts are not there yet, so that there is room for the inputs. A
            // token has one pair.
            let inputs = CombineExperts {
                tokens: n,
                cols: y.cols,
                top_k: 1,
                y: x,
                places: None,
                weights,
                base: None,
                out: y.rows(n),
            };
            moe::combine(&self.device, &inputs)?;
            x = y.rows(n);
        }
        self.multiply_experts(n, (x, RowOrder::Pairs), up, routing, gate_up.rows(pairs))?;
        self.gate_rows(pairs, gating, gate_up, gated)?;
        self.multiply_experts(n, (gated.rows(pairs), RowOrder::Sorted), down, routing, y.rows(pairs))?;
        let sums = CombineExperts {
            tokens: n,
            cols: out.cols,
            top_k,
            y: y.rows(pairs),
            places: Some(routing.places.view(Elem::I32).slice(0..pairs)),
            weights: routing.ones.as_ref().map_or(weights, |ones| ones.view(Elem::F32).slice(0..pairs)),
            base: None,
            out: out.rows(n),
        };
        moe::combine(&self.device, &sums)
    }

    /// Multiplies the rows of each expert by its matrix and adds its bias. The results are sorted
    /// by expert.
    fn multiply_experts(
        &self,
        rows: usize,
        (x, x_order): (View<'_>, RowOrder),
        (weights, bias): (&Experts, Option<&Vector>),
        routing: &Routing,
        out: View<'_>,
    ) -> Result<()> {
        let top_k = routing.spec.router.top_k;
        let product = GroupedGemm {
            rows,
            top_k,
            experts: weights.count,
            inputs: weights.cols,
            outputs: weights.out,
            bias: bias.map(Vector::view),
            expert_offsets: routing.expert_offsets.view(Elem::I32),
            sorted_rows: routing.sorted_rows.view(Elem::I32).slice(0..rows * top_k),
            x_order,
            x,
            out_order: RowOrder::Sorted,
            out,
        };
        grouped_gemm(&self.device, weights.weights(), &product)
    }

    /// `out += sigmoid(gate) * x` over the first `n` rows.
    pub(super) fn add_gated_rows(
        &self,
        n: usize,
        x: &Buf,
        gate: &Buf,
        routing: &Routing,
        out: &Buf,
    ) -> Result<()> {
        // The weight of the only expert of a router with sigmoids is the sigmoid of its logit.
        let factors = routing.factors.view(Elem::F32).slice(0..n);
        let of_rows = RouteTokens {
            tokens: n,
            count: None,
            experts: 1,
            top_k: 1,
            logits: gate.rows(n),
            scores: RouterScoreKind::Sigmoid,
            bias: None,
            scales: None,
            normalize: false,
            factor: 1.0,
            // The choices of the experts have been used.
            chosen: routing.chosen.view(Elem::I32).slice(0..n),
            weights: factors,
        };
        moe::route(&self.device, &of_rows)?;
        let sum = CombineExperts {
            tokens: n,
            cols: out.cols,
            top_k: 1,
            y: x.rows(n),
            places: None,
            weights: factors,
            base: Some(out.rows(n)),
            out: out.rows(n),
        };
        moe::combine(&self.device, &sum)
    }
}
