//! Softmax attention over the cached keys.

use super::buffers::{Buf, Kv, Queue};
use super::math::{dot, soft_cap};
use crate::{AttentionSpec, DistanceBias, QkvLayout, ScoreTerms};

/// Writes the attention of every token of the step to `out`, `[n, heads * head_dim]`.
pub(super) fn run(
    step: &Queue,
    (qkv, kv): (&Buf, &Kv),
    spec: &AttentionSpec,
    terms: ScoreTerms<'_, Vec<f32>>,
    out: &mut Buf,
) {
    let QkvLayout { heads, kv_heads, head_dim } = spec.layout;
    for (t, &(position, table)) in step.places.iter().enumerate() {
        let blocks = &step.tables[table];
        let first = spec.window.map_or(0, |window| window.first(position));
        let prefix = step.prefixes[table].len;
        let end = if spec.bidirectional { prefix.max(position + 1) } else { position + 1 };
        let end = spec.window.map_or(end, |window| window.end(position, end));
        for h in 0..heads {
            let kv_head = h / (heads / kv_heads);
            let query = &qkv.row(t)[h * head_dim..(h + 1) * head_dim];
            let scores: Vec<f64> = (first..end)
                .map(|j| {
                    let at = kv.key_at(blocks, j, kv_head);
                    let score = f64::from(spec.scale) * dot(query, &kv.k[at..at + head_dim]);
                    let score = spec.soft_cap.map_or(score, |cap| soft_cap(score, cap));
                    let by_distance =
                        |bias: DistanceBias<'_, Vec<f32>>| bias.table[bias.place(h, position, j)];
                    let score = score + f64::from(terms.distance.map_or(0.0, by_distance));
                    let distance = position as f64 - j as f64;
                    score - terms.alibi.map_or(0.0, |slopes| f64::from(slopes[h]) * distance)
                })
                .collect();
            let sink = terms.sinks.map_or(f64::NEG_INFINITY, |sinks| f64::from(sinks[h]));
            let max = scores.iter().copied().fold(sink, f64::max);
            let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
            let total = weights.iter().sum::<f64>() + (sink - max).exp();
            for d in 0..head_dim {
                let value: f64 = weights
                    .iter()
                    .enumerate()
                    .map(|(j, w)| w * f64::from(kv.v[kv.value_at(blocks, first + j, kv_head) + d]))
                    .sum();
                out.row_mut(t)[h * head_dim + d] = (value / total) as f32;
            }
        }
    }
}
