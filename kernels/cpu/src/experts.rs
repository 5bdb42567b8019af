//! Mixture of experts: rows are sorted by expert, and each expert's rows are multiplied by its
//! matrices as a small product of their own.
//!
//! A token's results are added in the ascending order of its experts' numbers, so that they depend
//! on the token only.

use millrace_backend::{
    ExpertGroups, ExpertMlp, ForwardOps, GroupScore, MlpKind, Result, RouterScores, RouterSpec, RouterTerms,
    RoutingSpec,
};

use super::memory::Shared;
use super::{Buf, Cpu, Matrix};

/// The chosen experts of a step's tokens, and the working memory of one expert's product.
///
/// A token chooses an expert once at most, so that an expert has no more rows than a step has
/// tokens.
#[derive(Debug)]
pub struct Routing {
    spec: RoutingSpec,
    /// The keys by which experts are compared, `[tokens, experts]`.
    keys: Vec<f32>,
    /// `[tokens, top_k]`, best first.
    chosen: Vec<u32>,
    /// `[tokens, top_k]`.
    weights: Vec<f32>,
    /// Where the pairs of each expert begin in `pairs`, `[experts + 1]`.
    starts: Vec<usize>,
    /// The pairs `token * top_k + choice`, sorted by expert, `[tokens * top_k]`.
    pairs: Vec<u32>,
    /// The inputs of an expert, `[tokens, hidden]`.
    x: Buf,
    /// `[tokens, 2 * width]`.
    gate_up: Buf,
    /// `[tokens, width]`.
    gated: Buf,
    /// The results of an expert, `[tokens, hidden]`.
    y: Buf,
}

impl Routing {
    pub(super) fn new(spec: &RoutingSpec, buf: impl Fn(usize, usize) -> Result<Buf>) -> Result<Routing> {
        let &RoutingSpec { tokens, hidden, width, router: RouterSpec { experts, top_k, .. } } = spec;
        Ok(Routing {
            spec: *spec,
            keys: vec![0.0; tokens * experts],
            chosen: vec![0; tokens * top_k],
            weights: vec![0.0; tokens * top_k],
            starts: vec![0; experts + 1],
            pairs: vec![0; tokens * top_k],
            x: buf(tokens, hidden)?,
            gate_up: buf(tokens, 2 * width)?,
            gated: buf(tokens, width)?,
            y: buf(tokens, hidden)?,
        })
    }

    /// Returns the bytes of the working memory.
    pub(super) fn bytes(spec: &RoutingSpec) -> usize {
        let &RoutingSpec { tokens, hidden, width, router: RouterSpec { experts, top_k, .. } } = spec;
        let row = experts + 3 * top_k + 2 * hidden + 3 * width;
        tokens.saturating_mul(row).saturating_mul(size_of::<f32>())
    }

    /// Sorts the pairs of the first `n` tokens by expert. Those of one expert stay in their order.
    fn sort(&mut self, n: usize) {
        let Routing { spec, chosen, starts, pairs, .. } = self;
        let chosen = &chosen[..n * spec.router.top_k];
        starts.fill(0);
        chosen.iter().for_each(|&expert| starts[expert as usize + 1] += 1);
        (1..starts.len()).for_each(|expert| starts[expert] += starts[expert - 1]);
        // Each start advances to that of the next expert while the pairs are placed.
        for (pair, &expert) in chosen.iter().enumerate() {
            let place = &mut starts[expert as usize];
            pairs[*place] = pair as u32;
            *place += 1;
        }
        starts.rotate_right(1);
        starts[0] = 0;
    }
}

impl Cpu {
    /// Chooses the experts of the first `n` tokens.
    pub(super) fn choose_experts(
        &self,
        n: usize,
        logits: &Buf,
        terms: RouterTerms<'_, Vec<f32>>,
        routing: &mut Routing,
    ) {
        let RoutingSpec { tokens, router, .. } = routing.spec;
        let RouterSpec { experts, top_k, .. } = router;
        assert!(n <= tokens, "more tokens than the routing has room for");
        assert_eq!(logits.cols, experts, "a logit for each expert");
        assert!(terms.bias.is_none_or(|bias| bias.len() == experts), "length of the router's bias");
        assert!(terms.scales.is_none_or(|scales| scales.len() == experts), "a scale for each expert");
        let logits = logits.rows(n);
        let keys = Shared::new(&mut routing.keys);
        let (chosen, weights) = (Shared::new(&mut routing.chosen), Shared::new(&mut routing.weights));
        self.for_rows(n, experts * (top_k + 8), |t| {
            let logits = &logits[t * experts..(t + 1) * experts];
            // SAFETY: row t of all three belongs to this task alone.
            unsafe {
                let choice = Choice { logits, terms, keys: keys.slice(t * experts, experts) };
                choice.make(&router, chosen.slice(t * top_k, top_k), weights.slice(t * top_k, top_k));
            }
        });
        routing.sort(n);
    }

