//! The operations of a forward pass.

use std::convert::Infallible;

use millrace_backend::{
    Activation, AdapterOps, AttentionOps, AttentionSpec, ChannelRecurrence, Convolution, Error, ExpertMlp,
    ExpertOps, ForwardOps, GateFunction, Gating, LatentPrologue, LatentSpec, Norm, NormKind, OpenStep,
    Prologue, Recurrence, RecurrentOps, Result, RouterTerms, RowParts, ScoreTerms, StateCopy, TransferOps,
};

use super::activations::activation_kind;
use super::buffers::{Buf, Kv, Matrix, Vector};
use super::cuda::Cuda;
use super::decoding::{of_rows, scores};
use super::experts::{Experts, Routing};
use super::latent::HeadMatrices;
use super::queue::Queue;
use super::recurrent::States;
use crate::ops::activation::{self, ActivationRows, KernelVersion, ScaledSum, SoftCapRows};
use crate::ops::attention::PagedAttention;
use crate::ops::embed::{self, EmbedTokens, GatherRows};
use crate::ops::norm::{self, NormRows, PartRows};
use crate::ops::paged::AttentionScores;
use crate::ops::prefill::prefill;
use crate::ops::prologue::{self, HeadNorms, QueryScale, Rope};

impl ForwardOps for Cuda {
    fn embed(
        &self,
        step: &OpenStep<'_, Queue>,
        table: &Matrix,
        first: usize,
        factor: f32,
        out: &mut Buf,
    ) -> Result<()> {
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
                factor,
                out: out.rows(tokens),
            },
        )
    }

    fn embed_positions(&self, step: &OpenStep<'_, Queue>, table: &Matrix, out: &mut Buf) -> Result<()> {
        let step = step.queue();
        let tokens = step.tokens();
        embed::embed(
            &self.device,
            &EmbedTokens {
                tokens,
                cols: table.cols,
                ids: step.positions(),
                table: table.dense()?,
                first: 0,
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

    fn norm_parts(&self, n: usize, x: &mut Buf, parts: RowParts, norm: &Norm<Vector>) -> Result<()> {
        let of = PartRows { rows: n, row_cols: x.cols, parts, eps: norm.eps, x: x.rows(n) };
        norm::norm_parts(&self.device, norm_kind(norm), &of)
    }

    fn add(&self, n: usize, x: &Buf, out: &mut Buf) -> Result<()> {
        let (x, cols, out) = (x.rows(n), x.cols, out.rows(n));
        let sum = ScaledSum { rows: n, cols, x: (1.0, x), y: Some((1.0, out)), out };
        activation::scaled_sum(&self.device, KernelVersion::Fast, &sum)
    }

    fn scale(&self, n: usize, factor: f32, x: &mut Buf) -> Result<()> {
        let sum = ScaledSum { rows: n, cols: x.cols, x: (factor, x.rows(n)), y: None, out: x.rows(n) };
        activation::scaled_sum(&self.device, KernelVersion::Fast, &sum)
    }

    fn soft_cap(&self, n: usize, cap: f32, x: &mut Buf) -> Result<()> {
        let rows = SoftCapRows { rows: n, cols: x.cols, x: x.rows(n), cap };
        activation::soft_cap(&self.device, KernelVersion::Fast, &rows)
    }

    fn clamp(&self, _: usize, _: f32, _: &mut Buf) -> Result<()> {
        Err(Error::Unsupported("bounds on queries, keys and values on a GPU; use --device cpu".to_owned()))
    }

    fn linear(&self, n: usize, x: &Buf, w: &Matrix, bias: Option<&Vector>, out: &mut Buf) -> Result<()> {
        self.multiply(n, x, w, bias, out)
    }

    fn multiply_gates(
        &self,
        n: usize,
        gates: (&Buf, usize),
        function: GateFunction,
        x: &mut Buf,
    ) -> Result<()> {
        self.multiply_rows(n, gates, function, x)
    }

    fn gate(&self, n: usize, gating: Gating, x: &Buf, out: &mut Buf) -> Result<()> {
        self.gate_rows(n, gating, x, out)
    }

    fn activate(&self, n: usize, act: Activation, x: &mut Buf) -> Result<()> {
        let rows = ActivationRows { rows: n, cols: x.cols, x: x.rows(n), out: x.rows(n) };
        activation::activate(&self.device, KernelVersion::Fast, activation_kind(act)?, &rows)
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
}

/// There are no adapters on GPUs:
/// [`ModelLoading::adapters`](millrace_backend::ModelLoading::adapters) refuses them.
impl AdapterOps for Cuda {
    fn adapt(
        &self,
        _step: &OpenStep<'_, Queue>,
        _x: &Buf,
        adapters: &Infallible,
        _mid: &mut Buf,
        _out: &mut Buf,
    ) -> Result<()> {
        match *adapters {}
    }
}

impl AttentionOps for Cuda {
    fn prologue(
        &self,
        step: &OpenStep<'_, Queue>,
        qkv: &mut Buf,
        prologue: &Prologue<'_, Vector>,
        kv: &mut Kv,
    ) -> Result<()> {
        let step = step.queue();
        let tokens = step.tokens();
        let [first_axis, second_axis] = step.axes();
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
                    positions: if rope.two_axes { first_axis } else { step.positions() },
                    second_positions: rope.two_axes.then_some(second_axis),
                }),
                query_scale: prologue.query_scale.map(|factors| QueryScale {
                    factors: factors.view(),
                    table_positions: factors.len,
                    positions: step.positions(),
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
        terms: ScoreTerms<'_, Vector>,
        out: &mut Buf,
    ) -> Result<()> {
        if terms.distance.is_some() {
            return Err(Error::Unsupported("biases of scores by distance; only the CPU has them".to_owned()));
        }
        let step = step.queue();
        let tokens = step.tokens();
        let all = PagedAttention {
            heads: spec.layout.heads,
            qkv: qkv.rows(tokens),
            stride: qkv.cols,
            kv: kv.paged(),
            batch: step.batch(),
            scores: AttentionScores {
                soft_cap: spec.soft_cap,
                alibi: terms.alibi.map(Vector::view),
                sinks: terms.sinks.map(Vector::view),
                ..scores(spec.scale, spec.window)
            },
            out: out.rows(tokens),
        };
        // A decode row is behind its sequence's prefix.
        let done = step.decoding.attention(&self.device, &all, spec)?;
        let left = done..all.batch.rows;
        let prefix = spec.bidirectional.then(|| step.prefixes().slice(left.clone()));
        let scores = AttentionScores { prefix, ..all.scores };
        prefill(&self.device, &PagedAttention { batch: of_rows(&all.batch, &left), scores, ..all })
    }

    fn linear_heads(&self, n: usize, x: &Buf, w: &HeadMatrices, out: &mut Buf) -> Result<()> {
        self.multiply_heads(n, x, w, out)
    }

    fn latent_prologue(
        &self,
        step: &OpenStep<'_, Queue>,
        queries: &mut Buf,
        latents: &mut Buf,
        prologue: &LatentPrologue<'_, Vector>,
        kv: &mut Kv,
    ) -> Result<()> {
        if prologue.query_scale.is_some() {
            let reason = "factors on queries of latent attention on a GPU; use --device cpu";
            return Err(Error::Unsupported(reason.to_owned()));
        }
        self.store_latents(step.queue(), (queries, latents), prologue.rope, kv)
    }

    fn latent_attention(
        &self,
        step: &OpenStep<'_, Queue>,
        queries: &Buf,
        kv: &Kv,
        spec: &LatentSpec,
        out: &mut Buf,
    ) -> Result<()> {
        self.attend_latents(step.queue(), (queries, kv), spec, out)
    }
}

impl RecurrentOps for Cuda {
    fn convolve(
        &self,
        step: &OpenStep<'_, Queue>,
        x: &Buf,
        convolution: &Convolution<'_, Vector>,
        states: &mut States,
        out: &mut Buf,
    ) -> Result<()> {
        self.convolve_rows(step.queue(), x, convolution, states, out)
    }

    fn recur(
        &self,
        step: &OpenStep<'_, Queue>,
        inputs: (&Buf, &Buf),
        recurrence: &Recurrence<'_, Vector>,
        states: &mut States,
        out: &mut Buf,
    ) -> Result<()> {
        self.recur_rows(step.queue(), inputs, recurrence, states, out)
    }

    fn recur_by_channel(
        &self,
        _step: &OpenStep<'_, Queue>,
        _recurrence: &ChannelRecurrence<'_, Vector, Buf>,
        _states: &mut States,
        _out: &mut Buf,
    ) -> Result<()> {
        Err(Error::Unsupported("a decay of each feature of keys on a GPU; use --device cpu".to_owned()))
    }

    fn copy_states(&self, copies: &[StateCopy], states: &mut States) -> Result<()> {
        states.copy(&self.device, copies)
    }
}

impl ExpertOps for Cuda {
    fn route(
        &self,
        step: &OpenStep<'_, Queue>,
        n: usize,
        logits: &Buf,
        terms: RouterTerms<'_, Vector>,
        routing: &mut Routing,
    ) -> Result<()> {
        self.choose_experts((n, step.queue().token_count()), logits, terms, routing)
    }

    fn expert_mlp(
        &self,
        n: usize,
        x: &Buf,
        mlp: &ExpertMlp<'_, Experts, Vector>,
        routing: &mut Routing,
        out: &mut Buf,
    ) -> Result<()> {
        self.compute_experts(n, x, mlp, routing, out)
    }

    fn add_gated(&self, n: usize, x: &Buf, gate: &Buf, routing: &mut Routing, out: &mut Buf) -> Result<()> {
        self.add_gated_rows(n, x, gate, routing, out)
    }
}

impl TransferOps for Cuda {
    fn read(&self, buf: &Buf, n: usize) -> Result<Vec<f32>> {
        buf.read(&self.device, n)
    }

    fn download(&self, buf: &Buf, n: usize, scratch: &mut Vec<u8>, to: &mut [f32]) -> Result<()> {
        buf.download(&self.device, n, scratch, to)
    }

    fn upload(&self, n: usize, from: &[f32], scratch: &mut Vec<u8>, buf: &mut Buf) -> Result<()> {
        buf.upload(&self.device, n, from, scratch)
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
        norm::norm(&self.device, norm_kind(by), &rows)
    }
}

fn norm_kind(by: &Norm<Vector>) -> norm::NormKind<'_> {
    let weight = by.weight.view();
    match by.kind {
        NormKind::Rms => norm::NormKind::Rms { weight },
        NormKind::Layer => norm::NormKind::Layer { weight, bias: by.bias.as_ref().map(Vector::view) },
    }
}
