//! A second decoder in its plainest form: one sequence, no cache, double precision.

#[path = "naive_experts.rs"]
mod experts;
#[path = "naive_recurrent.rs"]
mod recurrent;

use std::cell::Cell;
use std::f64::consts::PI;

use millrace_backend::{Activation, RopeStyle, SequencePrefix};
use millrace_model::{
    AlibiHeads, Attention, DecoderSpec, HeadNormPlan, LatentPlan, LayerSlot, Mlp, NormKind, NormPlace,
    PerLayerEmbedding, Positions, QueryScale, Residual, RopeScaling, RopeTable, SlopeRule, WeightSlot,
};

use super::MemoryWeights;

thread_local! {
    static CLOSEST_CHOICE: Cell<f64> = const { Cell::new(f64::INFINITY) };
}

/// Returns the smallest difference between the scores of a chosen expert and of one that was not,
/// since the last call. Where it is tiny, rounding decides.
pub fn take_closest_choice() -> f64 {
    CLOSEST_CHOICE.replace(f64::INFINITY)
}

/// The keys and values of a layer, `[tokens][kv_heads][head_dim]` each.
type KeysAndValues = [Vec<Vec<Vec<f64>>>; 2];

/// Computes the logits of every position, `[tokens, vocab]`.
pub fn logits(spec: &DecoderSpec, weights: &MemoryWeights, tokens: &[u32]) -> Vec<Vec<f64>> {
    let head = weights.values(if spec.tied_head { WeightSlot::Embedding } else { WeightSlot::Head });
    let of_state = |state: &Vec<f64>| {
        let mut logits = match spec.embedding.width {
            Some(_) => matrix(&head, &matrix(&weights.values(WeightSlot::HeadProjection), state)),
            None => matrix(&head, state),
        };
        if spec.head.bias {
            add(&mut logits, &weights.values(WeightSlot::HeadBias));
        }
        let scaled = logits.iter().map(|logit| logit * f64::from(spec.head.factor));
        scaled.map(|logit| capped(logit, spec.head.soft_cap)).collect()
    };
    states(spec, weights, tokens).iter().map(of_state).collect()
}

/// Computes the states after the final norm of every position, `[tokens, hidden]`.
pub fn states(spec: &DecoderSpec, weights: &MemoryWeights, tokens: &[u32]) -> Vec<Vec<f64>> {
    typed_states(spec, weights, tokens, None)
}

/// Computes the states like [`states`], where tokens from `second_type_start` on have the second
/// type.
pub fn typed_states(
    spec: &DecoderSpec,
    weights: &MemoryWeights,
    tokens: &[u32],
    second_type_start: Option<usize>,
) -> Vec<Vec<f64>> {
    let embedding = weights.values(WeightSlot::Embedding);
    let row = |table: &[f64], row: usize| table[row * spec.hidden..(row + 1) * spec.hidden].to_vec();
    let (_, width) = spec.shape(WeightSlot::Embedding);
    let embedded = |token: u32| {
        let row = &embedding[token as usize * width..(token as usize + 1) * width];
        let row: Vec<f64> = row.iter().map(|x| x * f64::from(spec.embedding.factor)).collect();
        match spec.embedding.width {
            Some(_) => matrix(&weights.values(WeightSlot::EmbeddingProjection), &row),
            None => row,
        }
    };
    let mut xs: Vec<Vec<f64>> = tokens.iter().map(|token| embedded(*token)).collect();
    if let Some(table) = spec.embedding.positions {
        let positions = weights.values(WeightSlot::Positions);
        xs.iter_mut().enumerate().for_each(|(p, x)| add(x, &row(&positions, p + table.first)));
    }
    if let Some(start) = second_type_start {
        let second_type = weights.values(WeightSlot::SecondType);
        xs[start..].iter_mut().for_each(|x| add(x, &second_type));
    }
    if spec.embedding.norm {
        let norm = Norms { spec, weights };
        let places = (WeightSlot::EmbeddingNorm, WeightSlot::EmbeddingNormBias);
        xs.iter_mut().for_each(|x| *x = norm.of(x, places));
    }
    let prefix = if spec.is_bidirectional() { spec.prefix.of(tokens) } else { SequencePrefix::default() };
    let mut caches = Vec::new();
    let inputs: Vec<Vec<f64>> = match spec.per_layer {
        Some(table) => {
            let of_token = |(x, token): (&Vec<f64>, &u32)| layer_inputs((spec, table), weights, x, *token);
            xs.iter().zip(tokens).map(of_token).collect()
        }
        None => vec![vec![]; xs.len()],
    };
    for layer in 0..spec.layers.len() {
        self::layer(spec, weights, (layer, prefix), &mut caches, &mut xs);
        end_layer(spec, weights, (layer, &inputs), &mut xs);
    }
    if spec.norm.place == NormPlace::AfterSums {
        return xs;
    }
    let norm = Norms { spec, weights };
    xs.iter().map(|x| norm.of(x, (WeightSlot::FinalNorm, WeightSlot::FinalNormBias))).collect()
}