    /// Computes the experts' MLPs of the first `n` tokens and adds them to `out`, which is zeroed
    /// first.
    pub(super) fn compute_experts(
        &self,
        n: usize,
        x: &Buf,
        mlp: &ExpertMlp<'_, Vec<Matrix>, Vec<f32>>,
        routing: &mut Routing,
        out: &mut Buf,
    ) -> Result<()> {
        let RoutingSpec { hidden, router: RouterSpec { top_k, weighs_inputs, .. }, .. } = routing.spec;
        assert!(x.cols == hidden && out.cols == hidden, "columns of the experts");
        let (x, out) = (x.rows(n), out.rows_mut(n));
        out.fill(0.0);
        let out = Shared::new(out);
        for (expert, (gate_up, down)) in mlp.gate_up.iter().zip(mlp.down).enumerate() {
            let pairs = &routing.pairs[routing.starts[expert]..routing.starts[expert + 1]];
            let rows = pairs.len();
            let token = |row: usize| pairs[row] as usize / top_k;
            let inputs = Shared::new(routing.x.rows_mut(rows));
            self.for_rows(rows, hidden, |row| {
                // SAFETY: the row belongs to this task alone.
                let to = unsafe { inputs.slice(row * hidden, hidden) };
                to.copy_from_slice(&x[token(row) * hidden..][..hidden]);
                if weighs_inputs {
                    let weight = routing.weights[pairs[row] as usize];
                    to.iter_mut().for_each(|x| *x *= weight);
                }
            });
            let bias = bias_of(mlp.gate_up_bias, expert, gate_up);
            match mlp.kind {
                MlpKind::Gated(gating) => {
                    self.multiply(rows, &routing.x, gate_up, bias, &mut routing.gate_up)?;
                    self.gate(rows, gating, &routing.gate_up, &mut routing.gated)?;
                }
                MlpKind::Plain(act) => {
                    self.multiply(rows, &routing.x, gate_up, bias, &mut routing.gated)?;
                    self.activate(rows, act, &mut routing.gated)?;
                }
            }
            self.multiply(rows, &routing.gated, down, bias_of(mlp.down_bias, expert, down), &mut routing.y)?;
            let y = routing.y.rows(rows);
            self.for_rows(rows, hidden, |row| {
                let weight = if weighs_inputs { 1.0 } else { routing.weights[pairs[row] as usize] };
                // SAFETY: an expert has each token once, so the row belongs to this task alone.
                let out = unsafe { out.slice(token(row) * hidden, hidden) };
                out.iter_mut().zip(&y[row * hidden..][..hidden]).for_each(|(out, y)| *out += weight * y);
            });
        }
        Ok(())
    }

    /// `out += sigmoid(gate) * x` over the first `n` rows.
    pub(super) fn add_gated_rows(&self, n: usize, x: &Buf, gate: &Buf, out: &mut Buf) {
        assert_eq!(x.cols, out.cols, "columns of a gated sum");
        assert_eq!(gate.cols, 1, "a gate for each row");
        let cols = out.cols;
        let (x, gate, out) = (x.rows(n), gate.rows(n), Shared::new(out.rows_mut(n)));
        self.for_rows(n, cols, |t| {
            let factor = sigmoid(gate[t]);
            // SAFETY: row t belongs to this task alone.
            let out = unsafe { out.slice(t * cols, cols) };
            out.iter_mut().zip(&x[t * cols..][..cols]).for_each(|(out, x)| *out += factor * x);
        });
    }
}

/// Returns the bias of an expert, whose matrix is `w`.
fn bias_of<'a>(all: Option<&'a Vec<f32>>, expert: usize, w: &Matrix) -> Option<&'a [f32]> {
    all.map(|all| &all[expert * w.out..(expert + 1) * w.out])
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// The choice of one token's experts.
struct Choice<'a> {
    logits: &'a [f32],
    terms: RouterTerms<'a, Vec<f32>>,
    /// Room for the keys. Experts that cannot be chosen, or have been, get NaN.
    keys: &'a mut [f32],
}

