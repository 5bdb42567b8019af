//! The operations of a forward pass.

use super::buffers::{Buf, Kv, Matrix, Vector};
use super::cuda::Cuda;
use super::decoding::{of_rows, scores};
use super::queue::Queue;
use crate::Result;
use crate::backend::{Activation, AttentionSpec, ForwardOps, Norm, OpenStep, Prologue};
use crate::cuda::ops::activation::{self, ActivationRows, KernelVersion};
use crate::cuda::ops::attention::PagedAttention;
use crate::cuda::ops::embed::{self, EmbedTokens, GatherRows};
use crate::cuda::ops::norm::{self, NormRows};
use crate::cuda::ops::prefill::prefill;
use crate::cuda::ops::prologue::{self, HeadNorms, Rope};

impl ForwardOps for Cuda {
    fn embed(&self, step: &OpenStep<'_, Queue>, table: &Matrix, first: usize, out: &mut Buf) -> Result<()> {
        let step = step.queue();
        let tokens = step.tokens();
        embed::embed(
            &self.device,
            &EmbedTokens {
                tokens,
                cols: table.cols,
                ids: step.ids(),
                table: table.dense()?,
                first,
                rows: table.out,
                factor: 1.0,
                out: out.rows(tokens),
            },
        )
    }

    fn norm(&self, n: usize, x: &Buf, norm: &Norm<Vector>, out: &mut Buf) -> Result<()> {
        self.normalize(n, x, None, norm, out)
    }

    fn add_norm(
        &self,
        n: usize,
        residual: &mut Buf,
        branch: &Buf,
        norm: &Norm<Vector>,
        out: &mut Buf,
    ) -> Result<()> {
        self.normalize(n, branch, Some(residual), norm, out)
    }

    fn linear(&self, n: usize, x: &Buf, w: &Matrix, bias: Option<&Vector>, out: &mut Buf) -> Result<()> {
        self.multiply(n, x, w, bias, out)
    }

    fn prologue(
        &self,
        step: &OpenStep<'_, Queue>,
        qkv: &mut Buf,
        prologue: &Prologue<'_, Vector>,
        kv: &mut Kv,
    ) -> Result<()> {
        let step = step.queue();
        let tokens = step.tokens();
        prologue::prologue(
            &self.device,
            &prologue::Prologue {
                tokens,
                layout: prologue.layout,
                qkv: qkv.rows(tokens),
                bias: None,
                norms: prologue.head_norm.map(|norm| HeadNorms {
                    query: (norm.q.weight.view(), norm.q.eps),
                    key: (norm.k.weight.view(), norm.k.eps),
                }),
                rope: prologue.rope.map(|rope| Rope {
                    style: rope.style,
                    rotary_dim: rope.rotary_dim,
                    cos: rope.cos.view(),
                    sin: rope.sin.view(),
                    table_positions: rope.cos.len / (rope.rotary_dim / 2).max(1),
                    positions: step.positions(),
                    second_positions: None,
                }),
                slots: step.places(),
                kv: kv.paged(),
            },
        )
    }

    fn attention(
        &self,
        step: &OpenStep<'_, Queue>,
        qkv: &Buf,
        kv: &Kv,
        spec: &AttentionSpec,
        out: &mut Buf,
    ) -> Result<()> {
        let step = step.queue();
        let tokens = step.tokens();
        let all = PagedAttention {
            heads: spec.layout.heads,
            qkv: qkv.rows(tokens),
            stride: spec.layout.cols(),
            kv: kv.paged(),
            batch: step.batch(),
            scores: scores(spec.scale, spec.window),
            out: out.rows(tokens),
        };
        let done = step.decoding.attention(&self.device, &all, spec)?;
        prefill(&self.device, &PagedAttention { batch: of_rows(&all.batch, &(done..all.batch.rows)), ..all })
    }

    fn gate(&self, n: usize, act: Activation, x: &Buf, out: &mut Buf) -> Result<()> {
        let act = match act {
            Activation::Silu => activation::ActivationKind::Silu,
        };
        let rows = ActivationRows { rows: n, cols: out.cols, x: x.rows(n), out: out.rows(n) };
        activation::gate(&self.device, KernelVersion::Fast, act, &rows)
    }

    fn gather(&self, step: &OpenStep<'_, Queue>, x: &Buf, out: &mut Buf) -> Result<()> {
        let step = step.queue();
        let rows = step.outputs();
        embed::gather_rows(
            &self.device,
            &GatherRows {
                rows,
                cols: x.cols,
                index: step.output_index(),
                divisor: 1,
                x: x.rows(step.tokens()),
                out: out.rows(rows),
            },
        )
    }

    fn copy_rows(&self, x: &Buf, from: usize, n: usize, out: &mut Buf, to: usize) -> Result<()> {
        let of = |start: usize| start * x.cols..(start + n) * x.cols;
        self.device.copy(x.rows(from + n).slice(of(from)), out.rows(to + n).slice(of(to)))
    }

    fn read(&self, buf: &Buf, n: usize) -> Result<Vec<f32>> {
        buf.read(&self.device, n)
    }
}

impl Cuda {
    /// Adds `x` to `residual`, if there is one, and writes the normalized sum to `out`.
    fn normalize(
        &self,
        n: usize,
        x: &Buf,
        residual: Option<&Buf>,
        by: &Norm<Vector>,
        out: &Buf,
    ) -> Result<()> {
        let rows = NormRows {
            rows: n,
            cols: x.cols,
            eps: by.eps,
            x: x.rows(n),
            residual: residual.map(|residual| residual.rows(n)),
            out: out.rows(n),
        };
        norm::norm(&self.device, norm::NormKind::Rms { weight: by.weight.view() }, &rows)
    }
}