/// The norms of a model.
struct Norms<'a> {
    spec: &'a DecoderSpec,
    weights: &'a MemoryWeights,
}

impl Norms<'_> {
    /// Returns the norm with the scale and the bias at these places.
    fn of(&self, x: &[f64], (scale, bias): (WeightSlot, WeightSlot)) -> Vec<f64> {
        let mut y = self.scaled(x, &self.weights.values(scale));
        if let NormKind::Layer { bias: true, .. } = self.spec.norm.kind {
            add(&mut y, &self.weights.values(bias));
        }
        y
    }

    /// Returns the norm with scales of 1.
    fn unscaled(&self, x: &[f64]) -> Vec<f64> {
        let stored = match self.spec.norm.kind {
            NormKind::Rms { add_one: true, .. } => 0.0,
            _ => 1.0,
        };
        self.scaled(x, &vec![stored; x.len()])
    }

    /// Returns the norm with this scale.
    fn scaled(&self, x: &[f64], scale: &[f64]) -> Vec<f64> {
        let n = x.len() as f64;
        let (mean, eps, offset) = match self.spec.norm.kind {
            NormKind::Rms { eps, add_one } => (0.0, eps, if add_one { 1.0 } else { 0.0 }),
            NormKind::Layer { eps, .. } => (x.iter().sum::<f64>() / n, eps, 0.0),
        };
        let root = (x.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n + f64::from(eps)).sqrt();
        x.iter().zip(scale).map(|(v, s)| (v - mean) / root * (s + offset)).collect()
    }
}

fn layer(
    spec: &DecoderSpec,
    weights: &MemoryWeights,
    (index, prefix): (usize, SequencePrefix),
    caches: &mut Vec<KeysAndValues>,
    xs: &mut [Vec<f64>],
) {
    // Layers without keys and values have an empty cache.
    caches.push(KeysAndValues::default());
    use LayerSlot as Slot;
    let at = |slot| WeightSlot::Layer(index, slot);
    let norm = Norms { spec, weights };
    let all = |xs: &[Vec<f64>], (scale, bias): (Slot, Slot)| -> Vec<Vec<f64>> {
        xs.iter().map(|x| norm.of(x, (at(scale), at(bias)))).collect()
    };
    let before = matches!(spec.norm.place, NormPlace::BeforeBranches | NormPlace::AroundBranches);
    let after = matches!(spec.norm.place, NormPlace::AfterBranches | NormPlace::AroundBranches);
    let merge = |xs: &mut [Vec<f64>], branch: Vec<Vec<f64>>, out_norm: Slot| {
        for (x, y) in xs.iter_mut().zip(branch) {
            let y: Vec<f64> = y.iter().map(|y| y * f64::from(spec.branch_factor)).collect();
            let scale = || weights.values(at(out_norm));
            add(x, &if after { norm.scaled(&y, &scale()) } else { y });
        }
    };

    let has_attention = !spec.layers[index].attention.is_none();
    let attention_input = match before && has_attention && !spec.layers[index].reads_residual() {
        true => all(xs, (Slot::AttentionNorm, Slot::AttentionNormBias)),
        false => xs.to_vec(),
    };
    let old = xs.to_vec();
    let restart = |xs: &mut [Vec<f64>], normed: &[Vec<f64>]| {
        if let Residual::Normalized { factor } = spec.residual {
            let scaled = |x: &Vec<f64>| x.iter().map(|x| x * f64::from(factor)).collect();
            xs.iter_mut().zip(normed).for_each(|(x, normed)| *x = scaled(normed));
        }
    };
    if has_attention {
        restart(xs, &attention_input);
        let branch = attention(spec, weights, (index, prefix), caches, &attention_input);
        merge(xs, branch, Slot::AttentionOutNorm);
    }
    if spec.layers[index].mlp.is_none() {
        return;
    }
    let mlp_norm = (Slot::MlpNorm, Slot::MlpNormBias);
    let of_sums = spec.norm.place == NormPlace::AfterSums;
    if of_sums {
        xs.clone_from_slice(&all(xs, mlp_norm));
    }
    let mlp_input = match spec.residual {
        Residual::Parallel { has_mlp_norm: false } => attention_input,
        Residual::Parallel { has_mlp_norm: true } => all(&old, mlp_norm),
        Residual::Sequential | Residual::Normalized { .. } if before => all(xs, mlp_norm),
        Residual::Sequential | Residual::Normalized { .. } => xs.to_vec(),
    };
    let branch =
        mlp_input.iter().zip(&*xs).map(|(x, stream)| mlp(spec, weights, index, (x, stream))).collect();
    restart(xs, &mlp_input);
    merge(xs, branch, Slot::MlpOutNorm);
    if of_sums {
        xs.clone_from_slice(&all(xs, (Slot::MlpOutNorm, Slot::MlpOutNormBias)));
    }
}

