//! The numeric reference: every operation as its definition reads, one element at a time.
//!
//! Sums run in f64 and are rounded once, so that any order of summation on a device can be judged against it. Weights
//! and cached keys and values are rounded to the type asked for, but held widened. Slow: meant for tests and for trying
//! out a decoder, never for serving.

mod attention;
mod prologue;

use std::convert::Infallible;

use crate::backend::{
    Activation, AttentionSpec, Backend, HostMemory, KvSpec, MatrixFormat, Norm, ProductShape, Prologue,
    StepInput, StepSize,
};
use crate::sampling::{SampleRow, Sampled, ScoreRow, Scored};
use crate::tensor::{flatten, stacked_shape};
use crate::{Error, Part, Result, fp8, sample};

/// The slow, obvious implementation of [`Backend`].
#[derive(Debug, Default, Clone, Copy)]
pub struct Reference;

/// Activations of [`Reference`].
#[derive(Debug, Clone)]
pub struct Buf {
    cols: usize,
    data: Vec<f32>, // [max_rows, cols]
}

impl Buf {
    fn row(&self, t: usize) -> &[f32] {
        &self.data[t * self.cols..(t + 1) * self.cols]
    }

    fn row_mut(&mut self, t: usize) -> &mut [f32] {
        &mut self.data[t * self.cols..(t + 1) * self.cols]
    }
}

/// A weight matrix of [`Reference`].
#[derive(Debug, Clone)]
pub struct Matrix {
    out: usize,
    cols: usize,
    data: Vec<f32>, // [out, cols]
}

/// One layer's cache of [`Reference`].
#[derive(Debug, Clone)]
pub struct Kv {
    spec: KvSpec,
    k: Vec<f32>, // [blocks, block_size, kv_heads, head_dim]
    v: Vec<f32>, // likewise
}

impl Kv {
    /// Where the features of `head` at `position` of a sequence with this block table start.
    fn at(&self, blocks: &[u32], position: usize, head: usize) -> usize {
        let KvSpec { block_size, kv_heads, head_dim, .. } = self.spec;
        let slot = blocks[position / block_size] as usize * block_size + position % block_size;
        (slot * kv_heads + head) * head_dim
    }
}

/// A step's geometry for [`Reference`].
#[derive(Debug, Clone, Default)]
pub struct Step {
    tokens: Vec<u32>,
    outputs: Vec<u32>,
    /// For each token of the step its position and its sequence's index in `tables`.
    places: Vec<(usize, usize)>,
    tables: Vec<Vec<u32>>,
    chosen: Vec<Sampled>,
}

impl Backend for Reference {
    type Buf = Buf;
    type Vector = Vec<f32>;
    type Matrix = Matrix;
    type Kv = Kv;
    type Step = Step;
    type Graph = Infallible;

    fn name(&self) -> String {
        "reference".to_owned()
    }

    fn buf(&self, rows: usize, cols: usize) -> Result<Buf> {
        Ok(Buf { cols, data: vec![0.0; rows * cols] })
    }

