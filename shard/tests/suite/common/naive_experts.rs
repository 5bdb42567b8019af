//! Mixtures of experts of the decoder in its plainest form.

use millrace_backend::{Gating, GroupScore, MlpKind, RouterScores, RouterSpec};
use millrace_model::{ExpertsSpec, LayerSlot};

use super::{CLOSEST_CHOICE, Norms, activate, add, matrix, sigmoid};

/// An affine function: a matrix, and a bias if there is one.
type Affine<'a> = (&'a [f64], Option<&'a [f64]>);

fn affine((w, bias): Affine<'_>, x: &[f64]) -> Vec<f64> {
    let mut y = matrix(w, x);
    if let Some(bias) = bias {
        add(&mut y, bias);
    }
    y
}

fn expert_mlp(kind: MlpKind, up: Affine<'_>, down: Affine<'_>, x: &[f64]) -> Vec<f64> {
    let y = affine(up, x);
    let features: Vec<f64> = match kind {
        MlpKind::Gated(gating) => {
            let (gate, up) = y.split_at(y.len() / 2);
            gate.iter().zip(up).map(|(g, u)| product(gating, *g, *u)).collect()
        }
        MlpKind::Plain(act) => y.iter().map(|u| activate(act, *u)).collect(),
    };
    affine(down, &features)
}

pub(super) fn product(gating: Gating, gate: f64, up: f64) -> f64 {
    match gating {
        Gating::Product(act) => activate(act, gate) * up,
        Gating::Clamped { alpha, limit } => {
            let limit = f64::from(limit);
            let gate = if gate > limit { limit } else { gate };
            (1.0 + up.max(-limit).min(limit)) * gate * sigmoid(f64::from(alpha) * gate)
        }
    }
}