/// Returns what all layers read of a token whose embedding is `x`, one layer after the other.
fn layer_inputs(
    (spec, table): (&DecoderSpec, PerLayerEmbedding),
    weights: &MemoryWeights,
    x: &[f64],
    token: u32,
) -> Vec<f64> {
    let (norms, cols) = (Norms { spec, weights }, table.width * spec.layers.len());
    let scale = weights.values(WeightSlot::PerLayerProjectionNorm);
    let projected = matrix(&weights.values(WeightSlot::PerLayerProjection), x);
    let projected: Vec<f64> = projected.iter().map(|y| y / (spec.hidden as f64).sqrt()).collect();
    let rows = weights.values(WeightSlot::PerLayerEmbedding);
    let row = &rows[token as usize * cols..][..cols];
    let normed = projected.chunks(table.width).flat_map(|part| norms.scaled(part, &scale));
    normed.zip(row).map(|(y, own)| (y + own * (table.width as f64).sqrt()) / 2f64.sqrt()).collect()
}

/// Computes what follows after the branches of a layer.
fn end_layer(
    spec: &DecoderSpec,
    weights: &MemoryWeights,
    (index, inputs): (usize, &[Vec<f64>]),
    xs: &mut [Vec<f64>],
) {
    let get = |slot| weights.values(WeightSlot::Layer(index, slot));
    if let Some(PerLayerEmbedding { width, act, .. }) = spec.per_layer {
        for (x, input) in xs.iter_mut().zip(inputs) {
            let gates = matrix(&get(LayerSlot::InputGate), x);
            let own = &input[index * width..][..width];
            let gated: Vec<f64> =
                gates.iter().zip(own).map(|(gate, own)| activate(act, *gate) * own).collect();
            let y = matrix(&get(LayerSlot::InputProjection), &gated);
            add(x, &Norms { spec, weights }.scaled(&y, &get(LayerSlot::InputNorm)));
        }
    }
    if spec.layer_scalars {
        let scalar = get(LayerSlot::Scalar)[0];
        xs.iter_mut().flatten().for_each(|x| *x *= scalar);
    }
}

