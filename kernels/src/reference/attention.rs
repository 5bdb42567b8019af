//! Softmax attention over the cached keys.

use super::buffers::{Buf, Kv, Queue};
use super::math::dot;
use crate::backend::{AttentionSpec, QkvLayout};

/// Writes the attention of every token of the step to `out`, `[n, heads * head_dim]`.
pub(super) fn run(step: &Queue, qkv: &Buf, kv: &Kv, spec: &AttentionSpec, out: &mut Buf) {
    let QkvLayout { heads, kv_heads, head_dim } = spec.layout;
    for (t, &(position, table)) in step.places.iter().enumerate() {
        let blocks = &step.tables[table];
        let first = spec.window.map_or(0, |window| (position + 1).saturating_sub(window));
        for h in 0..heads {
            let kv_head = h / (heads / kv_heads);
            let query = &qkv.row(t)[h * head_dim..(h + 1) * head_dim];
            let scores: Vec<f64> = (first..=position)
                .map(|j| {
                    let at = kv.key_at(blocks, j, kv_head);
                    f64::from(spec.scale) * dot(query, &kv.k[at..at + head_dim])
                })
                .collect();
            let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
            let total: f64 = weights.iter().sum();
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
