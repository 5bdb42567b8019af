//! The decoder's operations on a card, or on a simulated one.
//!
//! Activations and weights have one type, that of the model; constants and logits are f32. Everything is asked for in the order of one
//! stream, and only [`Backend::read`], [`Backend::score`] and [`Backend::collect`] wait for it.

mod buffers;
mod decoding;
mod loading;
mod products;
mod sampler;
mod scorer;
mod slots;
mod step;
mod tuning;
mod words;

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::arena::ALIGNMENT;
use super::ops::activation::{self, Version};
use super::ops::allreduce::{AddNorm, GatherColumns};
use super::ops::attention::Attention;
use super::ops::embed::{self, Embed, Gather};
use super::ops::norm::{self, Rows};
use super::ops::prefill::prefill;
use super::ops::prologue::{self, HeadNorms, Rope};
use super::ranks::Ranks;
use super::{Device, Elem, Graph, Memory, View};
use crate::backend::{
    Activation, AttentionSpec, Backend, KvSpec, MatrixFormat, Norm, Overheads, ProductShape, Prologue,
    StepInput, StepSize,
};
use crate::sampling::{SampleRow, Sampled, SamplingParams, ScoreRow, Scored};
use crate::{DType, Error, Part, Result};
use buffers::{Buf, Kv, Matrix, Vector};
use decoding::{of_rows, scores};
use loading::Loading;
use products::Quantized;
use step::{STEPS_AHEAD, Step};
use tuning::Tuned;

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
    /// Whether the device's library multiplies FP8, once it was asked.
    multiplies_fp8: Arc<OnceLock<bool>>,
    /// Where activations are quantised, once a weight needs it.
    quantized: Arc<OnceLock<Quantized>>,
}