/// Returns the output of a mixture for one input. `stream` is the residual stream.
pub(super) fn mixture(
    (spec, norms): (&ExpertsSpec, Norms<'_>),
    get: impl Fn(LayerSlot) -> Vec<f64>,
    (x, stream): (&[f64], &[f64]),
) -> Vec<f64> {
    let get_if = |present: bool, slot| if present { Some(get(slot)) } else { None };
    let of_all = [
        Some(get(LayerSlot::ExpertGateUp)),
        get_if(spec.up_bias, LayerSlot::ExpertGateUpBias),
        Some(get(LayerSlot::ExpertDown)),
        get_if(spec.down_bias, LayerSlot::ExpertDownBias),
    ];
    let normed = |x: &[f64], slot| if spec.own_norms { norms.scaled(x, &get(slot)) } else { x.to_vec() };
    let (of_router, of_experts) = if spec.own_norms {
        let root = (x.len() as f64).sqrt();
        let scale = get(LayerSlot::RouterNorm);
        let of_router = norms.unscaled(stream).iter().zip(scale).map(|(x, scale)| x * scale / root).collect();
        (of_router, normed(stream, LayerSlot::ExpertNorm))
    } else {
        (x.to_vec(), x.to_vec())
    };
    let router_bias = get_if(spec.router_bias, LayerSlot::RouterBias);
    let logits = affine((&get(LayerSlot::Router), router_bias.as_deref()), &of_router);
    let bias = if spec.choice_bias { get(LayerSlot::ChoiceBias) } else { vec![0.0; spec.count()] };
    let scales = get_if(spec.scales, LayerSlot::RouterScales);
    let mut sum = vec![0.0; x.len()];
    for (expert, weight) in routed(&spec.router, &logits, &bias) {
        let [gate_up, up_bias, down, down_bias] = of_all.each_ref().map(|all| {
            let all = all.as_deref()?;
            let len = all.len() / spec.count();
            Some(&all[expert * len..(expert + 1) * len])
        });
        let weight = weight * scales.as_ref().map_or(1.0, |scales| scales[expert]);
        let (before, weight) = if spec.router.weighs_inputs { (weight, 1.0) } else { (1.0, weight) };
        let x: Vec<f64> = of_experts.iter().map(|x| x * before).collect();
        let y = expert_mlp(spec.kind, (gate_up.unwrap(), up_bias), (down.unwrap(), down_bias), &x);
        sum.iter_mut().zip(y).for_each(|(sum, y)| *sum += weight * y);
    }
    sum = normed(&sum, LayerSlot::ExpertOutNorm);
    if let Some(shared) = spec.shared {
        let factor = if shared.gated { sigmoid(matrix(&get(LayerSlot::SharedGate), x)[0]) } else { 1.0 };
        let (gate_up, down) = (get(LayerSlot::SharedGateUp), get(LayerSlot::SharedDown));
        let y = normed(&expert_mlp(spec.kind, (&gate_up, None), (&down, None), x), LayerSlot::SharedOutNorm);
        sum.iter_mut().zip(y).for_each(|(sum, y)| *sum += factor * y);
    }
    sum
}

/// Returns the scores of the chosen experts of a SparseMixer; those of the others are 0.
fn mixed(logits: &[f64], chosen: &[usize], noise: f64) -> Vec<f64> {
    let mut scores = vec![0.0; logits.len()];
    for (earlier, &expert) in chosen.iter().enumerate() {
        let most = logits[expert];
        let mut sum = 0.0;
        for (other, &logit) in
            logits.iter().enumerate().filter(|(other, _)| !chosen[..earlier].contains(other))
        {
            let margin = 2.0 * noise * logit.abs().max(most) - (most - logit);
            if other != expert {
                CLOSEST_CHOICE.set(CLOSEST_CHOICE.get().min(margin.abs()));
            }
            sum += if margin >= 0.0 || other == expert { (logit - most).exp() } else { 0.0 };
        }
        scores[expert] = 1.0 / sum;
    }
    scores
}

/// Returns the chosen experts and their weights.
fn routed(router: &RouterSpec, logits: &[f64], bias: &[f64]) -> Vec<(usize, f64)> {
    let total: f64 = logits.iter().map(|logit| logit.exp()).sum();
    let scores: Vec<f64> = match router.scores {
        RouterScores::Softmax => logits.iter().map(|logit| logit.exp() / total).collect(),
        RouterScores::Sigmoid => logits.iter().map(|logit| sigmoid(*logit)).collect(),
        // The weights follow from the order of the logits.
        RouterScores::SparseMixer { .. } => logits.to_vec(),
    };
    let keys: Vec<f64> = scores.iter().zip(bias).map(|(score, bias)| score + bias).collect();
    let descending = |keys: &[f64]| {
        let mut order: Vec<usize> = (0..keys.len()).collect();
        order.sort_by(|a, b| keys[*b].total_cmp(&keys[*a]));
        order
    };
    // Remembers how close the best key that is not chosen comes to those that are.
    let note_gap = |keys: &[f64], order: &[usize], count: usize| {
        if count < order.len() {
            let gap = keys[order[count - 1]] - keys[order[count]];
            CLOSEST_CHOICE.set(CLOSEST_CHOICE.get().min(gap));
        }
    };
    let mut chosen = descending(&keys);
    if let Some(groups) = router.groups {
        let size = keys.len() / groups.count;
        let score = |group: &[f64]| {
            let best = descending(group);
            match groups.score {
                GroupScore::Best => group[best[0]],
                GroupScore::TwoBest => group[best[0]] + group[best[1]],
            }
        };
        let of_groups: Vec<f64> = keys.chunks(size).map(score).collect();
        let kept = descending(&of_groups);
        note_gap(&of_groups, &kept, groups.chosen);
        let kept = &kept[..groups.chosen];
        chosen.retain(|expert| kept.contains(&(expert / size)));
    }
    note_gap(&keys, &chosen, router.top_k);
    chosen.truncate(router.top_k);
    let scores = match router.scores {
        RouterScores::SparseMixer { noise } => mixed(logits, &chosen, f64::from(noise)),
        _ => scores,
    };
    let sum: f64 = if router.normalize { chosen.iter().map(|expert| scores[*expert]).sum() } else { 1.0 };
    chosen.into_iter().map(|expert| (expert, scores[expert] / sum * f64::from(router.factor))).collect()
}
