//! Mixture of experts: the choice of experts, their MLPs, and the weighted sum.

use super::buffers::{Buf, Matrix};
use super::math::{activate, dot, gate};
use crate::{ExpertGroups, ExpertMlp, GroupScore, MlpKind, RouterScores, RouterSpec, RouterTerms};

/// The routing of [`Reference`](super::Reference).
#[derive(Debug, Clone)]
pub struct Routing {
    pub(super) router: RouterSpec,
    /// For each token the chosen experts and their weights, best first.
    pub(super) chosen: Vec<Vec<(usize, f64)>>,
}

impl Routing {
    pub(super) fn new(router: RouterSpec) -> Routing {
        Routing { router, chosen: Vec::new() }
    }
}

/// Chooses the experts of one token.
pub(super) fn route(
    logits: &[f32],
    router: &RouterSpec,
    terms: RouterTerms<'_, Vec<f32>>,
) -> Vec<(usize, f64)> {
    let logits = usable(logits);
    let chosen = match router.scores {
        RouterScores::SparseMixer { noise } => sparse_mixer(&logits, router.top_k, noise),
        _ => by_keys(&logits, router, terms.bias),
    };
    let sum: f64 = if router.normalize { chosen.iter().map(|(_, score)| score).sum() } else { 1.0 };
    let sum = if sum == 0.0 { 1.0 } else { sum };
    let scale = |e: usize| terms.scales.map_or(1.0, |scales| f64::from(scales[e]));
    let factor = f64::from(router.factor);
    chosen.into_iter().map(|(e, score)| (e, score / sum * factor * scale(e))).collect()
}

/// Returns the experts with the highest keys and their scores.
fn by_keys(logits: &[f64], router: &RouterSpec, bias: Option<&Vec<f32>>) -> Vec<(usize, f64)> {
    let &RouterSpec { experts, top_k, groups, .. } = router;
    let scores = scores(logits, router.scores);
    let keys: Vec<f64> = match bias {
        Some(bias) => scores.iter().zip(bias).map(|(score, bias)| score + f64::from(*bias)).collect(),
        // The order of sums of scores is not that of sums of logits.
        None if groups.is_some_and(|groups| groups.score == GroupScore::TwoBest) => scores.clone(),
        None => logits.to_vec(),
    };
    let allowed = groups.map_or_else(|| (0..experts).collect(), |groups| allowed(&keys, groups));
    best(&keys, allowed, top_k).into_iter().map(|e| (e, scores[e])).collect()
}

/// Returns the experts with the highest logits, each with its softmax among those that are near.
fn sparse_mixer(logits: &[f64], top_k: usize, noise: f32) -> Vec<(usize, f64)> {
    let mut left = best(logits, (0..logits.len()).collect(), logits.len());
    let mut chosen = Vec::new();
    while chosen.len() < top_k {
        let most = logits[left[0]];
        let near = left.iter().filter(|e| RouterScores::is_near(noise, most as f32, logits[**e] as f32));
        let sum: f64 = near.map(|e| (logits[*e] - most).exp()).sum();
        chosen.push((left.remove(0), 1.0 / sum));
    }
    chosen
}

/// Replaces logits that cannot be compared.
fn usable(logits: &[f32]) -> Vec<f64> {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let usable = |x: &f32| match (most.is_finite(), x.is_nan()) {
        (false, _) => 0.0,
        (true, true) => f64::NEG_INFINITY,
        (true, false) => f64::from(*x),
    };
    logits.iter().map(usable).collect()
}

fn scores(logits: &[f64], kind: RouterScores) -> Vec<f64> {
    match kind {
        RouterScores::Sigmoid => logits.iter().map(|x| 1.0 / (1.0 + (-x).exp())).collect(),
        RouterScores::Softmax | RouterScores::SparseMixer { .. } => {
            let most = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let powers: Vec<f64> = logits.iter().map(|x| (x - most).exp()).collect();
            let sum: f64 = powers.iter().sum();
            powers.into_iter().map(|power| power / sum).collect()
        }
    }
}

/// Returns the experts of the best groups.
fn allowed(keys: &[f64], groups: ExpertGroups) -> Vec<usize> {
    let size = keys.len() / groups.count;
    let best_of = match groups.score {
        GroupScore::Best => 1,
        GroupScore::TwoBest => 2,
    };
    let score = |group: usize| -> f64 {
        let members = (group * size..(group + 1) * size).collect();
        best(keys, members, best_of).into_iter().map(|e| keys[e]).sum()
    };
    let of_groups: Vec<f64> = (0..groups.count).map(score).collect();
    let chosen = best(&of_groups, (0..groups.count).collect(), groups.chosen);
    (0..keys.len()).filter(|e| chosen.contains(&(e / size))).collect()
}

/// Returns the `count` of `among` with the highest keys, best first; among equal ones the lower
/// numbers.
fn best(keys: &[f64], mut among: Vec<usize>, count: usize) -> Vec<usize> {
    among.sort_by(|a, b| (keys[*b] + 0.0).total_cmp(&(keys[*a] + 0.0)));
    among.truncate(count);
    among
}

/// Adds the weighted MLPs of the experts of each token.
pub(super) fn run(
    n: usize,
    x: &Buf,
    mlp: &ExpertMlp<'_, Vec<Matrix>, Vec<f32>>,
    routing: &Routing,
    out: &mut Buf,
) {
    for (t, chosen) in routing.chosen.iter().enumerate().take(n) {
        let mut sums = vec![0.0; out.cols];
        for &(e, weight) in chosen {
            let (gate_up, down) = (&mlp.gate_up[e], &mlp.down[e]);
            // Either the input has the weight or the result.
            let (before, weight) = if routing.router.weighs_inputs { (weight, 1.0) } else { (1.0, weight) };
            let input: Vec<f32> = x.row(t).iter().map(|x| (f64::from(*x) * before) as f32).collect();
            let features = product(gate_up, &input, bias_of(mlp.gate_up_bias, e, gate_up));
            let gated: Vec<f32> = match mlp.kind {
                MlpKind::Gated(gating) => {
                    let (gates, ups) = features.split_at(gate_up.out / 2);
                    gates.iter().zip(ups).map(|(g, u)| gate(gating, *g, *u)).collect()
                }
                MlpKind::Plain(act) => features.iter().map(|x| activate(act, f64::from(*x)) as f32).collect(),
            };
            for (sum, y) in sums.iter_mut().zip(product(down, &gated, bias_of(mlp.down_bias, e, down))) {
                *sum += weight * f64::from(y);
            }
        }
        out.row_mut(t).iter_mut().zip(sums).for_each(|(out, sum)| *out = sum as f32);
    }
}

/// Returns the bias of an expert, whose matrix is `w`.
fn bias_of<'a>(all: Option<&'a Vec<f32>>, expert: usize, w: &Matrix) -> Option<&'a [f32]> {
    all.map(|all| &all[expert * w.out..(expert + 1) * w.out])
}

fn product(w: &Matrix, x: &[f32], bias: Option<&[f32]>) -> Vec<f32> {
    let bias = |o: usize| bias.map_or(0.0, |bias| f64::from(bias[o]));
    w.data.chunks_exact(w.cols).enumerate().map(|(o, row)| (dot(x, row) + bias(o)) as f32).collect()
}