impl Cuda {
    /// The operations of `device` on activations of type `dtype`.
    pub fn new(device: Device, dtype: DType) -> Cuda {
        Cuda {
            device,
            dtype,
            loading: Arc::default(),
            batch_invariant: false,
            tuned: Arc::default(),
            multiplies_fp8: Arc::default(),
            quantized: Arc::default(),
        }
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

    /// Replaces the tokens that the step has chosen by those of rank 0.
    ///
    /// # Errors
    /// What the communicator fails with.
    pub fn share_chosen(&self, ranks: &Ranks, step: &mut Step) -> Result<()> {
        ranks.broadcast(step.chosen())
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
    type Graph = Graph;

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

    fn matrix(&self, parts: &[Part<'_>], format: MatrixFormat) -> Result<Matrix> {
        if format == MatrixFormat::Fp8 {
            self.make_room_for_rows()?;
        }
        let mut loading = self.loading.lock().unwrap_or_else(PoisonError::into_inner);
        let loading = match &mut *loading {
            Some(loading) => loading,
            none => none.insert(Loading::new(&self.device)?),
        };
        Matrix::new(&self.device, loading, parts, format)
    }

    fn tune(&self, products: &[ProductShape]) -> Result<Vec<String>> {
        let (tuned, warnings) = Tuned::new(
            &self.device,
            self.dtype.into(),
            products,
            self.batch_invariant,
            self.quantizes_rows(),
        )?;
        // A second call changes nothing.
        let _ = self.tuned.set(tuned);
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

    fn matrix_bytes(&self, out: usize, cols: usize, format: MatrixFormat) -> usize {
        Matrix::bytes(out, cols, format)
    }

    fn kv_bytes(&self, spec: &KvSpec) -> usize {
        Kv::bytes(spec)
    }

    fn scratch_bytes(&self, products: &[ProductShape]) -> usize {
        if self.quantizes_rows() { Quantized::bytes(products) } else { 0 }
    }

    fn kv(&self, spec: KvSpec) -> Result<Kv> {
        Kv::new(&self.device, spec)
    }

    fn step_bytes(&self, size: &StepSize<'_>) -> usize {
        Step::bytes(size, self.dtype.into())
    }

    fn step(&self, size: &StepSize<'_>) -> Result<Step> {
        Step::new(&self.device, size, self.dtype.into())
    }

    fn free_bytes(&self) -> Option<usize> {
        self.device.memory_bytes().map(|(free, _)| free)
    }

    fn steps_ahead(&self) -> usize {
        STEPS_AHEAD
    }

    fn admit(&self, step: &mut Step, slot: usize, tokens: &[u32], params: &SamplingParams) -> Result<()> {
        step.admit(&self.device, slot, tokens, params)
    }

    fn begin(&self, step: &mut Step, input: &StepInput<'_>) -> Result<()> {
        step.set(&self.device, input)
    }

    fn prepare(&self, step: &mut Step) -> Result<()> {
        step.prepare(&self.device)
    }

    fn embed(&self, step: &Step, table: &Matrix, first: usize, out: &mut Buf) -> Result<()> {
        let tokens = step.tokens();
        embed::embed(
            &self.device,
            &Embed {
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
        self.multiply(n, x, w, bias, out)
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
                slots: step.places(),
                kv: kv.paged(),
            },
        )
    }

    fn attention(&self, step: &Step, qkv: &Buf, kv: &Kv, spec: &AttentionSpec, out: &mut Buf) -> Result<()> {
        let tokens = step.tokens();
        let all = Attention {
            heads: spec.layout.heads,
            qkv: qkv.rows(tokens),
            stride: spec.layout.cols(),
            kv: kv.paged(),
            batch: step.batch(),
            scores: scores(spec.scale, spec.window),
            out: out.rows(tokens),
        };
        let done = step.decoding.attention(&self.device, &all, spec)?;
        prefill(&self.device, &Attention { batch: of_rows(&all.batch, &(done..all.batch.rows)), ..all })
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

    fn copy_rows(&self, x: &Buf, from: usize, n: usize, out: &mut Buf, to: usize) -> Result<()> {
        let of = |start: usize| start * x.cols..(start + n) * x.cols;
        self.device.copy(x.rows(from + n).slice(of(from)), out.rows(to + n).slice(of(to)))
    }

    fn sample(&self, step: &mut Step, logits: &mut Buf, _rows: &[SampleRow<'_>]) -> Result<()> {
        step.sample(&self.device, logits.rows(step.outputs()))
    }

    fn append(&self, step: &mut Step) -> Result<()> {
        step.append(&self.device)
    }

    fn finish(&self, step: &mut Step) -> Result<()> {
        step.finish(&self.device)
    }

    fn is_done(&self, step: &Step) -> Result<bool> {
        step.is_done()
    }

    fn collect(&self, step: &mut Step, chosen: &mut Vec<Sampled>) -> Result<()> {
        step.collect(chosen)
    }

    fn pad(&self, step: &mut Step, rows: usize) -> bool {
        step.pad(rows)
    }

    fn record<E: From<Error>>(
        &self,
        work: impl FnOnce() -> std::result::Result<(), E>,
    ) -> std::result::Result<Option<Graph>, E> {
        let mut failed = None;
        let graph = self.device.record(|| {
            work().map_err(|error| {
                failed = Some(error);
                Error::Device("the work to be recorded failed".to_owned())
            })
        });
        match failed {
            Some(error) => Err(error),
            None => Ok(Some(graph?)),
        }
    }

    fn replay(&self, graph: &Graph) -> Result<()> {
        graph.replay()
    }

    fn score(
        &self,
        step: &mut Step,
        logits: &mut Buf,
        rows: &[ScoreRow],
        scored: &mut Vec<Scored>,
    ) -> Result<()> {
        step.score(&self.device, logits.rows(rows.len()), rows, scored)
    }

    fn read(&self, buf: &Buf, n: usize) -> Result<Vec<f32>> {
        buf.read(&self.device, n)
    }
}