/// Returns the output of attention for each of `xs`.
fn attention(
    spec: &DecoderSpec,
    weights: &MemoryWeights,
    (index, prefix): (usize, SequencePrefix),
    caches: &mut [KeysAndValues],
    xs: &[Vec<f64>],
) -> Vec<Vec<f64>> {
    let attention = &spec.layers[index].attention;
    let of_recurrence = attention.recurrent().map(|layer| recurrent::layer(layer, weights, index, xs));
    let of_heads = attention.heads().map(|heads| {
        let mut results = softmax_attention(spec, weights, (index, prefix), caches, xs);
        results.iter_mut().flatten().for_each(|y| *y *= f64::from(heads.out_factor));
        results
    });
    match (of_heads, of_recurrence) {
        (Some(mut results), Some(beside)) => {
            results.iter_mut().zip(beside).for_each(|(y, beside)| add(y, &beside));
            results
        }
        (of_heads, of_recurrence) => of_heads.or(of_recurrence).expect("the layer has attention"),
    }
}

/// Returns the output of the heads of attention for each of `xs`.
fn softmax_attention(
    spec: &DecoderSpec,
    weights: &MemoryWeights,
    (index, prefix): (usize, SequencePrefix),
    caches: &mut [KeysAndValues],
    xs: &[Vec<f64>],
) -> Vec<Vec<f64>> {
    let attention = &spec.layers[index].attention;
    let layer = attention.heads().expect("the layer has softmax attention");
    let get = |slot| weights.values(WeightSlot::Layer(index, slot));
    if let Some(plan) = &layer.latent {
        return latent_attention(spec, weights, (index, plan), xs);
    }
    let (d, heads, kv_heads) = (layer.layout.head_dim, layer.layout.heads, layer.layout.kv_heads);
    let (qkv, out) = (get(LayerSlot::Qkv), get(LayerSlot::Out));
    let norms = Norms { spec, weights };
    let clip = |head: &mut Vec<f64>| {
        let bound = layer.clip.map_or(f64::INFINITY, f64::from);
        head.iter_mut().for_each(|x| *x = x.clamp(-bound, bound));
    };
    // A layer that reads the cache of another one has no keys and values of its own.
    let own = if layer.kv_source.is_some() { 0 } else { kv_heads };

    let (mut queries, mut keys, mut values) = (vec![], vec![], vec![]);
    for (position, x) in xs.iter().enumerate() {
        let mut y = matrix(&qkv, x);
        if layer.qkv_bias {
            add(&mut y, &get(LayerSlot::QkvBias));
        }
        if layer.head_norm == HeadNormPlan::AllHeads {
            let (q, rest) = y.split_at_mut(heads * d);
            q.copy_from_slice(&norms.scaled(q, &get(LayerSlot::QHeadsNorm)));
            if own > 0 {
                let k = &mut rest[..own * d];
                k.copy_from_slice(&norms.scaled(k, &get(LayerSlot::KHeadsNorm)));
            }
        }
        let mut split: Vec<Vec<f64>> = y.chunks(d).map(<[f64]>::to_vec).collect();
        let shared_scale = |h| get(if h < heads { LayerSlot::QNorm } else { LayerSlot::KNorm });
        for (h, head) in split[..heads + own].iter_mut().enumerate() {
            match layer.head_norm {
                HeadNormPlan::None | HeadNormPlan::AllHeads | HeadNormPlan::SharedAfterRotation => {}
                HeadNormPlan::Unscaled => *head = norms.unscaled(head),
                HeadNormPlan::Shared => *head = norms.scaled(head, &shared_scale(h)),
                HeadNormPlan::SharedWithBias => {
                    let bias = if h < heads { LayerSlot::QNormBias } else { LayerSlot::KNormBias };
                    *head = norms.scaled(head, &shared_scale(h));
                    add(head, &get(bias));
                }
                HeadNormPlan::PerHead => {
                    let (slot, own) = if h < heads {
                        (LayerSlot::QHeadsNorm, h)
                    } else {
                        (LayerSlot::KHeadsNorm, h - heads)
                    };
                    *head = norms.scaled(head, &get(slot)[own * d..(own + 1) * d]);
                }
            }
            clip(head);
            if let Positions::Rotary { table } = layer.positions {
                let rope = &spec.ropes[table];
                if rope.two_axes {
                    // The tokens behind the prefix are counted on the second axis.
                    let behind = (position + 1).saturating_sub(prefix.len);
                    let (first, second) = head.split_at_mut(rope.rotary_dim);
                    rotate(rope, if behind > 0 { prefix.anchor } else { position }, first);
                    rotate(rope, behind, second);
                } else {
                    rotate(rope, position, head);
                }
            }
            if layer.head_norm == HeadNormPlan::SharedAfterRotation {
                *head = norms.scaled(head, &shared_scale(h));
            }
            if let Some(scale) = &spec.query_scale
                && layer.scales_queries
                && h < heads
            {
                let scale = query_factor(scale, position);
                head.iter_mut().for_each(|x| *x *= scale);
            }
        }
        let of_values = split.split_off(heads + own);
        let mut of_values = match layer.value_norm {
            true => of_values.iter().map(|head| norms.unscaled(head)).collect(),
            false => of_values,
        };
        of_values.iter_mut().for_each(clip);
        values.push(of_values);
        keys.push(split.split_off(heads));
        queries.push(split);
    }
    if layer.kv_source.is_none() {
        caches[index] = [keys, values];
    }
    let [keys, values] = &caches[layer.kv_source.unwrap_or(index)];

    let of_query = |i: usize| {
        let mut joined = vec![];
        for (h, query) in queries[i].iter().enumerate() {
            let kv_head = h * kv_heads / heads;
            let seen: Vec<usize> = (0..if layer.bidirectional { prefix.len.max(i + 1) } else { i + 1 })
                .filter(|&j| match *attention {
                    Attention::Sliding { window, .. } => j + window > i && j < i + window,
                    Attention::Chunked { size, .. } => j / size == i / size,
                    _ => true,
                })
                .collect();
            let score = |j: usize| {
                let score = dot(query, &keys[j][kv_head]) * f64::from(layer.score_scale);
                let bias = match layer.positions {
                    Positions::Linear(alibi) => slope(&alibi, h) * (i as f64 - j as f64),
                    Positions::Distance(biased) => {
                        let place = bucket(i, j) * biased.all + biased.first + h;
                        -weights.values(WeightSlot::DistanceBias)[place]
                    }
                    Positions::None | Positions::Rotary { .. } => 0.0,
                };
                capped(score, layer.score_cap) - bias
            };
            let scores: Vec<f64> = seen.iter().map(|j| score(*j)).collect();
            let sink = if layer.sinks { get(LayerSlot::Sinks)[h].exp() } else { 0.0 };
            let total = scores.iter().map(|s| s.exp()).sum::<f64>() + sink;
            joined.extend((0..d).map(|f| -> f64 {
                seen.iter().zip(&scores).map(|(j, s)| s.exp() / total * values[*j][kv_head][f]).sum()
            }));
        }
        if layer.out_gate {
            let gates = matrix(&get(LayerSlot::OutGate), &xs[i]);
            joined.iter_mut().zip(gates).for_each(|(y, gate)| *y *= sigmoid(gate));
        }
        let mut y = matrix(&out, &joined);
        if layer.out_bias {
            add(&mut y, &get(LayerSlot::OutBias));
        }
        y
    };
    (0..xs.len()).map(of_query).collect()
}

