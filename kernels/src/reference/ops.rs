//! The operations of a forward pass.

use super::math::{activate, dot, rms_norm};
use super::{Buf, Kv, Matrix, Queue, Reference, attention, prologue};
use crate::Result;
use crate::backend::{Activation, AttentionSpec, ForwardOps, Norm, OpenStep, Prologue};

impl ForwardOps for Reference {
    fn embed(&self, step: &OpenStep<'_, Queue>, table: &Matrix, first: usize, out: &mut Buf) -> Result<()> {
        for (t, &token) in step.queue().tokens.iter().enumerate() {
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
        step: &OpenStep<'_, Queue>,
        qkv: &mut Buf,
        prologue: &Prologue<'_, Vec<f32>>,
        kv: &mut Kv,
    ) -> Result<()> {
        prologue::run(step.queue(), qkv, prologue, kv);
        Ok(())
    }

    fn attention(
        &self,
        step: &OpenStep<'_, Queue>,
        qkv: &Buf,
        kv: &Kv,
        spec: &AttentionSpec,
        out: &mut Buf,
    ) -> Result<()> {
        attention::run(step.queue(), qkv, kv, spec, out);
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

    fn gather(&self, step: &OpenStep<'_, Queue>, x: &Buf, out: &mut Buf) -> Result<()> {
        for (i, &t) in step.queue().outputs.iter().enumerate() {
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

    fn read(&self, buf: &Buf, n: usize) -> Result<Vec<f32>> {
        Ok(buf.data[..n * buf.cols].to_vec())
    }
}
