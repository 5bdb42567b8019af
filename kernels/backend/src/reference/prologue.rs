//! Head norms, rotation and the cache write.

use super::buffers::{Buf, Kv, Queue, round};
use super::math::normalize;
use crate::{Prologue, QkvLayout, RopeSpec, RopeStyle};

/// Normalizes and rotates the heads of every token of the step, and stores its keys and values.
pub(super) fn run(step: &Queue, qkv: &mut Buf, prologue: &Prologue<'_, Vec<f32>>, kv: &mut Kv) {
    let QkvLayout { heads, kv_heads, head_dim } = prologue.layout;
    for (t, &(position, table)) in step.places.iter().enumerate() {
        let row = qkv.row_mut(t); // [heads + 2 kv_heads, head_dim]
        for (h, head) in row.chunks_exact_mut(head_dim).take(heads + kv_heads).enumerate() {
            if let Some(norms) = prologue.head_norm {
                normalize(head, if h < heads { &norms.q } else { &norms.k }, 0);
            }
            if let Some(rope) = prologue.rope {
                if rope.two_axes {
                    let [first, second] = step.prefixes[table].axes(position);
                    rotate(head, rope, first);
                    rotate(&mut head[rope.rotary_dim..], rope, second);
                } else {
                    rotate(head, rope, position);
                }
            }
            if let Some(scale) = prologue.query_scale.filter(|_| h < heads) {
                head.iter_mut().for_each(|x| *x *= scale[position]);
            }
        }
        for h in 0..kv_heads {
            let blocks = &step.tables[table];
            let (key, value) = (kv.key_at(blocks, position, h), kv.value_at(blocks, position, h));
            let of = |head: usize| &row[head * head_dim..][..head_dim];
            round(of(heads + h), kv.spec.format, &mut kv.k[key..key + head_dim]);
            round(of(heads + kv_heads + h), kv.spec.format, &mut kv.v[value..value + head_dim]);
        }
    }
}

/// Rotates a head (Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding").
pub(super) fn rotate(head: &mut [f32], rope: &RopeSpec<Vec<f32>>, position: usize) {
    let half = rope.rotary_dim / 2;
    for i in 0..half {
        let (a, b) = match rope.style {
            RopeStyle::Half => (i, i + half),
            RopeStyle::Interleaved => (2 * i, 2 * i + 1),
        };
        let cos = f64::from(rope.cos[position * half + i]);
        let sin = f64::from(rope.sin[position * half + i]);
        let (x, y) = (f64::from(head[a]), f64::from(head[b]));
        head[a] = (x * cos - y * sin) as f32;
        head[b] = (y * cos + x * sin) as f32;
    }
}
