//! The decoder's operations on a card, or on a simulated one.
//!
//! Activations and weights have one type, that of the model; constants and logits are f32. Everything is asked for in the order of one
//! stream, and only [`Backend::read`] and [`Backend::sample`] wait for it.

mod buffers;
mod loading;
mod step;
mod tuning;

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::arena::ALIGNMENT;
use super::choice::Way;
use super::nccl::Communicator;
use super::ops::activation::{self, Version};
use super::ops::attention::Attention;
use super::ops::columns::{Columns, place_columns};
use super::ops::embed::{self, Embed, Gather};
use super::ops::gemv::gemv;
use super::ops::matmul::{Matmul, matmul_by};
use super::ops::norm::{self, Rows};
use super::ops::paged::Scores;
use super::ops::prefill::prefill;
use super::ops::product::Product;
use super::ops::prologue::{self, HeadNorms, Rope};
use super::{Device, Elem, Memory, View};
use crate::backend::{
    Activation, AttentionSpec, Backend, KvSpec, Norm, Overheads, ProductShape, Prologue, StepInput, StepSize,
};
use crate::sampling::{SampleRow, Sampled};
use crate::{DType, Part, Result, sample};
use buffers::{Buf, Kv, Matrix, Vector};
use loading::Loading;
use step::Step;
use tuning::{Tuned, shape_of};

/// One device that computes a model whose activations and weights are of one type.
#[derive(Debug, Clone)]
pub struct Cuda {
    device: Device,
    dtype: DType,
    /// The way by which matrices come, from the first one until the device is sealed.
    loading: Arc<Mutex<Option<Loading>>>,
    /// One algorithm for all numbers of rows.
    batch_invariant: bool,
    /// How products are fastest, once that is known.
    tuned: Arc<OnceLock<Tuned>>,
}

impl Cuda {
    /// The operations of `device` on activations of type `dtype`.
    pub fn new(device: Device, dtype: DType) -> Cuda {
        Cuda { device, dtype, loading: Arc::default(), batch_invariant: false, tuned: Arc::default() }
    }

    /// Lets a row's results be the same however many rows there are, at some cost in speed.
    #[must_use]
    pub fn batch_invariant(self, batch_invariant: bool) -> Cuda {
        Cuda { batch_invariant, ..self }
    }

    /// What computes.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Replaces the first `n` rows by their sum over all ranks.
    ///
    /// # Errors
    /// What the communicator fails with.
    pub fn all_reduce(&self, ranks: &Communicator, n: usize, buf: &mut Buf) -> Result<()> {
        ranks.all_reduce(buf.rows(n))
    }

    /// Puts the first `n` rows of all ranks' `part`s side by side into `whole`; columns that `whole` has no room for are
    /// padding. `gathered` has room for the rows of all ranks.
    ///
    /// # Errors
    /// What the communicator or the device fails with.
    pub fn all_gather(
        &self,
        ranks: &Communicator,
        n: usize,
        part: &Buf,
        gathered: &mut Buf,
        whole: &mut Buf,
    ) -> Result<()> {
        let parts = gathered.rows(ranks.world_size() * n);
        ranks.all_gather(part.rows(n), parts)?;
        let (part_cols, whole_cols) = (part.cols, whole.cols);
        let columns = Columns { rows: n, part_cols, whole_cols, parts, whole: whole.rows(n) };
        place_columns(&self.device, &columns)
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
        let mut loading = self.loading.lock().unwrap_or_else(PoisonError::into_inner);
        let loading = match &mut *loading {
            Some(loading) => loading,
            none => none.insert(Loading::new(&self.device)?),
        };
        Matrix::new(&self.device, loading, parts, dtype)
    }

    fn tune(&self, products: &[ProductShape]) -> Result<Vec<String>> {
        let (tuned, warnings) = Tuned::new(&self.device, self.dtype.into(), products, self.batch_invariant)?;
        if let Some(tuned) = tuned {
            // A second call changes nothing.
            let _ = self.tuned.set(tuned);
        }
        Ok(warnings)
    }

    fn reserve(&self, bytes: usize, pieces: usize) -> Result<()> {
        self.device.reserve(bytes.saturating_add(pieces.saturating_mul(ALIGNMENT)))
    }

    fn seal(&self) -> usize {
        *self.loading.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.device.seal();
        self.device.reserved().beyond
    }

    fn overheads(&self, ranks: usize) -> Overheads {
        self.device.overheads(ranks)
    }

    fn activation_bytes(&self, elements: usize) -> usize {
        elements.saturating_mul(self.dtype.size())
    }

    fn gather_bytes(&self, ranks: usize, elements: usize) -> usize {
        ranks.saturating_mul(elements).saturating_mul(Elem::F32.size())
    }

    fn step_bytes(&self, size: &StepSize) -> usize {
        Step::bytes(size)
    }

    fn matrix_bytes(&self, out: usize, cols: usize, dtype: DType) -> usize {
        out * cols * dtype.size()
    }

    fn kv_bytes(&self, spec: &KvSpec) -> usize {
        Kv::bytes(spec)
    }

    fn scratch_bytes(&self, _rows: usize, _cols: usize) -> usize {
        0
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
        let (rows, inputs, outputs) = (n, w.cols, w.out);
        let (x, results) = (x.rows(n), out.rows(n));
        let tuned = self.tuned.get();
        let way = tuned.and_then(|tuned| tuned.way(shape_of(inputs, outputs, x, results), n));
        let algorithm = match (way, tuned) {
            (Some(Way::Kernel), Some(tuned)) => {
                let bias = bias.map(Vector::view);
                let product = Product { rows, inputs, outputs, x, bias, residual: None, out: results };
                return gemv(&self.device, w.view(), &product, &tuned.workspace());
            }
            (Some(Way::Library(algorithm)), _) => Some(algorithm),
            _ => None,
        };
        let product = Matmul { rows, inputs, outputs, x, w: w.view(), out: results };
        matmul_by(&self.device, &product, algorithm)?;
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
