//! Recurrent layers in their plainest form: the whole text at once, in double precision.

use millrace_backend::{KeySharing, RecurrentHeads};
use millrace_model::{
    ProjectionFactors, RecurrentLayer, RecurrentRule, RecurrentSlot, ResultPlan, WeightSlot,
};

use super::super::MemoryWeights;
use super::{activate, add, dot, matrix, sigmoid};

/// Returns the output of a recurrent layer for each of `xs`.
pub(super) fn layer(
    layer: &RecurrentLayer,
    weights: &MemoryWeights,
    index: usize,
    xs: &[Vec<f64>],
) -> Vec<Vec<f64>> {
    let get = |slot| weights.values(WeightSlot::Recurrent(index, slot));
    let product = |w: RecurrentSlot, bias: Option<RecurrentSlot>, x: &[f64]| {
        let mut y = matrix(&get(w), x);
        bias.iter().for_each(|bias| add(&mut y, &get(*bias)));
        y
    };
    let in_bias = layer.in_bias.then_some(RecurrentSlot::InBias);
    let mut projected: Vec<Vec<f64>> = xs.iter().map(|x| product(RecurrentSlot::In, in_bias, x)).collect();
    let heads = layer.heads;
    let values = heads.value_cols();
    let ProjectionFactors { query, key, value, gate, rate, out } = layer.factors;
    for x in &mut projected {
        let (queries, rest) = x.split_at_mut(heads.key_cols());
        let (keys, rest) = rest.split_at_mut(heads.key_cols());
        let (values, gates) = rest.split_at_mut(values);
        for (x, factor) in [(queries, query), (keys, key), (values, value), (gates, gate)] {
            x.iter_mut().for_each(|x| *x *= f64::from(factor));
        }
    }
    let mut results = match layer.rule {
        RecurrentRule::Convolution => {
            let products: Vec<Vec<f64>> = projected
                .iter()
                .map(|x| (0..values).map(|c| x[values + c] * x[2 * values + c]).collect())
                .collect();
            let mut convolved = convolve(layer, &get(RecurrentSlot::Conv), &products);
            for (y, x) in convolved.iter_mut().zip(&projected) {
                if layer.conv_bias {
                    add(y, &get(RecurrentSlot::ConvBias));
                }
                y.iter_mut().zip(x).for_each(|(y, gate)| *y *= gate);
            }
            convolved
        }
        RecurrentRule::Delta(act)
        | RecurrentRule::ChannelDelta { act, .. }
        | RecurrentRule::StateSpace { act, .. } => {
            let inputs: Vec<Vec<f64>> = projected.iter().map(|x| x[..heads.cols()].to_vec()).collect();
            let mut mixed = convolve(layer, &get(RecurrentSlot::Conv), &inputs);
            if layer.conv_bias {
                mixed.iter_mut().for_each(|x| add(x, &get(RecurrentSlot::ConvBias)));
            }
            mixed.iter_mut().flatten().for_each(|x| *x = activate(act, *x));
            let by_channel = layer.is_by_channel();
            let (of_heads, bias) = match by_channel {
                true => (RecurrentSlot::Strengths, RecurrentSlot::ChannelBias),
                false => (RecurrentSlot::Rates, RecurrentSlot::StepBias),
            };
            let mut rates: Vec<Vec<f64>> = xs.iter().map(|x| product(of_heads, None, x)).collect();
            rates.iter_mut().flatten().for_each(|x| *x *= f64::from(rate));
            if by_channel {
                for (rates, x) in rates.iter_mut().zip(xs) {
                    let low = product(RecurrentSlot::RateDown, None, x);
                    rates.extend(product(RecurrentSlot::RateUp, None, &low));
                }
            }
            let [decay_log, step_bias] = [RecurrentSlot::DecayLog, bias].map(get);
            let skip = if layer.has_skip() { get(RecurrentSlot::Skip) } else { vec![] };
            let of_head = |head: usize| {
                let speed = decay_log[head].exp();
                if by_channel {
                    let of_features = |t: usize| -> Vec<f64> {
                        let features = head * heads.key_dim..(head + 1) * heads.key_dim;
                        let decay = |k| (-speed * softplus(rates[t][heads.heads + k] + step_bias[k])).exp();
                        features.map(decay).collect()
                    };
                    return delta((heads, head), (&mixed, &rates), of_features);
                }
                let bias = step_bias[head];
                match layer.rule {
                    RecurrentRule::StateSpace { step_limits: (least, most), .. } => {
                        let limits = (f64::from(least), f64::from(most));
                        state_space((heads, head), (&mixed, &rates), (speed, bias, skip[head]), limits)
                    }
                    _ => delta((heads, head), (&mixed, &rates), |t: usize| {
                        let rate = rates[t][heads.heads + head];
                        vec![(-speed * softplus(rate + bias)).exp(); heads.key_dim]
                    }),
                }
            };
            let of_heads: Vec<Vec<Vec<f64>>> = (0..heads.heads).map(of_head).collect();
            (0..xs.len()).map(|t| of_heads.iter().flat_map(|head| head[t].clone()).collect()).collect()
        }
    };
    for ((y, projected), x) in results.iter_mut().zip(&projected).zip(xs) {
        let gate = |y: &mut [f64]| {
            if layer.is_by_channel() {
                let gates = product(RecurrentSlot::GateUp, None, &product(RecurrentSlot::GateDown, None, x));
                y.iter_mut().zip(gates).for_each(|(y, gate)| *y *= sigmoid(gate));
            } else {
                let gates = &projected[heads.cols()..];
                y.iter_mut().zip(gates).for_each(|(y, gate)| *y *= gate * sigmoid(*gate));
            }
        };
        let of_groups = |y: &mut [f64], eps| {
            let (scale, len) = (get(RecurrentSlot::Norm), values / heads.key_heads);
            y.chunks_mut(len).zip(scale.chunks(len)).for_each(|(y, scale)| normalize(y, scale, eps));
        };
        match layer.result {
            ResultPlan::Plain => {}
            ResultPlan::Normed { eps, gated } => {
                let scale = get(RecurrentSlot::Norm);
                y.chunks_mut(heads.value_dim).for_each(|head| normalize(head, &scale, eps));
                if gated {
                    gate(y);
                }
            }
            ResultPlan::GatedGroups { eps } => {
                gate(y);
                of_groups(y, eps);
            }
            ResultPlan::NormedGroups { eps } => {
                of_groups(y, eps);
                gate(y);
            }
            ResultPlan::Gated => gate(y),
        }
    }
    let out_bias = layer.out_bias.then_some(RecurrentSlot::OutBias);
    let of_result = |y: &Vec<f64>| {
        let y = product(RecurrentSlot::Out, out_bias, y);
        y.iter().map(|y| y * f64::from(out)).collect()
    };
    results.iter().map(of_result).collect()
}