/// Returns the factor on the queries of a position.
fn query_factor(scale: &QueryScale, position: usize) -> f64 {
    let &QueryScale { beta, interval, offset } = scale;
    1.0 + beta * (1.0 + ((position + offset) as f64 / interval).trunc()).ln()
}

/// Returns the output of latent attention for each of `xs`. Keys and values of all heads are
/// computed from the latents, as in training.
fn latent_attention(
    spec: &DecoderSpec,
    weights: &MemoryWeights,
    (index, plan): (usize, &LatentPlan),
    xs: &[Vec<f64>],
) -> Vec<Vec<f64>> {
    let layer = spec.layers[index].attention.heads().expect("latent attention has heads");
    let get = |slot| weights.values(WeightSlot::Layer(index, slot));
    let Positions::Rotary { table } = layer.positions else { panic!("latent attention is rotated") };
    let normed = |x: &[f64], scale: &[f64]| -> Vec<f64> {
        let square = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
        let root = (square + f64::from(plan.norm_eps)).sqrt();
        x.iter().zip(scale).map(|(v, s)| v / root * s).collect()
    };
    let (plain, of_query, of_head) = (plan.plain_dim, plan.query_dim(), plan.plain_dim + plan.value_dim);
    let (mut queries, mut keys, mut values) = (vec![], vec![], vec![]);
    for (position, x) in xs.iter().enumerate() {
        let projected = match plan.query_rank {
            None => matrix(&get(LayerSlot::LatentQuery), x),
            Some(_) => {
                let low = matrix(&get(LayerSlot::QueryDown), x);
                matrix(&get(LayerSlot::QueryUp), &normed(&low, &get(LayerSlot::QueryDownNorm)))
            }
        };
        let rotated = |features: &[f64]| {
            let mut features = features.to_vec();
            rotate(&spec.ropes[table], position, &mut features);
            features
        };
        let scale = layer.scales_queries.then_some(spec.query_scale).flatten();
        let scale = scale.map_or(1.0, |scale| query_factor(&scale, position));
        let of_token: Vec<Vec<f64>> = projected
            .chunks(of_query)
            .map(|head| [head[..plain].to_vec(), rotated(&head[plain..])].concat())
            .map(|head| head.iter().map(|x| x * scale).collect())
            .collect();
        queries.push(of_token);
        let row = matrix(&get(LayerSlot::LatentDown), x);
        let (shared, latent) = row.split_at(plan.rotary_dim);
        let shared = rotated(shared);
        let up = matrix(&get(LayerSlot::LatentUp), &normed(latent, &get(LayerSlot::LatentNorm)));
        let heads = up.chunks(of_head);
        keys.push(
            heads.clone().map(|head| [head[..plain].to_vec(), shared.clone()].concat()).collect::<Vec<_>>(),
        );
        values.push(heads.map(|head| head[plain..].to_vec()).collect::<Vec<_>>());
    }
    let out = get(LayerSlot::Out);
    let of_position = |i: usize| {
        let mut joined = vec![];
        for h in 0..layer.layout.heads {
            let scores: Vec<f64> =
                (0..=i).map(|j| dot(&queries[i][h], &keys[j][h]) * f64::from(layer.score_scale)).collect();
            let total: f64 = scores.iter().map(|s| s.exp()).sum();
            joined.extend((0..plan.value_dim).map(|f| -> f64 {
                scores.iter().enumerate().map(|(j, s)| s.exp() / total * values[j][h][f]).sum()
            }));
        }
        let mut y = matrix(&out, &joined);
        if layer.out_bias {
            add(&mut y, &get(LayerSlot::OutBias));
        }
        y
    };
    (0..xs.len()).map(of_position).collect()
}

