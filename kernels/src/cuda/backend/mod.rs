//! The decoder's operations on a card, or on a simulated one.
//!
//! Activations and weights have one type, that of the model; constants and logits are f32. Everything is asked for in the order of one
//! stream, and only [`Backend::read`] and [`Backend::sample`] wait for it.

mod buffers;
mod step;

use super::ops::activation::{self, Version};
use super::ops::allreduce::{AddNorm, GatherColumns};
use super::ops::attention::Attention;
use super::ops::embed::{self, Embed, Gather};
use super::ops::matmul::{Matmul, matmul};
use super::ops::norm::{self, Rows};
use super::ops::paged::Scores;
use super::ops::prefill::prefill;
use super::ops::prologue::{self, HeadNorms, Rope};
use super::ranks::Ranks;
use super::{Device, Elem, Memory, View};
use crate::backend::{Activation, AttentionSpec, Backend, KvSpec, Norm, Prologue, StepInput, StepSize};
use crate::sampling::{SampleRow, Sampled};
use crate::{DType, Part, Result, sample};
use buffers::{Buf, Kv, Matrix, Vector};
use step::Step;

/// One device that computes a model whose activations and weights are of one type.
#[derive(Debug, Clone)]
pub struct Cuda {
    device: Device,
    dtype: DType,
}

impl Cuda {
    /// The operations of `device` on activations of type `dtype`.
    pub fn new(device: Device, dtype: DType) -> Cuda {
        Cuda { device, dtype }
    }

    /// What computes.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The type of activations.
    pub fn elem(&self) -> Elem {
        self.dtype.into()
    }

    /// Replaces the first `n` rows by their sum over all ranks.
    ///
    /// # Errors
    /// What the ranks' exchange fails with.
    pub fn all_reduce(&self, ranks: &Ranks, n: usize, buf: &mut Buf) -> Result<()> {
        ranks.all_reduce(buf.rows(n))
    }

    /// `residual += sum of branch over the ranks; out = norm(residual)` over the first `n` rows.
    ///
    /// # Errors
    /// What the ranks' exchange or the device fails with.
    pub fn all_reduce_norm(
        &self,
        ranks: &Ranks,
        n: usize,
        residual: &mut Buf,
        branch: &mut Buf,
        norm: &Norm<Vector>,
        out: &mut Buf,
    ) -> Result<()> {
        ranks.all_reduce_norm(&AddNorm {
            rows: n,
            cols: branch.cols,
            eps: norm.eps,
            x: branch.rows(n),
            residual: residual.rows(n),
            weight: norm.weight.view(),
            out: out.rows(n),
        })
    }

    /// Puts the first `n` rows of all ranks' `part`s side by side into `whole`; columns that `whole` has no room for are
    /// padding. `gathered` has room for the rows of all ranks.
    ///
    /// # Errors
    /// What the ranks' exchange or the device fails with.
    pub fn all_gather(
        &self,
        ranks: &Ranks,
        n: usize,
        part: &Buf,
        gathered: &mut Buf,
        whole: &mut Buf,
    ) -> Result<()> {
        let (part_cols, whole_cols) = (part.cols, whole.cols);
        let columns =
            GatherColumns { rows: n, part_cols, whole_cols, part: part.rows(n), whole: whole.rows(n) };
        ranks.all_gather(&columns, gathered.rows(ranks.world_size() * n))
    }

    fn add_bias(&self, n: usize, out: &Buf, bias: Option<&Vector>) -> Result<()> {
        match bias {
            Some(bias) => {
                activation::add_bias(&self.device, Version::Fast, n, out.cols, out.rows(n), bias.view())
            }
            None => Ok(()),
        }
    }

    fn normalise(
        &self,
        n: usize,
        x: &Buf,
        residual: Option<&Buf>,
        by: &Norm<Vector>,
        out: &Buf,
    ) -> Result<()> {
        let rows = Rows {
            rows: n,
            cols: x.cols,
            eps: by.eps,
            x: x.rows(n),
            residual: residual.map(|residual| residual.rows(n)),
            out: out.rows(n),
        };
        norm::norm(&self.device, norm::Norm::Rms { weight: by.weight.view() }, &rows)
    }
}

impl Backend for Cuda {
    type Buf = Buf;
    type Vector = Vector;
    type Matrix = Matrix;
    type Kv = Kv;
    type Step = Step;

    fn name(&self) -> String {
        self.device.name()
    }

    fn buf(&self, rows: usize, cols: usize) -> Result<Buf> {
        Buf::new(&self.device, self.dtype.into(), rows, cols)
    }