/// Convolves each channel by itself. The weights are stored channel by channel.
fn convolve(layer: &RecurrentLayer, weights: &[f64], xs: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let of_channel = |t: usize, channel: usize| {
        let taps = &weights[channel * layer.taps..(channel + 1) * layer.taps];
        // The last tap belongs to the token itself.
        taps.iter().rev().zip(xs[..=t].iter().rev()).map(|(w, x)| w * x[channel]).sum()
    };
    (0..xs.len()).map(|t| (0..layer.channels()).map(|channel| of_channel(t, channel)).collect()).collect()
}

fn normalize(y: &mut [f64], scale: &[f64], eps: f32) {
    let root = (dot(y, y) / y.len() as f64 + f64::from(eps)).sqrt();
    y.iter_mut().zip(scale).for_each(|(y, scale)| *y *= scale / root);
}

/// Returns the query, the key and the values of one value head in a row of inputs.
fn parts(heads: RecurrentHeads, head: usize, x: &[f64]) -> [&[f64]; 3] {
    let RecurrentHeads { key_heads, heads: count, key_dim, value_dim, sharing } = heads;
    let key_head = match sharing {
        KeySharing::Neighbors => head * key_heads / count,
        KeySharing::Strided => head % key_heads,
    };
    [
        &x[key_head * key_dim..][..key_dim],
        &x[heads.key_cols() + key_head * key_dim..][..key_dim],
        &x[2 * heads.key_cols() + head * value_dim..][..value_dim],
    ]
}

fn softplus(x: f64) -> f64 {
    (1.0 + x.exp()).ln()
}

/// Returns the results of one value head by the gated delta rule. `decays` returns the decays of
/// the features of keys at a token.
fn delta(
    (heads, head): (RecurrentHeads, usize),
    (mixed, rates): (&[Vec<f64>], &[Vec<f64>]),
    decays: impl Fn(usize) -> Vec<f64>,
) -> Vec<Vec<f64>> {
    let unit = |x: &[f64]| -> Vec<f64> {
        let length = (dot(x, x) + 1e-6).sqrt();
        x.iter().map(|x| x / length).collect()
    };
    let mut state = vec![vec![0.0; heads.key_dim]; heads.value_dim];
    let mut results = vec![];
    for (t, (x, rates)) in mixed.iter().zip(rates).enumerate() {
        let [query, key, values] = parts(heads, head, x);
        let (query, key) = (unit(query), unit(key));
        let decays = decays(t);
        for (row, value) in state.iter_mut().zip(values) {
            row.iter_mut().zip(&decays).for_each(|(s, decay)| *s *= decay);
            let change = sigmoid(rates[head]) * (value - dot(row, &key));
            row.iter_mut().zip(&key).for_each(|(s, key)| *s += change * key);
        }
        results.push(state.iter().map(|row| dot(row, &query) / (heads.key_dim as f64).sqrt()).collect());
    }
    results
}

/// Returns the results of one value head by the sum over all earlier tokens that the recurrence of
/// a state space stands for.
fn state_space(
    (heads, head): (RecurrentHeads, usize),
    (mixed, rates): (&[Vec<f64>], &[Vec<f64>]),
    (speed, bias, skip): (f64, f64, f64),
    (least, most): (f64, f64),
) -> Vec<Vec<f64>> {
    let steps: Vec<f64> = rates.iter().map(|rates| softplus(rates[head] + bias).clamp(least, most)).collect();
    let of_token = |t: usize| {
        let [query, _, own] = parts(heads, head, &mixed[t]);
        let mut y: Vec<f64> = own.iter().map(|value| skip * value).collect();
        for s in 0..=t {
            let [_, key, values] = parts(heads, head, &mixed[s]);
            let decay = (-speed * steps[s + 1..=t].iter().sum::<f64>()).exp();
            let weight = decay * steps[s] * dot(query, key);
            y.iter_mut().zip(values).for_each(|(y, value)| *y += weight * value);
        }
        y
    };
    (0..mixed.len()).map(of_token).collect()
}
