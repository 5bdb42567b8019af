//! A second decoder in its plainest form: one sequence, no cache, double precision.

use std::f64::consts::PI;

use millrace_kernels::RopeStyle;
use millrace_shard::model::{
    DecoderSpec, LayerSlot, Mlp, NormKind, Positions, RopeScaling, RopeTable, WeightSlot,
};

use super::MemoryWeights;

/// Computes the logits of every position, `[tokens, vocab]`.
pub fn logits(spec: &DecoderSpec, weights: &MemoryWeights, tokens: &[u32]) -> Vec<Vec<f64>> {
    let head = weights.values(if spec.tied_head { WeightSlot::Embedding } else { WeightSlot::Head });
    states(spec, weights, tokens).iter().map(|state| matrix(&head, state)).collect()
}

/// Computes the states after the final norm of every position, `[tokens, hidden]`.
pub fn states(spec: &DecoderSpec, weights: &MemoryWeights, tokens: &[u32]) -> Vec<Vec<f64>> {
    let embedding = weights.values(WeightSlot::Embedding);
    let mut xs: Vec<Vec<f64>> = tokens
        .iter()
        .map(|t| (0..spec.hidden).map(|i| embedding[*t as usize * spec.hidden + i]).collect())
        .collect();
    for layer in 0..spec.layers.len() {
        attention(spec, weights, layer, &mut xs);
        mlp(spec, weights, layer, &mut xs);
    }
    let norm = weights.values(WeightSlot::FinalNorm);
    xs.iter().map(|x| rms(x, &norm, eps(spec))).collect()
}

fn eps(spec: &DecoderSpec) -> f32 {
    let NormKind::Rms { eps } = spec.norm.kind;
    eps
}

fn attention(spec: &DecoderSpec, weights: &MemoryWeights, index: usize, xs: &mut [Vec<f64>]) {
    let (attention, eps) = (&spec.layers[index].attention, eps(spec));
    let layer = attention.heads();
    let get = |slot| weights.values(WeightSlot::Layer(index, slot));
    let (d, heads, kv_heads) = (layer.layout.head_dim, layer.layout.heads, layer.layout.kv_heads);
    let (norm, qkv, out) = (get(LayerSlot::AttentionNorm), get(LayerSlot::Qkv), get(LayerSlot::Out));

    let (mut queries, mut keys, mut values) = (vec![], vec![], vec![]);
    for (position, x) in xs.iter().enumerate() {
        let mut y = matrix(&qkv, &rms(x, &norm, eps));
        if layer.qkv_bias {
            add(&mut y, &get(LayerSlot::QkvBias));
        }
        let mut split: Vec<Vec<f64>> = y.chunks(d).map(<[f64]>::to_vec).collect();
        for (h, head) in split[..heads + kv_heads].iter_mut().enumerate() {
            if layer.head_norm {
                let scale = get(if h < heads { LayerSlot::QNorm } else { LayerSlot::KNorm });
                *head = rms(head, &scale, eps);
            }
            if let Positions::Rotary { table } = layer.positions {
                rotate(&spec.ropes[table], position, head);
            }
        }
        values.push(split.split_off(heads + kv_heads));
        keys.push(split.split_off(heads));
        queries.push(split);
    }

    for (i, x) in xs.iter_mut().enumerate() {
        let mut joined = vec![];
        for (h, query) in queries[i].iter().enumerate() {
            let kv_head = h * kv_heads / heads;
            let seen: Vec<usize> =
                (0..=i).filter(|j| attention.window().is_none_or(|window| j + window > i)).collect();
            let scores: Vec<f64> =
                seen.iter().map(|j| dot(query, &keys[*j][kv_head]) * f64::from(layer.score_scale)).collect();
            let total: f64 = scores.iter().map(|s| s.exp()).sum();
            joined.extend((0..d).map(|f| -> f64 {
                seen.iter().zip(&scores).map(|(j, s)| s.exp() / total * values[*j][kv_head][f]).sum()
            }));
        }
        add(x, &matrix(&out, &joined));
        if layer.out_bias {
            add(x, &get(LayerSlot::OutBias));
        }
    }
}