    fn vector(&self, parts: &[Part<'_>]) -> Result<Vec<f32>> {
        flatten(parts)
    }

    fn matrix(&self, parts: &[Part<'_>], format: MatrixFormat) -> Result<Matrix> {
        let (out, cols) = stacked_shape(parts)?;
        let mut data = flatten(parts)?;
        match format {
            MatrixFormat::Dense(dtype) => data.iter_mut().for_each(|w| *w = dtype.round(*w)),
            MatrixFormat::Fp8 => {
                let mut bytes = vec![0; cols];
                for row in data.chunks_exact_mut(cols.max(1)) {
                    let factor = fp8::quantize(row, &mut bytes)?;
                    row.iter_mut().zip(&bytes).for_each(|(w, byte)| *w = fp8::widen(*byte) * factor);
                }
            }
        }
        Ok(Matrix { out, cols, data })
    }

    fn matrix_bytes(&self, out: usize, cols: usize, _format: MatrixFormat) -> usize {
        out * cols * size_of::<f32>()
    }

    fn kv_bytes(&self, spec: &KvSpec) -> usize {
        let features = spec.kv_heads * spec.head_dim * 2 * size_of::<f32>();
        spec.blocks.saturating_mul(spec.block_size).saturating_mul(features)
    }

    fn scratch_bytes(&self, _products: &[ProductShape]) -> usize {
        0
    }

    fn kv(&self, spec: KvSpec) -> Result<Kv> {
        let len = spec.blocks * spec.block_size * spec.kv_heads * spec.head_dim;
        Ok(Kv { spec, k: vec![0.0; len], v: vec![0.0; len] })
    }

    fn step(&self, _size: &StepSize<'_>) -> Result<Step> {
        Ok(Step::default())
    }

    fn begin(&self, step: &mut Step, input: &StepInput<'_>) -> Result<()> {
        *step = Step { tokens: input.tokens.to_vec(), outputs: input.outputs.to_vec(), ..Step::default() };
        for row in input.rows {
            let table = step.tables.len();
            step.places.extend((row.start..row.start + row.count).map(|position| (position, table)));
            step.tables.push(row.blocks.to_vec());
        }
        Ok(())
    }

    fn embed(&self, step: &Step, table: &Matrix, first: usize, out: &mut Buf) -> Result<()> {
        for (t, &token) in step.tokens.iter().enumerate() {
            match (token as usize).checked_sub(first) {
                Some(held) if held < table.out => {
                    let at = held * table.cols;
                    out.row_mut(t).copy_from_slice(&table.data[at..at + table.cols]);
                }
                _ => out.row_mut(t).fill(0.0),
            }
        }
        Ok(())
    }

    fn norm(&self, n: usize, x: &Buf, norm: &Norm<Vec<f32>>, out: &mut Buf) -> Result<()> {
        for t in 0..n {
            out.row_mut(t).copy_from_slice(x.row(t));
            rms_norm(out.row_mut(t), norm);
        }
        Ok(())
    }

    fn add_norm(
        &self,
        n: usize,
        residual: &mut Buf,
        branch: &Buf,
        norm: &Norm<Vec<f32>>,
        out: &mut Buf,
    ) -> Result<()> {
        for t in 0..n {
            for (r, b) in residual.row_mut(t).iter_mut().zip(branch.row(t)) {
                *r += b;
            }
        }
        self.norm(n, residual, norm, out)
    }

    fn linear(&self, n: usize, x: &Buf, w: &Matrix, bias: Option<&Vec<f32>>, out: &mut Buf) -> Result<()> {
        for t in 0..n {
            for o in 0..w.out {
                let row = &w.data[o * w.cols..(o + 1) * w.cols];
                let bias = bias.map_or(0.0, |b| b[o]);
                out.row_mut(t)[o] = (dot(x.row(t), row) + f64::from(bias)) as f32;
            }
        }
        Ok(())
    }

    fn prologue(
        &self,
        step: &Step,
        qkv: &mut Buf,
        prologue: &Prologue<'_, Vec<f32>>,
        kv: &mut Kv,
    ) -> Result<()> {
        prologue::run(step, qkv, prologue, kv);
        Ok(())
    }

    fn attention(&self, step: &Step, qkv: &Buf, kv: &Kv, spec: &AttentionSpec, out: &mut Buf) -> Result<()> {
        attention::run(step, qkv, kv, spec, out);
        Ok(())
    }

    fn gate(&self, n: usize, act: Activation, x: &Buf, out: &mut Buf) -> Result<()> {
        for t in 0..n {
            let (gate, up) = x.row(t).split_at(x.cols / 2);
            for ((o, g), u) in out.row_mut(t).iter_mut().zip(gate).zip(up) {
                *o = (activate(act, f64::from(*g)) * f64::from(*u)) as f32;
            }
        }
        Ok(())
    }

    fn gather(&self, step: &Step, x: &Buf, out: &mut Buf) -> Result<()> {
        for (i, &t) in step.outputs.iter().enumerate() {
            out.row_mut(i).copy_from_slice(x.row(t as usize));
        }
        Ok(())
    }

    fn copy_rows(&self, x: &Buf, from: usize, n: usize, out: &mut Buf, to: usize) -> Result<()> {
        for i in 0..n {
            out.row_mut(to + i).copy_from_slice(x.row(from + i));
        }
        Ok(())
    }

    fn sample(&self, step: &mut Step, logits: &mut Buf, rows: &[SampleRow<'_>]) -> Result<()> {
        let choose = |(t, row)| sample::choose(logits.row_mut(t), row);
        step.chosen = rows.iter().enumerate().map(choose).collect();
        Ok(())
    }

    fn collect(&self, step: &mut Step, chosen: &mut Vec<Sampled>) -> Result<()> {
        chosen.append(&mut step.chosen);
        Ok(())
    }

    fn record<E: From<Error>>(
        &self,
        _work: impl FnOnce() -> std::result::Result<(), E>,
    ) -> std::result::Result<Option<Infallible>, E> {
        Ok(None)
    }

    fn replay(&self, graph: &Infallible) -> Result<()> {
        match *graph {}
    }

    fn score(
        &self,
        _step: &mut Step,
        logits: &mut Buf,
        rows: &[ScoreRow],
        scored: &mut Vec<Scored>,
    ) -> Result<()> {
        for (t, row) in rows.iter().enumerate() {
            scored.push(sample::score(logits.row_mut(t), row));
        }
        Ok(())
    }

    fn read(&self, buf: &Buf, n: usize) -> Result<Vec<f32>> {
        Ok(buf.data[..n * buf.cols].to_vec())
    }
}

impl HostMemory for Reference {
    fn host<'a>(&self, buf: &'a Buf, n: usize) -> &'a [f32] {
        &buf.data[..n * buf.cols]
    }

    fn host_mut<'a>(&self, buf: &'a mut Buf, n: usize) -> &'a mut [f32] {
        &mut buf.data[..n * buf.cols]
    }

    fn chosen<'a>(&self, step: &'a mut Step) -> &'a mut Vec<Sampled> {
        &mut step.chosen
    }
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

/// Zhang and Sennrich, "Root Mean Square Layer Normalization", in place.
fn rms_norm(x: &mut [f32], norm: &Norm<Vec<f32>>) {
    let scale = 1.0 / (dot(x, x) / x.len() as f64 + f64::from(norm.eps)).sqrt();
    for (x, w) in x.iter_mut().zip(&norm.weight) {
        *x = (f64::from(*x) * scale * f64::from(*w)) as f32;
    }
}

fn activate(act: Activation, x: f64) -> f64 {
    match act {
        Activation::Silu => x / (1.0 + (-x).exp()),
    }
}