impl Choice<'_> {
    /// Writes the experts and their weights, best first.
    fn make(self, router: &RouterSpec, chosen: &mut [u32], weights: &mut [f32]) {
        let Choice { logits, terms, keys } = self;
        let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let lost = !most.is_finite();
        let most = if lost { 0.0 } else { most };
        let logit = |expert: usize| match logits[expert] {
            _ if lost => 0.0,
            x if x.is_nan() => f32::NEG_INFINITY,
            x => x,
        };
        let score = |expert: usize| match router.scores {
            RouterScores::Softmax | RouterScores::SparseMixer { .. } => (logit(expert) - most).exp(),
            RouterScores::Sigmoid => sigmoid(logit(expert)),
        };
        let total: f32 = match router.scores {
            RouterScores::Softmax => (0..logits.len()).map(score).sum(),
            RouterScores::Sigmoid | RouterScores::SparseMixer { .. } => 1.0,
        };
        // The order of sums of scores is not that of sums of logits.
        let are_summed = router.groups.is_some_and(|groups| groups.score == GroupScore::TwoBest);
        for (expert, key) in keys.iter_mut().enumerate() {
            *key = match terms.bias {
                Some(bias) => score(expert) / total + bias[expert],
                None if are_summed => score(expert) / total,
                None => logit(expert),
            };
        }
        if let Some(groups) = router.groups {
            limit(keys, groups);
        }
        let mut sum = 0.0;
        for (chosen, weight) in chosen.iter_mut().zip(weights.iter_mut()) {
            let best = best(keys).unwrap_or_default();
            (*chosen, *weight) = match router.scores {
                RouterScores::SparseMixer { noise } => (best as u32, share_of_near(keys, keys[best], noise)),
                _ => (best as u32, score(best)),
            };
            keys[best] = f32::NAN;
            sum += *weight;
        }
        let divisor = match router.normalize {
            // Sigmoids may all be zero.
            true if sum == 0.0 => 1.0,
            true => sum,
            false => total,
        };
        weights.iter_mut().for_each(|weight| *weight = *weight / divisor * router.factor);
        if let Some(scales) = terms.scales {
            let of_chosen = chosen.iter().map(|&expert| scales[expert as usize]);
            weights.iter_mut().zip(of_chosen).for_each(|(weight, scale)| *weight *= scale);
        }
    }
}

/// Returns the softmax of the logit `chosen` among those that are near. Experts that were chosen
/// before have NaN.
fn share_of_near(logits: &[f32], chosen: f32, noise: f32) -> f32 {
    let near = logits.iter().filter(|logit| RouterScores::is_near(noise, chosen, **logit));
    1.0 / near.map(|logit| (logit - chosen).exp()).sum::<f32>()
}

/// Sets the keys of experts outside the best groups to NaN.
fn limit(keys: &mut [f32], groups: ExpertGroups) {
    assert!(groups.count <= ExpertGroups::MAX, "{} groups of experts", groups.count);
    let size = keys.len() / groups.count;
    let mut scores = [f32::NAN; ExpertGroups::MAX];
    for (score, members) in scores.iter_mut().zip(keys.chunks_exact(size)) {
        *score = match groups.score {
            GroupScore::Best => members.iter().copied().fold(f32::NEG_INFINITY, f32::max),
            GroupScore::TwoBest => {
                let (first, second) = members.iter().fold([f32::NEG_INFINITY; 2].into(), two_best);
                first + second
            }
        };
    }
    let mut kept = [false; ExpertGroups::MAX];
    for _ in 0..groups.chosen {
        if let Some(group) = best(&scores[..groups.count]) {
            (scores[group], kept[group]) = (f32::NAN, true);
        }
    }
    for (members, kept) in keys.chunks_exact_mut(size).zip(kept) {
        if !kept {
            members.fill(f32::NAN);
        }
    }
}

/// Returns the two best of three keys, the better one first.
fn two_best((first, second): (f32, f32), &key: &f32) -> (f32, f32) {
    if key > first { (key, first) } else { (first, second.max(key)) }
}

/// Returns the index of the highest key that is not NaN, the first of equal ones.
fn best(keys: &[f32]) -> Option<usize> {
    let mut best: Option<(usize, f32)> = None;
    for (at, &key) in keys.iter().enumerate() {
        if !key.is_nan() && best.is_none_or(|(_, most)| key > most) {
            best = Some((at, key));
        }
    }
    best.map(|(at, _)| at)
}