/// Returns the slope of a head: the numbers of a geometric sequence, in the order of the rule.
fn slope(alibi: &AlibiHeads, head: usize) -> f64 {
    let powers = |n: usize, max: f64| (1..=n).map(move |i| 2f64.powf(-max * i as f64 / n as f64));
    let (mut lower, mut upper) = (1, 1);
    while lower * 2 <= alibi.all {
        lower *= 2;
    }
    while upper < alibi.all {
        upper *= 2;
    }
    let slopes: Vec<f64> = match alibi.rule {
        SlopeRule::Below { factor } => {
            let all = powers(lower, 8.0).chain(powers(2 * lower, 8.0).step_by(2));
            all.map(|slope| slope * f64::from(factor)).collect()
        }
        SlopeRule::Above { max } => {
            let all: Vec<f64> = powers(upper, f64::from(max)).collect();
            if upper == alibi.all {
                all
            } else {
                let (even, odd) = (all.iter().step_by(2), all.iter().skip(1).step_by(2));
                odd.chain(even).copied().collect()
            }
        }
    };
    slopes[alibi.first + head]
}

/// Returns the bucket of the distance of a query and a key, by its definition in T5.
fn bucket(query: usize, key: usize) -> usize {
    let n = query.abs_diff(key);
    let far = 8.0 + (n as f64 / 8.0).ln() / 16f64.ln() * 8.0;
    let place = if n < 8 { n } else { (far + 1e-9) as usize };
    place.min(15) + if key > query { 16 } else { 0 }
}

fn capped(x: f64, cap: Option<f32>) -> f64 {
    cap.map_or(x, |cap| f64::from(cap) * (x / f64::from(cap)).tanh())
}