fn mlp(spec: &DecoderSpec, weights: &MemoryWeights, index: usize, xs: &mut [Vec<f64>]) {
    let Mlp::Gated(mlp) = &spec.layers[index].mlp;
    let get = |slot| weights.values(WeightSlot::Layer(index, slot));
    let (norm, gate_up, down) = (get(LayerSlot::MlpNorm), get(LayerSlot::GateUp), get(LayerSlot::Down));
    for x in xs {
        let mut y = matrix(&gate_up, &rms(x, &norm, eps(spec)));
        if mlp.up_bias {
            add(&mut y, &get(LayerSlot::GateUpBias));
        }
        let (gate, up) = y.split_at(mlp.width);
        let product: Vec<f64> = gate.iter().zip(up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
        add(x, &matrix(&down, &product));
        if mlp.down_bias {
            add(x, &get(LayerSlot::DownBias));
        }
    }
}

fn rotate(table: &RopeTable, position: usize, head: &mut [f64]) {
    let d = table.rotary_dim;
    for pair in 0..d / 2 {
        let (a, b) = match table.style {
            RopeStyle::Half => (pair, pair + d / 2),
            RopeStyle::Interleaved => (2 * pair, 2 * pair + 1),
        };
        let (angle, length) = rotation(table, pair, position);
        let (x, y) = (head[a], head[b]);
        head[a] = length * (x * angle.cos() - y * angle.sin());
        head[b] = length * (y * angle.cos() + x * angle.sin());
    }
}

/// Returns the angle of a pair at a position, and the factor on its length.
fn rotation(table: &RopeTable, pair: usize, position: usize) -> (f64, f64) {
    let (d, p, i) = (table.rotary_dim as f64, position as f64, pair as f64);
    let wavelength = 2.0 * PI * table.theta.powf(2.0 * i / d);
    let plain = 2.0 * PI * p / wavelength;
    match table.scaling {
        RopeScaling::Default => (plain, 1.0),
        RopeScaling::Linear { factor } => (plain / factor, 1.0),
        RopeScaling::Dynamic { .. } if pair == 0 => (p, 1.0),
        RopeScaling::Dynamic { factor, original } => {
            let length = (p + 1.0).max(original as f64);
            let growth = factor * length / original as f64 - factor + 1.0;
            // (theta * growth ^ (d / (d - 2))) ^ (-2i / d), expanded.
            (plain * growth.powf(-2.0 * i / (d - 2.0)), 1.0)
        }
        RopeScaling::Llama3 { factor, low, high, original } => {
            let turns = original / wavelength;
            let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
            (plain * kept + plain / factor * (1.0 - kept), 1.0)
        }
        RopeScaling::Yarn { factor, original, beta_fast, beta_slow, truncate, attention_factor } => {
            let edge = |turns: f64| d / 2.0 * (original / (turns * 2.0 * PI)).ln() / table.theta.ln();
            let (mut from, mut to) = (edge(beta_fast), edge(beta_slow));
            if truncate {
                from = from.floor();
                to = to.ceil();
            }
            from = from.max(0.0);
            to = to.min(d - 1.0);
            if from == to {
                to = from + 0.001;
            }
            let ramp = ((i - from) / (to - from)).clamp(0.0, 1.0);
            (plain * (1.0 - ramp) + plain / factor * ramp, attention_factor)
        }
    }
}

fn rms(x: &[f64], scale: &[f64], eps: f32) -> Vec<f64> {
    let root = (x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64 + f64::from(eps)).sqrt();
    x.iter().zip(scale).map(|(v, s)| v / root * s).collect()
}

fn matrix(w: &[f64], x: &[f64]) -> Vec<f64> {
    w.chunks(x.len()).map(|row| dot(row, x)).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn add(x: &mut [f64], y: &[f64]) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
}