    fn logits(&self, rows: usize, cols: usize) -> Result<Buf> {
        Buf::new(&self.device, Elem::F32, rows, cols)
    }

    fn vector(&self, parts: &[Part<'_>]) -> Result<Vector> {
        Vector::new(&self.device, parts)
    }

    fn matrix(&self, parts: &[Part<'_>], dtype: DType) -> Result<Matrix> {
        Matrix::new(&self.device, parts, dtype)
    }

    fn matrix_bytes(&self, out: usize, cols: usize, dtype: DType) -> usize {
        out * cols * dtype.size()
    }

    fn kv_bytes(&self, spec: &KvSpec) -> usize {
        Kv::bytes(spec)
    }

    fn scratch_bytes(&self, _rows: usize, _cols: usize) -> usize {
        self.device.gemm_bytes()
    }

    fn kv(&self, spec: KvSpec) -> Result<Kv> {
        Kv::new(&self.device, spec)
    }

    fn step(&self, size: StepSize) -> Result<Step> {
        Step::new(&self.device, size)
    }

    fn begin(&self, step: &mut Step, input: &StepInput<'_>) -> Result<()> {
        step.set(&self.device, input)
    }

    fn embed(&self, step: &Step, table: &Matrix, first: usize, out: &mut Buf) -> Result<()> {
        let tokens = step.tokens();
        embed::embed(
            &self.device,
            &Embed {
                tokens,
                cols: table.cols,
                ids: step.ids(),
                table: table.view(),
                first,
                rows: table.out,
                factor: 1.0,
                out: out.rows(tokens),
            },
        )
    }

    fn norm(&self, n: usize, x: &Buf, norm: &Norm<Vector>, out: &mut Buf) -> Result<()> {
        self.normalise(n, x, None, norm, out)
    }

    fn add_norm(
        &self,
        n: usize,
        residual: &mut Buf,
        branch: &Buf,
        norm: &Norm<Vector>,
        out: &mut Buf,
    ) -> Result<()> {
        self.normalise(n, branch, Some(residual), norm, out)
    }

    fn linear(&self, n: usize, x: &Buf, w: &Matrix, bias: Option<&Vector>, out: &mut Buf) -> Result<()> {
        let product =
            Matmul { rows: n, inputs: w.cols, outputs: w.out, x: x.rows(n), w: w.view(), out: out.rows(n) };
        matmul(&self.device, &product)?;
        self.add_bias(n, out, bias)
    }

    fn prologue(
        &self,
        step: &Step,
        qkv: &mut Buf,
        prologue: &Prologue<'_, Vector>,
        kv: &mut Kv,
    ) -> Result<()> {
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
                slots: step.slots(),
                kv: kv.paged(),
            },
        )
    }

    fn attention(&self, step: &Step, qkv: &Buf, kv: &Kv, spec: &AttentionSpec, out: &mut Buf) -> Result<()> {
        let tokens = step.tokens();
        prefill(
            &self.device,
            &Attention {
                heads: spec.layout.heads,
                qkv: qkv.rows(tokens),
                stride: spec.layout.cols(),
                kv: kv.paged(),
                batch: step.batch(),
                scores: Scores {
                    scale: spec.scale,
                    soft_cap: None,
                    window: spec.window,
                    alibi: None,
                    sinks: None,
                    prefix: None,
                },
                out: out.rows(tokens),
            },
        )
    }

    fn gate(&self, n: usize, act: Activation, x: &Buf, out: &mut Buf) -> Result<()> {
        let act = match act {
            Activation::Silu => activation::Activation::Silu,
        };
        activation::gate(&self.device, Version::Fast, act, n, out.cols, x.rows(n), out.rows(n))
    }

    fn gather(&self, step: &Step, x: &Buf, out: &mut Buf) -> Result<()> {
        let rows = step.outputs();
        embed::gather(
            &self.device,
            &Gather {
                rows,
                cols: x.cols,
                index: step.output_index(),
                divisor: 1,
                x: x.rows(step.tokens()),
                out: out.rows(rows),
            },
        )
    }

    fn sample(&self, logits: &mut Buf, rows: &[SampleRow<'_>], chosen: &mut Vec<Sampled>) -> Result<()> {
        let mut all = self.read(logits, rows.len())?;
        for (logits, row) in all.chunks_exact_mut(logits.cols).zip(rows) {
            chosen.push(sample::choose(logits, row));
        }
        Ok(())
    }

    fn read(&self, buf: &Buf, n: usize) -> Result<Vec<f32>> {
        buf.read(&self.device, n)
    }
}
