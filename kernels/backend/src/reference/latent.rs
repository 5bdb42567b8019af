//! Attention over latents, and the products of single heads around it.

use millrace_numbers::{DType, Part};

use super::buffers::{Buf, Kv, Queue, round};
use super::math::dot;
use super::prologue::rotate;
use crate::{HeadRows, LatentPrologue, LatentSpec, Result};

/// A weight matrix of each head of [`Reference`](super::Reference).
#[derive(Debug, Clone)]
pub struct HeadMatrices {
    inputs: usize,
    outputs: usize,
    data: Vec<f32>, // [heads, inputs, outputs]
}

impl HeadMatrices {
    pub(super) fn new(heads: &[Vec<Part>], rows: HeadRows, dtype: DType) -> Result<HeadMatrices> {
        let (mut data, inputs, outputs) = rows.arrange(heads)?;
        data.iter_mut().for_each(|w| *w = dtype.round(*w));
        Ok(HeadMatrices { inputs, outputs, data })
    }
}

/// `out[t, h] = [x[t, h, inputs..] | w[h] · x[t, h, ..inputs]]`.
pub(super) fn linear_heads(n: usize, x: &Buf, w: &HeadMatrices, out: &mut Buf) {
    let &HeadMatrices { inputs, outputs, ref data } = w;
    let heads = data.len() / (inputs * outputs);
    let (from, to) = (x.cols / heads, out.cols / heads);
    for t in 0..n {
        for (h, matrix) in data.chunks_exact(inputs * outputs).enumerate() {
            let (multiplied, carried) = x.row(t)[h * from..(h + 1) * from].split_at(inputs);
            let out = &mut out.row_mut(t)[h * to..(h + 1) * to];
            out[..carried.len()].copy_from_slice(carried);
            for (o, out) in out[carried.len()..].iter_mut().enumerate() {
                let weights: Vec<f32> = matrix.iter().skip(o).step_by(outputs).copied().collect();
                *out = dot(multiplied, &weights) as f32;
            }
        }
    }
}

/// Rotates queries and latents, and stores the latents.
pub(super) fn prologue(
    step: &Queue,
    queries: &mut Buf,
    latents: &mut Buf,
    prologue: &LatentPrologue<'_, Vec<f32>>,
    kv: &mut Kv,
) {
    let &LatentPrologue { rope, query_scale } = prologue;
    let dim = kv.spec.key_dim;
    for (t, &(position, table)) in step.places.iter().enumerate() {
        queries.row_mut(t).chunks_exact_mut(dim).for_each(|head| rotate(head, rope, position));
        if let Some(scale) = query_scale {
            queries.row_mut(t).iter_mut().for_each(|x| *x *= scale[position]);
        }
        rotate(latents.row_mut(t), rope, position);
        let at = kv.key_at(&step.tables[table], position, 0);
        round(latents.row(t), kv.spec.format, &mut kv.k[at..at + dim]);
    }
}

/// Writes the attention of every token of the step to `out`, `[n, heads * value_dim]`.
pub(super) fn attention(step: &Queue, (queries, kv): (&Buf, &Kv), spec: &LatentSpec, out: &mut Buf) {
    let &LatentSpec { heads, key_dim, value_dim, scale } = spec;
    for (t, &(position, table)) in step.places.iter().enumerate() {
        let rows: Vec<&[f32]> =
            (0..=position).map(|j| &kv.k[kv.key_at(&step.tables[table], j, 0)..][..key_dim]).collect();
        for h in 0..heads {
            let query = &queries.row(t)[h * key_dim..(h + 1) * key_dim];
            let scores: Vec<f64> = rows.iter().map(|row| f64::from(scale) * dot(query, row)).collect();
            let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
            let total: f64 = weights.iter().sum();
            for d in 0..value_dim {
                let feature = key_dim - value_dim + d;
                let value: f64 = weights.iter().zip(&rows).map(|(w, row)| w * f64::from(row[feature])).sum();
                out.row_mut(t)[h * value_dim + d] = (value / total) as f32;
            }
        }
    }
}