/// Returns the output of the MLP for one input. Experts may read the residual stream instead.
fn mlp(spec: &DecoderSpec, weights: &MemoryWeights, index: usize, (x, stream): (&[f64], &[f64])) -> Vec<f64> {
    let get = |slot| weights.values(WeightSlot::Layer(index, slot));
    let layer = &spec.layers[index].mlp;
    let (mlp, slot, bias) = match layer {
        Mlp::Gated(mlp) => (mlp, LayerSlot::GateUp, LayerSlot::GateUpBias),
        Mlp::Plain(mlp) => (mlp, LayerSlot::Up, LayerSlot::UpBias),
        Mlp::Experts(experts) => {
            return experts::mixture((experts, Norms { spec, weights }), get, (x, stream));
        }
        Mlp::None => panic!("the layer has an MLP"),
    };
    let mut y = matrix(&get(slot), x);
    if mlp.up_bias {
        add(&mut y, &get(bias));
    }
    y.iter_mut().for_each(|y| *y *= f64::from(mlp.up_factor));
    let activated: Vec<f64> = if layer.is_gated() {
        let (gate, up) = y.split_at(mlp.width);
        gate.iter().zip(up).map(|(g, u)| experts::product(mlp.gating(), *g, *u)).collect()
    } else {
        y.iter().map(|u| if mlp.xielu { xielu(&get, *u) } else { activate(mlp.act, *u) }).collect()
    };
    let mut y = matrix(&get(LayerSlot::Down), &activated);
    if mlp.down_bias {
        add(&mut y, &get(LayerSlot::DownBias));
    }
    y.iter().map(|y| y * f64::from(mlp.out_factor)).collect()
}

/// Returns xIELU with the numbers of a layer.
fn xielu(get: &impl Fn(LayerSlot) -> Vec<f64>, x: f64) -> f64 {
    let number = |slot| get(slot)[0];
    let softplus = |slot| (1.0 + number(slot).exp()).ln();
    let linear = number(LayerSlot::ActLinear);
    if x > 0.0 {
        softplus(LayerSlot::ActPositive) * x * x + linear * x
    } else {
        let curve = x.min(number(LayerSlot::ActLimit)).exp() - 1.0 - x;
        (linear + softplus(LayerSlot::ActNegative)) * curve + linear * x
    }
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn activate(act: Activation, x: f64) -> f64 {
    match act {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::Gelu => x * (0.5 + normal_integral(x)),
        Activation::GeluTanh => 0.5 * x * (1.0 + ((2.0 / PI).sqrt() * (x + 0.044715 * x * x * x)).tanh()),
        Activation::Relu => positive(x),
        Activation::ReluSquared => positive(x) * positive(x),
        Activation::Xielu(_) => panic!("its numbers are weights"),
    }
}

fn positive(x: f64) -> f64 {
    if x > 0.0 { x } else { 0.0 }
}

/// Integrates the density of the normal distribution from 0 to `x` by Simpson's rule.
fn normal_integral(x: f64) -> f64 {
    const STEPS: usize = 200;
    let step = x / STEPS as f64;
    let density = |i: usize| (-(i as f64 * step).powi(2) / 2.0).exp() / (2.0 * PI).sqrt();
    let weight = |i: usize| {
        if i == 0 || i == STEPS {
            1.0
        } else if i % 2 == 1 {
            4.0
        } else {
            2.0
        }
    };
    (0..=STEPS).map(|i| weight(i) * density(i)).sum::<f64>() * step / 3.0
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
        RopeScaling::Proportional { pairs, .. } if pair >= pairs => (0.0, 1.0),
        RopeScaling::Proportional { factor, .. } => (plain / factor, 1.0),
        RopeScaling::Divided { ref divisors } => (plain / divisors[pair], 1.0),
        RopeScaling::LongRope { ref short, attention_factor, .. } => (plain / short[pair], attention_factor),
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

fn matrix(w: &[f64], x: &[f64]) -> Vec<f64> {
    w.chunks(x.len()).map(|row| dot(row, x)).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn add(x: &mut [f64], y: &[f64]) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
}
